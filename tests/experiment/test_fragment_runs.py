"""Whole runs in which a delta carries one fragment of the model."""

import json

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.checks import check_config
from ray_diloco.experiment.run import run

SETTINGS = (
    *("time=virtual", "data.synthetic_bytes=60000", "model.window=4", "model.hidden=64"),
    *("data.eval_batches=4", "data.sequence_length=32", "run.max_steps=64", "inner.warmup_steps=4"),
    *("diloco.inner_steps=8", "diloco.poll_interval=0.05", "diloco.outer_momentum=0.0"),
    *("diloco.reset_inner_optimizer=false", "run.progress=none", "inner.schedule=constant"),
)
SHORT = ("fragments=streaming", "run.max_steps=16", "cluster.nodes=2")
CRASHING = (
    *("time=virtual", "data.eval_batches=1", "data.sequence_length=16", "data.batch_size=2"),
    *("diloco=quick", "diloco.inner_steps=10", "diloco.poll_interval=0.05", "run.max_steps=80"),
    *("cluster.nodes=3", "run.progress=none", "diloco.node_timeout=1", "fragments=streaming"),
    "cluster.profiles=[{seconds_per_step: 0.01}, "
    "{seconds_per_step: 0.01, crash_at: 0.43, recover_after: 0.2}, "
    "{seconds_per_step: 0.02, away: [[0.37, 0.6], [1.21, .inf]]}]",
)


def numbers_of(small, folder, *overrides):
    run(small(*overrides), folder)
    return json.loads((folder / "result.json").read_text())


def events(folder):
    return list(map(json.loads, (folder / "events.jsonl").read_text().splitlines()))


def sent(folder):
    return [each for each in events(folder) if each["event"] == "upload_started"]


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The same run with whole models."""
    return numbers_of(small, tmp_path_factory.mktemp("whole"), *SETTINGS)


@pytest.mark.parametrize(
    "choice", [("codec=fp32",), pytest.param(("codec=int4",), marks=pytest.mark.slow)]
)
def test_a_run_in_fragments_accounts_for_every_step_and_learns_as_much(
    small, whole, tmp_path, choice
):
    numbers = numbers_of(small, tmp_path, *SETTINGS, "fragments=streaming", *choice)
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert (numbers["rejected_deltas"], numbers["dropped_local_steps"]) == (0, 0)
    assert numbers["tokens_merged"] == whole["tokens_merged"]
    assert numbers["eval_loss"] < whole["eval_loss"] + 0.1


def test_fragments_take_turns_and_at_the_end_each_sends_its_rest(small, tmp_path):
    numbers_of(small, tmp_path, *SETTINGS, "fragments=streaming", "cluster.nodes=1")
    jobs = [(each["local_step"], each["fragment"]) for each in sent(tmp_path)]
    expected = [(step, step // 4 % 2) for step in range(4, 65, 4)]
    assert jobs == [*expected, (64, 1)]


def test_a_node_fetches_what_changed_only(small, tmp_path):
    numbers = numbers_of(small, tmp_path, *SETTINGS, *SHORT)
    fetched = [each for each in events(tmp_path) if each["event"] == "global_fetched"]
    parts = [each.get("fragments") for each in fetched]
    assert parts.count(None) >= 2  # the first of each node
    assert {len(part) for part in parts if part is not None} == {1}
    size = (tmp_path / "model.safetensors").stat().st_size
    down = sum(node["bytes_down"] for node in numbers["nodes"].values())
    whole = sum(2 if part is None else len(part) for part in parts) / 2 * size
    assert down == pytest.approx(whole, rel=0.25)


@pytest.mark.slow
def test_the_same_run_has_the_same_trace(small, tmp_path):
    traces = {
        numbers_of(small, tmp_path / each, *SETTINGS, *SHORT)["trace_hash"]
        for each in ("one", "two")
    }
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ("merge=poll",),
        ("merge=synchronous",),
        ("inner_schedule=dylu", "merge=grace", "codec=int4"),
        ("checkpoint.keep_last=0",),
    ],
)
def test_machines_that_die_leave_no_step_uncounted(small, tmp_path, choice):
    numbers = numbers_of(small, tmp_path, *CRASHING, *choice)
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["crashes"] == {"n1": 1, "n2": 2}
    assert 0 < numbers["crash_losses"]["n2"] < 80
    assert numbers["eval_loss"] < numbers["initial_eval_loss"]


def test_more_fragments_than_the_model_has_layers_are_refused_before_anything_starts(small):
    config = small(*SETTINGS, "diloco.inner_steps=64", "diloco.fragments=64")
    with pytest.raises(ConfigError, match=r"diloco.fragments=64.*expected at most"):
        check_config(config)
