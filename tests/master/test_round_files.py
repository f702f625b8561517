"""A round as one stream of files."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ray_diloco.errors import GlobalError
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.merge_pass import STATISTICS_KEPT, Publication
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import STRINGS, GlobalFiles
from ray_diloco.master.round_files import (
    Merge,
    Round,
    aggregate_and_step,
    restate,
    write_first_global,
    write_fresh_state,
)
from ray_diloco.master.validation import NormLimits
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.tensors.schema import StateSchema

OUTER = OuterOptimizer(lr=0.5, momentum=0.9)
NO_LIMITS = NormLimits()


def first_global(state, schema, folder: Path) -> GlobalFiles:
    written = write_first_global(
        state,
        schema=schema,
        optimizer=OUTER,
        folder=folder,
        model_metadata={"algorithm": "dumb_diloco"},
        state_metadata={"ledger": "[]"},
    )
    return files_of(written, 0)


def files_of(publication: Publication, outer_step: int) -> GlobalFiles:
    return GlobalFiles(
        model=publication.model.path, state=publication.state.path, outer_step=outer_step
    )


def sent(
    folder: Path, node: str, delta, *, step: int = 1, base: int = 0, nonce: str | None = "n"
) -> FetchedDelta:
    card = DeltaCard(node_id=node, local_step=step, base_outer_step=base, nonce=nonce)
    file = folder / f"{node}_{step}.safetensors"
    save_file(delta, file, metadata=card.header())
    return FetchedDelta(path=f"nodes/{node}/delta_{step}.safetensors", file=file, card=card)


def merge_into(
    previous: GlobalFiles,
    schema: StateSchema,
    deltas,
    folder: Path,
    *,
    limits: NormLimits = NO_LIMITS,
    state_metadata: Mapping[str, str] | None = None,
) -> Round:
    def describe(merge: Merge) -> Mapping[str, str]:
        return state_metadata or {"merged": str(len(merge.merged))}

    return aggregate_and_step(
        deltas,
        previous=previous,
        schema=schema,
        optimizer=OUTER,
        limits=limits,
        folder=folder,
        model_metadata={"algorithm": "dumb_diloco"},
        describe_state=describe,
    )


def reference_step(parameter, momentum, deltas):
    mean = sum(deltas) / len(deltas)
    momentum = OUTER.momentum * momentum + mean
    return parameter + -OUTER.lr * (mean + OUTER.momentum * momentum), momentum


def test_a_round_over_one_number_gives_the_hand_computed_global(tmp_path):
    state = {"w": torch.tensor([10.0])}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    deltas = [
        sent(tmp_path, "a", {"w": torch.tensor([1.0])}),
        sent(tmp_path, "b", {"w": torch.tensor([3.0])}),
    ]
    result = merge_into(previous, schema, deltas, tmp_path / "1")
    assert result.publication is not None
    # mean 2, momentum 2, step 0.5 * (2 + 0.9 * 2) = 1.9
    assert load_file(result.publication.model.path)["w"].item() == pytest.approx(8.1)
    assert load_file(result.publication.state.path)["momentum.w"].item() == 2.0
    assert result.merge.norms == (1.0, 3.0)


def test_three_rounds_equal_the_single_loop_bit_for_bit(tmp_path):
    generator = torch.Generator().manual_seed(1)
    state = {
        "big": torch.randn(300, 500, generator=generator),
        "small": torch.randn(7, generator=generator),
        "scalar": torch.randn((), generator=generator),
    }
    schema = StateSchema.of_state(state)
    files = first_global(state, schema, tmp_path / "0")
    parameters = dict(state)
    momenta = {name: torch.zeros_like(value) for name, value in state.items()}
    for outer_step, count in enumerate((1, 3, 5), start=1):
        tensors = {
            f"n{i}": {name: torch.randn(v.shape, generator=generator) for name, v in state.items()}
            for i in range(count)
        }
        deltas = [sent(tmp_path, node, tensors[node]) for node in reversed(tensors)]
        result = merge_into(files, schema, deltas, tmp_path / str(outer_step))
        assert result.publication is not None
        files = files_of(result.publication, outer_step)
        for name in state:
            each = [tensors[node][name] for node in sorted(tensors)]
            parameters[name], momenta[name] = reference_step(parameters[name], momenta[name], each)
        model, outer = load_file(files.model), load_file(result.publication.state.path)
        for name in state:
            assert torch.equal(model[name], parameters[name])
            assert torch.equal(outer[f"momentum.{name}"], momenta[name])


def test_sizes_and_hashes_are_those_of_the_files(tmp_path):
    state = {"w": torch.ones(70_000, dtype=torch.bfloat16), "n": torch.tensor(3)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    delta = sent(tmp_path, "a", {"w": torch.ones(70_000)})
    publication = merge_into(previous, schema, [delta], tmp_path / "1").publication
    assert publication is not None
    for written in (publication.model, publication.state):
        data = written.path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (written.size, written.sha256)
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == [
        "latest.safetensors",
        "outer_state.safetensors",
    ]


def test_a_half_precision_model_is_stepped_on_its_float32_copy(tmp_path):
    state = {"w": torch.full((3,), 256.0, dtype=torch.bfloat16)}
    schema = StateSchema.of_state(state)
    files = first_global(state, schema, tmp_path / "0")
    copy = torch.full((3,), 256.0)
    momentum = torch.zeros(3)
    tiny = torch.full((3,), 0.1)  # a step that bfloat16 alone would lose each time
    for outer_step in range(1, 9):
        delta = sent(tmp_path, "a", {"w": tiny}, step=outer_step)
        publication = merge_into(files, schema, [delta], tmp_path / str(outer_step)).publication
        assert publication is not None
        files = files_of(publication, outer_step)
        copy, momentum = reference_step(copy, momentum, [tiny])
    state_file = load_file(files.state or Path())
    assert torch.equal(state_file["float32.w"], copy)
    model = load_file(files.model)["w"]
    assert model.dtype == torch.bfloat16
    assert torch.equal(model, copy.bfloat16())
    assert model[0] < 256


def test_float64_and_complex_parameters_are_stepped_in_their_own_precision(tmp_path):
    state = {
        "d": torch.tensor([1.0], dtype=torch.float64),
        "c": torch.tensor([1.0 + 2.0j], dtype=torch.complex64),
    }
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    delta = {"d": torch.tensor([1e-9]), "c": torch.tensor([1.0 - 1.0j])}
    publication = merge_into(
        previous, schema, [sent(tmp_path, "a", delta)], tmp_path / "1"
    ).publication
    assert publication is not None
    model = load_file(publication.model.path)
    assert model["d"].item() == pytest.approx(1.0 - 0.95e-9, abs=1e-16)
    torch.testing.assert_close(model["c"], torch.tensor([0.05 + 2.95j]))
    with safe_open(publication.state.path, "pt") as outer:
        assert set(outer.keys()) == {"momentum.d", "momentum.c", STRINGS}


def test_integer_and_boolean_entries_are_carried_over(tmp_path):
    state = {
        "w": torch.ones(2),
        "steps": torch.tensor(41),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
    }
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    delta = sent(tmp_path, "a", {"w": torch.ones(2), "empty": torch.empty(0, 3)})
    publication = merge_into(previous, schema, [delta], tmp_path / "1").publication
    assert publication is not None
    model = load_file(publication.model.path)
    assert set(model) == set(state)
    assert model["steps"].item() == 41
    assert torch.equal(model["mask"], state["mask"])


def test_one_bad_delta_costs_nothing_but_itself(tmp_path):
    state = {"w": torch.zeros(3)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    good = [sent(tmp_path, name, {"w": torch.full((3,), 2.0)}) for name in ("a", "c")]
    bad = [
        sent(tmp_path, "b", {"w": torch.tensor([1.0, math.nan, 1.0])}),
        sent(tmp_path, "d", {"w": torch.tensor([1.0, -math.inf, 1.0])}),
        sent(tmp_path, "e", {"w": torch.full((3,), 1e38)}),
    ]
    limited = NormLimits(absolute=100.0)
    with_bad = merge_into(previous, schema, [*bad, *good], tmp_path / "1", limits=limited)
    without = merge_into(previous, schema, good, tmp_path / "2", limits=limited)
    assert [delta.path for delta, _ in with_bad.merge.rejected] == [each.path for each in bad]
    reasons = [error.reason for _, error in with_bad.merge.rejected]
    assert reasons[:2] == ["it holds values that are not finite"] * 2
    assert reasons[2].startswith("norm 1.732e+38 is above the limit 100")
    assert with_bad.publication is not None
    assert without.publication is not None
    assert with_bad.publication.model.sha256 == without.publication.model.sha256


def test_a_round_with_nothing_good_publishes_nothing(tmp_path):
    state = {"w": torch.zeros(1)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    bad = sent(tmp_path, "a", {"w": torch.tensor([math.nan])})
    result = merge_into(previous, schema, [bad], tmp_path / "1")
    assert result.publication is None
    assert not list((tmp_path / "1").iterdir())


def test_an_all_zero_delta_of_a_peer_is_dropped_from_the_count(tmp_path):
    state = {"w": torch.zeros(1)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    zero = sent(tmp_path, "peer", {"w": torch.tensor([-0.0])}, nonce=None)
    one = sent(tmp_path, "a", {"w": torch.tensor([1.0])})
    result = merge_into(previous, schema, [zero, one], tmp_path / "1")
    assert result.merge.zero == (zero,)
    assert result.merge.merged == (one,)
    assert result.publication is not None
    assert load_file(result.publication.state.path)["momentum.w"].item() == 1.0


def batch_norm_global(tmp_path):
    module = nn.BatchNorm1d(2)
    schema = StateSchema.of(module)
    return module.state_dict(), schema, first_global(module.state_dict(), schema, tmp_path / "0")


def bn_delta(mean: list[float], var: list[float]):
    return {
        "weight": torch.full((2,), 0.1),
        "bias": torch.zeros(2),
        "running_mean": torch.tensor(mean),
        "running_var": torch.tensor(var),
    }


def test_new_statistics_are_the_mean_of_the_nodes_values(tmp_path):
    _, schema, previous = batch_norm_global(tmp_path)  # mean 0, variance 1
    deltas = [
        sent(tmp_path, "a", bn_delta([-1.0, 0.0], [0.5, 1.0])),  # values [1, 0] and [0.5, 0]
        sent(tmp_path, "b", bn_delta([-3.0, 1.0], [-1.0, 1.0])),  # values [3, -1] and [2, 0]
    ]
    publication = merge_into(previous, schema, deltas, tmp_path / "1").publication
    assert publication is not None
    model = load_file(publication.model.path)
    assert model["running_mean"].tolist() == [2.0, -0.5]
    assert model["running_var"].tolist() == [1.25, 0.0]
    assert model["num_batches_tracked"].item() == 0


def test_statistics_are_measured_from_the_global_at_their_base(tmp_path):
    _, schema, files = batch_norm_global(tmp_path)
    fresh = sent(tmp_path, "a", bn_delta([-4.0, -4.0], [-1.0, -1.0]))  # 4 and 2
    publication = merge_into(files, schema, [fresh], tmp_path / "1").publication
    assert publication is not None
    stale = sent(tmp_path, "b", bn_delta([-1.0, -1.0], [0.5, 0.5]), base=0)  # 1 and 0.5
    unknown = sent(tmp_path, "c", bn_delta([9.0, 9.0], [9.0, 9.0]), base=-1)
    second = merge_into(files_of(publication, 1), schema, [stale, unknown], tmp_path / "2")
    assert second.publication is not None
    model = load_file(second.publication.model.path)
    assert model["running_mean"].tolist() == [1.0, 1.0]
    assert model["running_var"].tolist() == [0.5, 0.5]
    alone = merge_into(files_of(publication, 1), schema, [unknown], tmp_path / "3")
    assert alone.publication is not None
    assert load_file(alone.publication.model.path)["running_mean"].tolist() == [4.0, 4.0]


def test_a_variance_never_turns_negative(tmp_path):
    _, schema, previous = batch_norm_global(tmp_path)
    moved = sent(tmp_path, "peer", bn_delta([0.0, 0.0], [2.5, 0.5]), nonce=None)  # 1 - 2.5 < 0
    fine = sent(tmp_path, "a", bn_delta([0.0, 0.0], [0.25, 0.25]))
    publication = merge_into(previous, schema, [moved, fine], tmp_path / "1").publication
    assert publication is not None
    assert load_file(publication.model.path)["running_var"].tolist() == [0.75, 0.75]


def test_the_state_remembers_the_statistics_of_the_last_outer_steps_alone(tmp_path):
    _, schema, files = batch_norm_global(tmp_path)
    for outer_step in range(1, STATISTICS_KEPT + 3):
        delta = sent(tmp_path, "a", bn_delta([0.0, 0.0], [0.0, 0.0]), base=outer_step - 1)
        folder = tmp_path / f"{outer_step % 2 + 1}"
        publication = merge_into(files, schema, [delta], folder).publication
        assert publication is not None
        files = files_of(publication, outer_step)
    assert files.state is not None
    names = load_file(files.state)
    steps = {int(name.split(".")[1]) for name in names if name.endswith("running_var")}
    assert steps == set(range(3, STATISTICS_KEPT + 3))


def test_a_master_without_the_module_learns_the_schema_from_the_files(tmp_path):
    _, schema, previous = batch_norm_global(tmp_path)
    found = previous.schema()
    assert found.fingerprint == schema.fingerprint
    assert set(found.statistics) == {"running_mean", "running_var"}


def test_metadata_that_outgrow_their_room_are_stored_all_the_same(tmp_path):
    state = {"w": torch.arange(100_000.0)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    delta = sent(tmp_path, "a", {"w": torch.arange(100_000.0)})
    long = {"ledger": "x" * 3_000_000}
    result = merge_into(previous, schema, [delta], tmp_path / "1", state_metadata=long)
    assert result.publication is not None
    files = files_of(result.publication, 1)
    assert files.state_metadata()["ledger"] == long["ledger"]
    data = result.publication.state.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == result.publication.state.sha256
    assert torch.equal(load_file(files.state or Path())["momentum.w"], state["w"])


def test_without_an_outer_state_the_momentum_begins_at_zero(tmp_path):
    state = {"w": torch.tensor([10.0], dtype=torch.bfloat16)}
    schema = StateSchema.of_state(state)
    bare = GlobalFiles(
        model=first_global(state, schema, tmp_path / "0").model, state=None, outer_step=4
    )
    delta = sent(tmp_path, "a", {"w": torch.tensor([2.0])})
    publication = merge_into(bare, schema, [delta], tmp_path / "1").publication
    assert publication is not None
    assert load_file(publication.state.path)["float32.w"].item() == pytest.approx(8.1)
    fresh = write_fresh_state(
        bare, schema=schema, optimizer=OUTER, folder=tmp_path / "2", metadata={"a": "b"}
    )
    assert load_file(fresh.path)["float32.w"].item() == 10.0


def test_a_restated_state_has_the_same_tensors_under_other_strings(tmp_path):
    _, schema, previous = batch_norm_global(tmp_path)
    written = restate(previous, schema=schema, folder=tmp_path / "1", metadata={"epoch": "2"})
    again = GlobalFiles(model=previous.model, state=written.path, outer_step=0)
    assert again.state_metadata()["epoch"] == "2"
    assert again.schema() == previous.schema()
    before, after = load_file(previous.state or Path()), load_file(written.path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_state_may_be_restated_after_a_round(tmp_path):
    state = {"w": torch.zeros(3)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    delta = sent(tmp_path, "a", {"w": torch.ones(3)})
    publication = merge_into(previous, schema, [delta], tmp_path / "1").publication
    assert publication is not None
    merged = files_of(publication, 1)
    assert merged.state_metadata()["merged"] == "1"
    written = restate(merged, schema=schema, folder=tmp_path / "2", metadata={"epoch": "2"})
    again = GlobalFiles(model=merged.model, state=written.path, outer_step=1)
    assert again.state_metadata()["epoch"] == "2"
    assert "merged" not in again.state_metadata()


@pytest.mark.parametrize("text", ["{", "[1]", '{"ledger": 1}'])
def test_strings_that_are_not_a_table_of_strings_are_refused(tmp_path, text):
    numbers = torch.tensor(list(text.encode()), dtype=torch.uint8)
    save_file({STRINGS: numbers}, tmp_path / "state")
    files = GlobalFiles(model=tmp_path / "model", state=tmp_path / "state", outer_step=0)
    with pytest.raises(GlobalError, match="not a table of strings"):
        files.state_metadata()


def test_an_outer_state_of_another_model_is_refused(tmp_path):
    state = {"w": torch.zeros(3)}
    schema = StateSchema.of_state(state)
    previous = first_global(state, schema, tmp_path / "0")
    save_file({"momentum.w": torch.zeros(4)}, previous.state or Path())
    delta = sent(tmp_path, "a", {"w": torch.ones(3)})
    with pytest.raises(GlobalError, match=r"momentum\.w does not fit"):
        merge_into(previous, schema, [delta], tmp_path / "1")
