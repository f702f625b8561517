import pytest
import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.models import build_model
from ray_diloco.workload.outline import estimate_bytes, outline
from ray_diloco.workload.settings import ModelSettings


class ReadsItsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.largest = self.scale.max().item()


class Checkpointed(nn.Linear):
    checkpointing = False

    def gradient_checkpointing_enable(self):
        self.checkpointing = True


def custom(name, **arguments):
    return ModelSettings(
        name="custom",
        custom={"_target_": f"{__name__}.{name}", **arguments},
        allow_targets=[__name__],
    )


_LINEAR = ModelSettings(
    name="custom", custom={"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}
)
_ALL = [ModelSettings(), ModelSettings(name="mlp"), _LINEAR]


@pytest.mark.parametrize("settings", _ALL, ids=lambda settings: settings.name)
def test_weights_depend_on_the_seed_alone(settings):
    one, same, other = (build_model(settings, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("settings", _ALL, ids=lambda settings: settings.name)
def test_building_leaves_the_global_generator_as_it_was(settings):
    before = torch.get_rng_state()
    build_model(settings, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("settings", _ALL, ids=lambda settings: settings.name)
def test_the_estimate_is_the_size_of_the_state(settings, dtype):
    settings = ModelSettings(name=settings.name, custom=settings.custom, dtype=dtype)
    state = build_model(settings, seed=0).state_dict()
    assert estimate_bytes(settings) == sum(value.nbytes for value in state.values())


def test_a_model_far_too_large_is_estimated_without_memory_for_it():
    assert estimate_bytes(ModelSettings(width=65536, layers=100, hidden=262144)) > 10**12


def test_a_model_that_cannot_be_made_without_memory_is_sized_by_building_it():
    settings = custom("ReadsItsWeights")
    state = build_model(settings, seed=0).state_dict()
    assert estimate_bytes(settings) == sum(value.nbytes for value in state.values())


@pytest.mark.parametrize("name", ["gpt", "mlp", "perceptron", "cnn"])
def test_any_number_of_layers_is_sized_like_few(name):
    settings = ModelSettings(name=name, layers=5)
    state = build_model(settings, seed=0).state_dict()
    assert estimate_bytes(settings) == sum(value.nbytes for value in state.values())


def test_the_outline_counts_real_numbers_and_those_of_16_bits():
    sizes = outline(custom("Turned")).sizes
    assert (sizes.bytes, sizes.numbers, sizes.halves, sizes.working_bytes) == (40, 6, 0, 32)
    two, five = (outline(ModelSettings(layers=each, dtype="bfloat16")).sizes for each in (2, 5))
    state = build_model(ModelSettings(layers=5), seed=0).state_dict()
    assert five.numbers == sum(value.numel() for value in state.values()) > two.numbers
    assert (five.bytes, five.halves) == (2 * five.numbers, five.numbers)
    assert five.working_bytes == 4 * five.numbers


def test_a_model_of_a_hundred_million_layers_is_sized_at_once():
    assert estimate_bytes(ModelSettings(layers=10**8)) > 10**12


@pytest.mark.parametrize("field", ["width", "hidden", "vocabulary"])
def test_a_model_that_no_memory_can_hold_is_refused(field):
    with pytest.raises(ConfigError, match="expected a size that memory can hold"):
        estimate_bytes(ModelSettings(**{field: 8 * 10**19}))


def test_a_target_that_is_no_module_is_refused():
    settings = ModelSettings(name="custom", custom={"_target_": "torch.nn.Parameter"})
    with pytest.raises(ConfigError, match=r"expected to give an nn\.Module"):
        build_model(settings, seed=0)


def test_checkpointing_is_handed_to_a_custom_model_that_knows_it_and_refused_otherwise():
    arguments = {"in_features": 1, "out_features": 1}
    known = custom("Checkpointed", **arguments)
    fields = {"name": "custom", "activation_checkpointing": True}
    made = build_model(
        ModelSettings(**fields, custom=known.custom, allow_targets=[__name__]), seed=0
    )
    assert made.checkpointing
    with pytest.raises(ConfigError, match=r"model\.activation_checkpointing"):
        build_model(ModelSettings(**fields, custom=_LINEAR.custom), seed=0)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j)
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def test_a_custom_model_stays_what_its_constructor_makes_it_unless_a_dtype_is_asked_for():
    state = build_model(custom("Turned"), seed=0).state_dict()
    assert [value.dtype for value in state.values()] == [
        *(torch.complex64, torch.float64, torch.int64),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_real_numbers_take_the_dtype_that_weights_are_stored_in(dtype):
    custom = {"_target_": f"{__name__}.Turned"}
    settings = ModelSettings(name="custom", dtype=dtype, custom=custom, allow_targets=[__name__])
    model = build_model(settings, seed=0)
    assert model.turn.dtype == torch.complex64
    assert bool((model.turn == 1j).all())
    assert model.scale.dtype == getattr(torch, dtype)
    assert model.count.dtype == torch.int64
