from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from ray_diloco.errors import TrainingError
from ray_diloco.workload.loss import batch_loss, count_tokens, move_batch

_BATCH = torch.arange(12).reshape(3, 4) % 5


class Answering(nn.Module):
    """Looks logits up in a table and answers in the form asked for."""

    def __init__(self, form=lambda logits: logits):
        super().__init__()
        self.form = form
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(5, 5, generator=generator))

    def forward(self, tokens):
        return self.form(self.table[tokens])


class TakingTargets(Answering):
    def forward(self, tokens, targets=None):
        logits = self.table[tokens]
        if targets is None:
            return logits, None
        return logits, 2 * functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TakingNames(Answering):
    def forward(self, input_ids, labels=None):
        logits = self.table[input_ids]
        loss = (
            None
            if labels is None
            else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        )
        return {"loss": loss, "logits": logits}


class Reconstructing(nn.Module):
    def forward(self, x):
        return x.square().mean()


def plain_loss():
    logits = Answering().table[_BATCH[:, :-1]]
    return functional.cross_entropy(logits.flatten(0, 1), _BATCH[:, 1:].flatten())


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: logits,
        lambda logits: (logits,),
        lambda logits: (logits, logits),
        lambda logits: {"logits": logits},
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["alone", "single", "first", "mapping", "no loss", "object"],
)
def test_logits_in_any_form_make_the_cross_entropy_of_the_next_token(form):
    torch.testing.assert_close(batch_loss(Answering(form), _BATCH), plain_loss())


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: logits.sum(),
        lambda logits: (logits.sum(), logits),
        lambda logits: (logits, logits.sum()),
        lambda logits: {"loss": logits.sum(), "logits": logits},
        lambda logits: SimpleNamespace(loss=logits.sum(), logits=logits),
    ],
    ids=["alone", "first", "second", "mapping", "object"],
)
def test_a_loss_that_the_model_returns_is_taken_as_it_is(form):
    model = Answering(form)
    torch.testing.assert_close(batch_loss(model, _BATCH), model.table[_BATCH[:, :-1]].sum())


def test_inputs_and_targets_may_come_as_a_pair():
    pair = (_BATCH[:, :-1], _BATCH[:, 1:])
    torch.testing.assert_close(batch_loss(Answering(), pair), plain_loss())
    torch.testing.assert_close(batch_loss(Answering(), list(pair)), plain_loss())


def test_a_model_that_takes_targets_is_given_them():
    torch.testing.assert_close(batch_loss(TakingTargets(), _BATCH), 2 * plain_loss())


def test_optional_labels_are_left_to_us_since_such_models_shift_them_themselves():
    torch.testing.assert_close(batch_loss(TakingNames(), _BATCH), plain_loss())
    output = TakingNames()(_BATCH[:, :-1])
    assert output["loss"] is None


def test_a_second_parameter_without_a_default_is_given_the_targets():
    class Pair(Answering):
        def forward(self, tokens, classes):
            return functional.cross_entropy(self.table[tokens].flatten(0, 1), classes.flatten())

    torch.testing.assert_close(batch_loss(Pair(), _BATCH), plain_loss())


def test_a_mapping_is_spread_over_the_names_that_the_model_takes():
    batch = {"input_ids": _BATCH[:, :-1], "labels": _BATCH[:, 1:], "note": "left out"}
    torch.testing.assert_close(batch_loss(TakingNames(), batch), plain_loss())


def test_a_mapping_with_targets_serves_a_model_that_takes_none():
    batch = {"tokens": _BATCH[:, :-1], "targets": _BATCH[:, 1:]}
    torch.testing.assert_close(batch_loss(Answering(), batch), plain_loss())


def test_a_batch_without_targets_goes_whole_to_a_model_with_its_own_loss():
    x = torch.tensor([[1.0, 3.0]])
    assert batch_loss(Reconstructing(), x).item() == 5.0
    assert batch_loss(Reconstructing(), (x,)).item() == 5.0


def test_classes_of_samples_are_predicted_too():
    model, x = nn.Linear(4, 3), torch.ones(5, 4)
    labels = torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(
        batch_loss(model, (x, labels)), functional.cross_entropy(model(x), labels)
    )


def test_ignored_targets_count_neither_in_the_loss_nor_as_tokens():
    targets = _BATCH[:, 1:].clone()
    targets[1:] = -100
    loss = batch_loss(Answering(), (_BATCH[:, :-1], targets))
    torch.testing.assert_close(loss, batch_loss(Answering(), _BATCH[:1]))
    assert count_tokens((_BATCH[:, :-1], targets)) == 3


@pytest.mark.parametrize(
    ("model", "batch", "reason"),
    [
        (Answering(str), _BATCH, "neither a loss nor logits"),
        (Answering(lambda logits: {"last": logits}), _BATCH, "neither a loss nor logits"),
        (nn.Linear(2, 2), torch.ones(3, 2), "no targets"),
        (nn.Linear(2, 2), (torch.ones(3, 2), torch.ones(3, 2)), "float32 targets"),
        (nn.Linear(2, 2), (torch.ones(3, 2), torch.ones(4).long()), r"targets \(4,\)"),
    ],
    ids=["text", "empty", "alone", "float", "shape"],
)
def test_what_makes_no_loss_is_refused_with_the_shapes(model, batch, reason):
    with pytest.raises(TrainingError, match=reason):
        batch_loss(model, batch)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (_BATCH, 9),
        ((_BATCH, _BATCH), 12),
        ({"input_ids": _BATCH, "labels": _BATCH}, 12),
        ((torch.ones(7, 2), torch.ones(7, 2)), 7),
        ((torch.ones(7, 2),), 7),
        (torch.ones(7, 2), 7),
        ({"text": "words"}, 1),
    ],
    ids=["text", "pair", "mapping", "classes", "single", "float", "words"],
)
def test_tokens_are_the_integer_targets_or_else_the_samples(batch, tokens):
    assert count_tokens(batch) == tokens


def test_a_moved_batch_keeps_its_form_and_what_is_no_tensor():
    moved = move_batch({"x": [_BATCH, "word"]}, torch.device("cpu"))
    assert moved["x"][1] == "word"
    assert torch.equal(moved["x"][0], _BATCH)
