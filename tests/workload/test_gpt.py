import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from ray_diloco.errors import ConfigError
from ray_diloco.workload.gpt import Gpt, gpt_shape, rotary_tables, rotate
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings

_SMALL = ModelSettings(layers=2, width=32, heads=4, kv_heads=2, hidden=48, context=32)


def tokens(time=12):
    return torch.randint(256, (3, time), generator=torch.Generator().manual_seed(0))


def test_tokens_give_logits():
    assert build_model(_SMALL, seed=0)(tokens()).shape == (3, 12, 256)


def test_no_token_sees_a_later_one():
    model, changed = build_model(_SMALL, seed=0), tokens()
    changed[:, 7] += 1
    before, after = model(tokens()), model(changed % 256)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_a_rotation_keeps_lengths_and_makes_products_depend_on_the_distance_alone():
    shape = gpt_shape(_SMALL)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, shape.head_width, generator=generator).unbind()
    cos, sin = rotary_tables(shape)

    def turned(x, position):
        return rotate(x, (cos[position], sin[position])).flatten()

    assert turned(query, 5).norm().item() == pytest.approx(query.norm().item(), rel=1e-5)
    near, far = turned(query, 5) @ turned(key, 2), turned(query, 25) @ turned(key, 22)
    assert near.item() == pytest.approx(far.item(), rel=1e-4)


def test_attention_equals_the_textbook_with_each_key_head_shared_by_its_query_heads():
    attention = build_model(_SMALL, seed=0).blocks[0].attention
    shape = attention.shape
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
    rotation = tuple(table[:6] for table in rotary_tables(shape))
    split = attention.query_key_value(x).split([32, 16, 16], dim=-1)
    query, key, value = (part.view(2, 6, -1, 8).transpose(1, 2) for part in split)
    outputs = []
    for head in range(4):
        turned = rotate(query[:, head], rotation), rotate(key[:, head // 2], rotation)
        scores = turned[0] @ turned[1].transpose(1, 2) / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
        outputs.append(scores.softmax(-1) @ value[:, head // 2])
    expected = attention.out(torch.cat(outputs, dim=-1))
    torch.testing.assert_close(attention(x, rotation), expected)


def test_a_block_adds_attention_and_swiglu_of_copies_normed_by_their_root_mean_square():
    block = build_model(_SMALL, seed=0).blocks[0]
    generator = torch.Generator().manual_seed(2)
    x = 3 * torch.randn(2, 6, 32, generator=generator)
    rotation = tuple(table[:6] for table in rotary_tables(gpt_shape(_SMALL)))
    weights = [norm.weight for norm in (block.attention_norm, block.feed_norm)]
    with torch.no_grad():
        for weight in weights:
            weight.uniform_(0.5, 2.0, generator=generator)

    def normed(value, weight):
        return value / (value.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    attended = x + block.attention(normed(x, weights[0]), rotation)
    fed = normed(attended, weights[1])
    gate = fed @ block.gate.weight.T
    hidden = gate * torch.sigmoid(gate) * (fed @ block.up.weight.T)
    torch.testing.assert_close(block(x, rotation), attended + hidden @ block.down.weight.T)


def test_output_and_input_embedding_are_one_tensor():
    names = dict(build_model(_SMALL, seed=0).named_parameters())
    assert sum(value.shape[0] == 256 for value in names.values()) == 1


def test_the_positions_are_no_part_of_the_state():
    assert not {"cos", "sin"} & set(build_model(_SMALL, seed=0).state_dict())


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [("tiny", 100_000, 200_000), ("mini", 3e6, 8e6), ("small", 80e6, 130e6)],
)
def test_a_size_has_about_as_many_parameters_as_its_name_says(size, least, most):
    with torch.device("meta"):
        model = Gpt(gpt_shape(ModelSettings(size=size)))
    assert least < sum(value.numel() for value in model.parameters()) < most


@pytest.mark.parametrize(
    ("fields", "setting"), [({"heads": 5}, "model.heads"), ({"kv_heads": 3}, "model.kv_heads")]
)
def test_heads_that_do_not_divide_are_refused(fields, setting):
    with pytest.raises(ConfigError) as caught:
        gpt_shape(ModelSettings(**fields))
    assert caught.value.setting == setting


def test_checkpointed_activations_give_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        settings = dataclasses.replace(_SMALL, activation_checkpointing=checkpointing)
        model = build_model(settings, seed=0)
        functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)
