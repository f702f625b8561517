"""A node that was cut off goes on to the same bits also where it owes what a codec left out, or has
fragments of different versions.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_scene import SETTINGS, PowerCut, Stream, Wire, begin, global_card, net, scripted_weights
from safetensors.torch import load, save

from ray_diloco.hub.digest import sha256_of
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH, fragment_path, parse_delta_path
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.schema import StateSchema

STEPS = 22
REVEALED = {0: 0, 3: 1, 8: 2, 13: 3, 17: 4}
"""After so many local steps this outer step is out."""
CHANGES = {0: (0, 0), 1: (0, 1), 2: (2, 1), 3: (3, 3), 4: (3, 4)}
"""By outer step: the outer step of the last change of each of two fragments."""
FRAGMENTS = {"fragments": 2, "fragment_mix": 0.5}
OWING: dict[str, dict[str, Any]] = {
    "int4": {"codec": "int4"},
    "topk": {"codec": "topk_8"},
    "decay": {"codec": "topk_8", "codec_decay": 0.95},
    "fragments": FRAGMENTS,
    "fragments in int4": FRAGMENTS | {"codec": "int4"},
    "fragments with decay": FRAGMENTS | {"codec": "int4", "codec_decay": 0.95},
}


def weights_of(outer_step: int, fragments: int) -> list[State]:
    """The global in its fragments, each as of its last change."""
    parts = split(StateSchema.of(net()), fragments)
    steps = CHANGES[outer_step] if fragments > 1 else (outer_step,)
    return [
        {entry.name: scripted_weights(step)[entry.name] for entry in part}
        for part, step in zip(parts, steps, strict=True)
    ]


def publish(repository: MemoryRepository, outer_step: int, fragments: int) -> None:
    """One commit with the whole global, and each fragment that has changed by itself."""
    parts = weights_of(outer_step, fragments)
    whole = save({name: value for part in parts for name, value in part.items()})
    files, told = {MODEL_PATH: whole}, {}
    if fragments > 1:
        apart = [save(part) for part in parts]
        files |= {fragment_path(place): content for place, content in enumerate(apart)}
        told["fragment_steps"] = CHANGES[outer_step]
        told["fragment_sha256"] = tuple(map(sha256_of, apart))
    files[CARD_PATH] = global_card(outer_step, whole, **told).to_json()
    additions = [Addition(path=path, source=source) for path, source in files.items()]
    repository.commit(f"outer step {outer_step}", additions=additions)


def play(folder: Path, settings: DilocoSettings, *cuts: dict[str, Any], every: int | None = None):
    """Lives one after the other, each cut off but the last: at the draw of a batch, or before or
    after a call of the repository. A global comes out at a place in the data.
    """
    repository, published = MemoryRepository(), -1
    for life, cut in enumerate([*cuts, {}]):
        stream, calls = Stream(cut_at=cut.get("draw")), Counter[str]()

        def passes(name: str, side: str, cut=cut, calls=calls, stream=stream) -> None:
            nonlocal published
            newest = max(step for at, step in REVEALED.items() if at <= stream.position)
            if (name, side) == ("head", "before") and newest != published:
                published = newest
                publish(repository, newest, settings.fragments)
            calls[side] += 1
            if calls[side] == cut.get(side):
                raise PowerCut(name)

        wire = Wire(
            repository,
            before=lambda name, passes=passes: passes(name, "before"),
            after=lambda name, passes=passes: passes(name, "after"),
        )
        options = {"settings": settings, "steps": STEPS, "every_steps": every}
        now = begin(wire, folder, stream=stream, resume=life > 0, **options)
        try:
            report = now.node.run()
        except PowerCut:
            continue
        assert life == len(cuts)
        return now, report, sent(repository)
    raise AssertionError("the last life was cut off as well")


def sent(repository: MemoryRepository) -> dict[str, State]:
    """Every delta's tensors, by path."""
    commit = repository.head_commit()
    paths = [entry.path for entry in repository.list_files("nodes", commit=commit)]
    return {
        path: load(repository.read(path, commit=commit, limit=1 << 20))
        for path in paths
        if parse_delta_path(path) is not None
    }


def differing(found: State, wanted: State) -> list[str]:
    """Names whose bits are not the same."""
    assert found.keys() == wanted.keys()
    return [name for name in wanted if not torch.equal(found[name], wanted[name])]


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("owing", OWING)
def test_what_a_node_owes_survives_cuts_bit_for_bit(owing, every, tmp_path):
    settings = replace(SETTINGS, **OWING[owing])
    whole, expected, deltas = play(tmp_path / "whole", settings)
    assert (expected.local_steps, expected.installs) == (STEPS, len(REVEALED))
    cuts = [{"draw": 7}, {"after": 14}, {"before": 11}, {"draw": 16}, {"before": 10}, {"draw": 21}]
    again, report, found = play(tmp_path / "cut", settings, *cuts, every=every)
    assert differing(again.trainer.model.state_dict(), whole.trainer.model.state_dict()) == []
    assert found.keys() == deltas.keys()
    assert [path for path in deltas if differing(found[path], deltas[path])] == []
    assert (report.local_steps, report.tokens, report.lost) == (STEPS, expected.tokens, "")
