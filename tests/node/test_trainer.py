import copy
import dataclasses
import itertools

import pytest
import torch
from torch import nn

from ray_diloco.errors import TrainingError
from ray_diloco.node.trainer import Trainer
from ray_diloco.workload.data import build_data, evaluation_batches, training_stream
from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.loss import batch_loss
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings

_DATA = DataSettings(name="synthetic", synthetic_bytes=50_000, sequence_length=16, batch_size=4)
_INNER = InnerSettings(schedule_steps=100, warmup_steps=3, learning_rate=3e-3)
_MODEL = ModelSettings(layers=1, width=32, heads=2, kv_heads=1, hidden=48, context=32)


def stream(seed=0):
    return training_stream(build_data(_DATA), _DATA, node_index=0, nodes=2, seed=seed)


def trainer(model=_MODEL, batches=None, **changes):
    return Trainer(
        build_model(model, seed=0),
        stream() if batches is None else batches,
        dataclasses.replace(_INNER, **changes),
    )


def run(trainer, steps):
    return [trainer.step() for _ in range(steps)]


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build_model(_MODEL, seed=0)
        self.dropout = nn.Dropout(0.3)

    def forward(self, tokens):
        return self.dropout(self.inner(tokens))


class Exploding(nn.Module):
    """Its gradients are beyond fp16 for the first ``count`` batches."""

    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.left = count

    def forward(self, x):
        self.left -= 1
        return (self.weight * x).sum() * (1e38 if self.left >= 0 else 1.0)


def test_steps_equal_plain_adamw():
    model, batches = build_model(_MODEL, seed=0), iter(stream())
    vectors = [value for value in model.parameters() if value.ndim == 1]
    matrices = [value for value in model.parameters() if value.ndim > 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-3,
        betas=(0.9, 0.99),
        weight_decay=0.1,
    )
    for _ in range(5):
        batch_loss(model, next(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    tested = trainer(schedule="constant", warmup_steps=0)
    run(tested, 5)
    torch.testing.assert_close(weights(tested), model.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_step_reports_what_it_did():
    tested = trainer()
    first, second = run(tested, 2)
    assert (first.tokens, first.stepped, first.finite) == (64, True, True)
    assert first.loss == pytest.approx(5.5, abs=0.3)
    assert first.grad_norm > 0
    assert (first.learning_rate, second.learning_rate) == pytest.approx((3e-3 / 4, 3e-3 / 2))
    assert (tested.local_step, tested.tokens) == (2, 128)


def test_no_norm_is_reported_without_clipping():
    assert trainer(clip_norm=None).step().grad_norm is None


def test_training_lowers_the_held_out_loss():
    tested = trainer(warmup_steps=5, learning_rate=1e-2)
    held_out = evaluation_batches(build_data(_DATA), _DATA)
    before = evaluate(tested.model, held_out)
    run(tested, 100)
    assert evaluate(tested.model, held_out) < 0.65 * before


def test_accumulated_micro_batches_equal_one_large_batch():
    pieces = list(itertools.islice(stream(), 2))
    small = trainer(batches=pieces, accumulation=2, name="sgd")
    large = trainer(batches=[torch.cat(pieces)], name="sgd")
    reports = small.step(), large.step()
    assert reports[0].tokens == reports[1].tokens == 128
    assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-6)
    torch.testing.assert_close(weights(small), weights(large), rtol=1e-5, atol=1e-7)
    assert small.local_step == 1


def test_an_installation_in_place_is_what_the_next_step_starts_from():
    tested, other = trainer(name="sgd"), trainer(name="sgd")
    run(other, 3)
    batch_of_fourth_step = next(other._feed._iterator)
    with torch.no_grad():
        for name, value in tested.model.state_dict().items():
            value.copy_(other.model.state_dict()[name])
    fourth = Trainer(tested.model, [batch_of_fourth_step], tested._settings)
    expected = batch_loss(other.model, batch_of_fourth_step).item()
    assert fourth.step().loss == pytest.approx(expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_trainer_equals_one_that_never_stopped(precision):
    whole = trainer(precision=precision)
    run(whole, 3)
    state = copy.deepcopy(whole.state_dict())
    resumed = trainer(batches=stream(seed=9), precision=precision)
    resumed.load_state_dict(state)
    assert run(resumed, 4) == run(whole, 4)
    assert same(weights(resumed), weights(whole))
    assert (resumed.local_step, resumed.tokens) == (whole.local_step, whole.tokens)


def test_dropout_has_draws_of_its_own_that_resume():
    whole = Trainer(Dropping(), stream(), _INNER, seed=4)
    run(whole, 2)
    state = copy.deepcopy(whole.state_dict())
    before = torch.get_rng_state()
    following = run(whole, 3)
    assert torch.equal(torch.get_rng_state(), before)
    resumed = Trainer(Dropping(), stream(), _INNER, seed=5)
    resumed.load_state_dict(state)
    torch.rand(7)
    assert run(resumed, 3) == following


def test_a_reset_drops_the_moments_and_keeps_the_schedule():
    tested = trainer()
    run(tested, 4)
    tested.reset_optimizer()
    assert not tested.optimizer.state
    assert tested.step().learning_rate == run(trainer(), 5)[-1].learning_rate


@pytest.mark.parametrize("clip_norm", [1.0, None])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_overflow_is_no_local_step(name, clip_norm):
    settings = dataclasses.replace(_INNER, precision="fp16", name=name, clip_norm=clip_norm)
    tested = Trainer(Exploding(3), [torch.ones(2)], settings)
    reports = run(tested, 5)
    assert [report.stepped for report in reports] == [False] * 3 + [True] * 2
    assert reports[0].learning_rate == reports[3].learning_rate < reports[4].learning_rate
    assert (tested.local_step, tested.tokens, tested.overflows) == (2, 4, 3)


def test_endless_overflows_end_the_training():
    settings = dataclasses.replace(_INNER, precision="fp16", max_skipped_steps=4)
    tested = Trainer(Exploding(100), [torch.ones(2)], settings)
    with pytest.raises(TrainingError, match="overflowed 4 times"):
        run(tested, 10)
    assert torch.equal(tested.model.weight, torch.ones(2))


def test_a_loss_that_is_not_finite_is_reported():
    report = Trainer(Exploding(0), [torch.tensor([float("nan"), 1.0])], _INNER).step()
    assert not report.finite


def test_an_iterable_that_saves_no_position_is_fast_forwarded():
    batches = list(itertools.islice(stream(), 4))
    whole = trainer(batches=batches)
    run(whole, 6)
    state = copy.deepcopy(whole.state_dict())
    resumed = trainer(batches=batches)
    resumed.load_state_dict(state)
    assert resumed.fast_forwarded == 2
    assert run(resumed, 3) == run(whole, 3)


def test_a_model_that_is_already_compiled_keeps_its_plain_names():
    model = build_model(_MODEL, seed=0)
    tested = Trainer(torch.compile(model, backend="eager"), stream(), _INNER)
    assert tested.model.state_dict().keys() == model.state_dict().keys()


@pytest.mark.slow  # compiles C++ for some ten seconds, a minute on a busy machine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_compiled_steps_agree_with_plain_ones_under_the_same_names():
    plain, compiled = trainer(), trainer(compile=True)
    losses = [[report.loss for report in run(tested, 3)] for tested in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert weights(compiled).keys() == weights(plain).keys()
