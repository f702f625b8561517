import dataclasses
import hashlib
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ray_diloco.errors import DeltaError
from ray_diloco.master.validation import (
    Acceptance,
    NormLimits,
    check_card,
    check_file,
    check_values,
)
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.tensors.delta_file import write_delta
from ray_diloco.tensors.pseudo_gradient import Tally
from ray_diloco.tensors.schema import StateSchema

STATE = {"w": torch.ones(2, 3), "c": torch.ones(2, dtype=torch.complex64), "n": torch.tensor(1)}
SCHEMA = StateSchema.of_state(STATE)
ACCEPTANCE = Acceptance(schema=SCHEMA, outer_step=7, run_id="run")
CARD = DeltaCard(node_id="a", local_step=5, base_outer_step=7, nonce="x", run_id="run")
PATH = "nodes/a/delta_5.safetensors"
GOOD = {"w": torch.ones(2, 3), "c": torch.ones(2, dtype=torch.complex64)}


def plain(card: DeltaCard) -> dict[str, str]:
    """A header without the hash, as a peer writes it."""
    return {key: value for key, value in card.header().items() if key != "sha256"}


def written(folder: Path, tensors=GOOD, card: DeltaCard = CARD) -> Path:
    file = folder / "delta.safetensors"
    save_file(tensors, file, metadata=plain(card))
    return file


def reason_of(file: Path, acceptance: Acceptance = ACCEPTANCE, path: str = PATH) -> str:
    with pytest.raises(DeltaError) as caught:
        check_file(file, path=path, acceptance=acceptance)
    assert caught.value.path == path
    assert "\n" not in caught.value.reason
    return caught.value.reason


def test_a_good_delta_gives_its_card(tmp_path):
    assert check_file(written(tmp_path), path=PATH, acceptance=ACCEPTANCE) == CARD


def test_a_delta_that_a_node_wrote_passes_with_its_hash(tmp_path):
    current = {name: tensor - 1 for name, tensor in STATE.items()}
    card = dataclasses.replace(CARD, schema=SCHEMA.fingerprint)
    delta = write_delta(
        tmp_path / "d", baseline=STATE, current=current, schema=SCHEMA, header=card.header()
    )
    found = check_file(tmp_path / "d", path=PATH, acceptance=ACCEPTANCE)
    assert found.sha256 == delta.file.payload_sha256
    data = bytearray((tmp_path / "d").read_bytes())
    data[-1] ^= 1
    (tmp_path / "d").write_bytes(data)
    assert reason_of(tmp_path / "d") == "its payload is not what its sha256 says"


def test_a_delta_from_the_future_is_refused():
    card = dataclasses.replace(CARD, base_outer_step=8)
    with pytest.raises(DeltaError, match="base_outer_step 8 is above the outer step 7"):
        check_card(card, path=PATH, acceptance=ACCEPTANCE)


def test_a_delta_that_never_had_a_global_needs_permission():
    card = dataclasses.replace(CARD, base_outer_step=-1)
    with pytest.raises(DeltaError, match="never had a global"):
        check_card(card, path=PATH, acceptance=ACCEPTANCE)
    check_card(card, path=PATH, acceptance=dataclasses.replace(ACCEPTANCE, accept_unbased=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "0" * 64}, "not that of the global"),
        ({"run_id": "other"}, "belongs to run 'other'"),
        ({"codec": "zip"}, "unknown codec 'zip'"),
    ],
)
def test_what_a_card_says_must_fit_the_run(change, reason):
    with pytest.raises(DeltaError, match=reason):
        check_card(dataclasses.replace(CARD, **change), path=PATH, acceptance=ACCEPTANCE)


def test_what_a_peer_does_not_say_is_not_asked():
    card = DeltaCard(node_id="a", local_step=5, base_outer_step=0)
    check_card(card, path=PATH, acceptance=ACCEPTANCE)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"w": GOOD["w"]}, "c is missing"),
        ({**GOOD, "n": torch.tensor(1)}, "n is not a floating entry of the global"),
        ({**GOOD, "w": torch.ones(3, 2)}, "w has shape [3, 2], expected [2, 3]"),
        ({**GOOD, "w": torch.ones(2, 3).double()}, "w has dtype torch.float64"),
        ({**GOOD, "c": torch.ones(2)}, "c has dtype torch.float32, expected torch.complex64"),
    ],
)
def test_keys_shapes_and_dtypes_are_exactly_those_of_the_global(tmp_path, tensors, reason):
    assert reason_of(written(tmp_path, tensors)).startswith(reason)


def test_a_header_that_disagrees_with_its_path_is_refused(tmp_path):
    assert "node 'a'" in reason_of(written(tmp_path), path="nodes/b/delta_5.safetensors")


def test_a_file_that_is_cut_is_refused_with_the_reason(tmp_path):
    file = written(tmp_path)
    file.write_bytes(file.read_bytes()[:-3])
    assert reason_of(file).startswith("a payload of")


def test_the_hash_of_the_payload_is_checked_where_there_is_one(tmp_path):
    file = tmp_path / "delta.safetensors"
    card = dataclasses.replace(CARD, sha256=hashlib.sha256(b"other").hexdigest())
    save_file(GOOD, file, metadata=card.header())
    assert reason_of(file) == "its payload is not what its sha256 says"


def tallied(*values: float) -> Tally:
    tally = Tally()
    tally.add(torch.tensor(values))
    return tally


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    with pytest.raises(DeltaError, match="not finite"):
        check_values(tallied(1.0, value), path=PATH, limits=NormLimits())


def test_values_whose_squares_overflow_float32_are_finite():
    tally = tallied(1e38, -1e38)
    assert tally.norm == pytest.approx(math.sqrt(2) * 1e38)
    check_values(tally, path=PATH, limits=NormLimits())
    with pytest.raises(DeltaError, match="above the limit 10"):
        check_values(tally, path=PATH, limits=NormLimits(absolute=10.0))


def test_the_relative_limit_is_a_multiple_of_the_median_of_enough_norms():
    assert NormLimits(relative=3.0, history=(1.0, 1.0, 2.0, 9.0)).limit is None
    assert NormLimits(relative=3.0, history=(1.0, 1.0, 2.0, 9.0, 9.0)).limit == 6.0
    assert NormLimits(absolute=5.0, relative=3.0, history=(2.0,) * 5).limit == 5.0
    assert NormLimits().limit is None
