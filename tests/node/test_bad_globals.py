"""A global that must not be installed is refused with its reason, once; training goes on."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_driver import HandClock
from node_scene import Stream, Wire, begin, global_card, net, publish, scripted_weights
from safetensors.torch import save

from ray_diloco.errors import ForeignRunError, GlobalError
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.polling import Polled
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH

SEEN = (1, 1)
SOUND = save(scripted_weights(2))
Files = dict[str, bytes]


class Watcher:
    """A node that has the global of outer step 1 and looks for the next."""

    def __init__(self, folder: Path, *, seen: tuple[int, int] = SEEN) -> None:
        self.repository = MemoryRepository()
        self.clock = HandClock()
        self.seen = seen
        self.exchange = Exchange(
            node_id="n0",
            nonce="abc",
            run_id="run-1",
            inner_steps=4,
            repository=self.repository,
            weights=Weights(net(), codec="fp32", mismatch="error"),
            retry=self.clock.retry(),
            clock=self.clock,
            state_dir=folder,
        )

    def poll(self) -> Polled:
        return self.clock.finish(self.exchange.poll(seen=self.seen, anew=False))

    def put(self, files: Files) -> None:
        additions = [Addition(path=path, source=source) for path, source in files.items()]
        self.repository.commit("a global", additions=additions)


@pytest.fixture
def watcher(tmp_path) -> Watcher:
    return Watcher(tmp_path)


def with_model(content: bytes) -> Files:
    """A global whose metadata are right about these bytes."""
    return {CARD_PATH: global_card(2, content).to_json(), MODEL_PATH: content}


def with_card(**fields: Any) -> Files:
    """Metadata with other fields beside a sound model."""
    card = json.loads(global_card(2, SOUND).to_json())
    return {CARD_PATH: json.dumps(card | fields).encode(), MODEL_PATH: SOUND}


def other_model(change: Callable[[dict[str, torch.Tensor]], object]) -> Files:
    state = scripted_weights(2)
    change(state)
    return with_model(save(state))


CASES: dict[str, tuple[Files, str]] = {
    "not JSON": ({CARD_PATH: b"\x00{"}, "is not JSON"),
    "a list": ({CARD_PATH: b"[1]"}, "is not a JSON object"),
    "deep JSON": ({CARD_PATH: b"[" * 100_000}, "is not JSON"),
    "another algorithm": (with_card(algorithm="fedavg"), "algorithm is 'fedavg'"),
    "going backwards": (with_card(outer_step=0), "goes back from .* \\(1, 1\\) to \\(1, 0\\)"),
    "an older epoch": (with_card(master_epoch=0), "goes back"),
    "a step that is text": (with_card(outer_step="2"), "outer_step is '2', not a count"),
    "a step that is true": (with_card(outer_step=True), "outer_step is True"),
    "a model elsewhere": (with_card(model_file="../secrets.safetensors"), "model_file"),
    "a model of a node": (with_card(model_file="nodes/n1/delta_1.safetensors"), "model_file"),
    "a model that hides": (with_card(model_file="global/../x.safetensors"), "model_file"),
    "a model that is not there": (with_card(model_file="global/gone.safetensors"), "gone"),
    "a malformed table": (with_card(nodes={"../n0": {}}), "nodes has a malformed row"),
    "another hash": (
        with_card(model_sha256="0" * 64),
        "sha256 is not the one in",
    ),
    "a flipped bit": (with_card() | {MODEL_PATH: SOUND[:-1] + b"\x7f"}, "sha256 is not the one"),
    "no safetensors": (with_model(b"weights"), "no safetensors header"),
    "an endless header": (with_model((1 << 60).to_bytes(8, "little") + b"{}"), "at most"),
    "truncated": (with_model(SOUND[:-4]), "global/latest.safetensors"),
    "a missing entry": (other_model(lambda s: s.pop("first.bias")), "first.bias"),
    "one entry more": (other_model(lambda s: s.update(x=torch.ones(1))), "x"),
    "another shape": (
        other_model(lambda s: s.update({"first.bias": torch.ones(5)})),
        "not of this model.*first.bias",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_its_reason_once(case, watcher):
    files, reason = CASES[case]
    watcher.put(files)
    refused = watcher.poll()
    assert refused.state is None
    assert refused.refused is not None
    assert re.search(reason, refused.refused), refused.refused
    assert watcher.poll() == Polled()
    publish(watcher.repository, 3, scripted_weights(3))
    taken = watcher.poll()
    assert taken.card is not None
    assert taken.card.outer_step == 3
    assert taken.state is not None


def test_metadata_of_endless_length_are_refused(watcher):
    watcher.put({CARD_PATH: b" " * ((16 << 20) + 1), MODEL_PATH: SOUND})
    assert "at most" in (watcher.poll().refused or "")


def test_the_first_global_of_all_must_be_of_this_model(tmp_path):
    """There is nothing to train on instead: whoever started the node should know at once."""
    watcher = Watcher(tmp_path, seen=(-1, -1))
    watcher.put(CASES["another shape"][0])
    with pytest.raises(GlobalError, match="not of this model"):
        watcher.poll()


def test_a_first_global_that_is_damaged_may_be_followed_by_a_sound_one(tmp_path):
    watcher = Watcher(tmp_path, seen=(-1, -1))
    watcher.put(CASES["truncated"][0])
    assert watcher.poll().refused
    publish(watcher.repository, 3, scripted_weights(3))
    assert watcher.poll().state is not None


@st.composite
def broken(draw: st.DrawFn) -> Files:
    """Sound files with something wrong in one of them, or anything at all."""
    sound = with_model(SOUND)
    kind = draw(st.sampled_from(["bytes", "field", "cut", "flip", "any model"]))
    match kind:
        case "bytes":
            return sound | {CARD_PATH: draw(st.binary(max_size=200))}
        case "field":
            card = json.loads(sound[CARD_PATH])
            name = draw(st.sampled_from(sorted(card)))
            value = draw(JSON)
            return sound | {CARD_PATH: json.dumps(card | {name: value}).encode()}
        case "cut":
            content = SOUND[: draw(st.integers(0, len(SOUND) - 1))]
            return draw(st.sampled_from([with_model(content), sound | {MODEL_PATH: content}]))
        case "flip":
            place = draw(st.integers(0, len(SOUND) - 1))
            content = bytearray(SOUND)
            content[place] ^= 1 << draw(st.integers(0, 7))
            return sound | {MODEL_PATH: bytes(content)}
        case _:
            return with_model(draw(st.binary(max_size=200)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(files=broken())
@settings(max_examples=150, deadline=None)
def test_whatever_is_published_is_taken_or_refused_once_and_the_next_is_found(
    files, tmp_path_factory
):
    watcher = Watcher(tmp_path_factory.mktemp("watcher"))
    watcher.put(files)
    try:
        first = watcher.poll()
    except ForeignRunError:
        assert "run_id" in json.loads(files[CARD_PATH])
        return
    assert (first.state is not None) == (first.refused is None and first.card is not None)
    if first.refused is not None:
        assert watcher.poll() == Polled()
    if first.state is not None and first.card is not None:
        watcher.seen = first.card.version
    epoch = watcher.seen[0] + 1
    following = publish(watcher.repository, 3, scripted_weights(3), master_epoch=epoch)
    taken = watcher.poll()
    assert taken.card == following
    assert taken.state is not None


def test_a_node_trains_on_with_its_old_global(tmp_path):
    repository, stream = MemoryRepository(), Stream()
    publish(repository, 1, scripted_weights(1))
    bad = iter(CASES.items())
    shown: list[str] = []

    def spoil(name: str) -> None:
        if name == "head" and stream.position > 2 and (case := next(bad, None)) is not None:
            shown.append(case[0])
            files = [Addition(path=path, source=source) for path, source in case[1][0].items()]
            repository.commit(case[0], additions=files)

    life = begin(Wire(repository, before=spoil), tmp_path, stream=stream, steps=40)
    report = life.node.run()
    assert shown == list(CASES)
    assert len(life.of("global_refused")) == len(CASES)
    assert (report.local_steps, report.installs, report.dropped) == (40, 1, "")
