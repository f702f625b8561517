"""Checkpoints on disk: folders that are complete or not there, the newest of them readable.

A folder is written under another name and renamed. Nothing waits for the disk: after a power
failure the newest may be damaged, which its hashes tell, and the one before it is taken. What was
sent since then is found in the repository.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.node.standing import Standing

logger = logging.getLogger(__name__)

FACTS = "checkpoint.json"
VERSION = 1
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a checkpoint says of itself.

    ``nonce``, ``first_step``: of the incarnation that goes on. ``schema``: fingerprint of the
    model. ``last_number``: the highest number under which a delta was ever sent. ``snapshot``:
    where the weights are that the job on its way was measured at: None without one that moves a
    baseline.
    """

    run_id: str
    node_id: str
    nonce: str
    first_step: int
    schema: str
    last_number: int
    peer_led: bool
    snapshot: str | None
    standing: Standing

    def to_plain(self) -> dict[str, Any]:
        names = ("run_id", "node_id", "nonce", "first_step", "schema", "last_number")
        plain = {name: getattr(self, name) for name in names}
        return plain | {
            "version": VERSION,
            "peer_led": self.peer_led,
            "snapshot": self.snapshot,
            "standing": self.standing.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Facts":
        """KeyError, TypeError or ValueError when it is something else."""
        if plain["version"] != VERSION:
            raise ValueError(f"version {plain['version']!r}")
        return cls(
            run_id=str(plain["run_id"]),
            node_id=str(plain["node_id"]),
            nonce=str(plain["nonce"]),
            first_step=int(plain["first_step"]),
            schema=str(plain["schema"]),
            last_number=int(plain["last_number"]),
            peer_led=plain["peer_led"] is True,
            snapshot=None if plain["snapshot"] is None else str(plain["snapshot"]),
            standing=Standing.from_plain(plain["standing"]),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint, its files checked."""

    folder: Path
    facts: Facts


class CheckpointShelf:
    """The checkpoints of one node, numbered as they come. One thread saves at a time."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        """``keep``: how many stay, at least 1."""
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for partial in folder.glob(".*.part"):
            shutil.rmtree(partial, ignore_errors=True)

    def save(self, facts: Facts, fill: Callable[[Path], None]) -> None:
        """``fill`` writes files into a new folder. OSError, and nothing left of it, when the disk
        does not take them.
        """
        numbers = self._numbers()
        place = self._folder / f"{numbers[-1] + 1 if numbers else 1:08d}"
        partial = self._folder / f".{place.name}.part"
        partial.mkdir(mode=0o700)
        try:
            fill(partial)
            _seal(partial, facts)
            partial.rename(place)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for number in self._numbers()[: -self._keep]:
            shutil.rmtree(self._folder / f"{number:08d}", ignore_errors=True)

    def newest(self, *, node_id: str, run_id: str) -> Checkpoint | None:
        """The newest that is whole and of this node and run (any with ``run_id`` ""); None without
        one.
        """
        for number in reversed(self._numbers()):
            found = _open(self._folder / f"{number:08d}")
            if found is None:
                continue
            if found.facts.node_id == node_id and run_id in ("", found.facts.run_id):
                return found
        return None

    def put_aside(self) -> None:
        """The node begins anew: what is here is kept, but never gone on from."""
        old = self._folder / "outlived"
        if self._numbers():
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir(mode=0o700)
        for number in self._numbers():
            (self._folder / f"{number:08d}").rename(old / f"{number:08d}")

    def _numbers(self) -> list[int]:
        return sorted(int(each.name) for each in self._folder.iterdir() if each.name.isdigit())


def file_sha256(path: Path) -> str:
    """Hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def link(source: Path, destination: Path) -> None:
    """The same file under a second name; a copy where the disk has no hard links."""
    destination.unlink(missing_ok=True)
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
        destination.chmod(0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a node keeps on its disk. ``shelf`` None: nothing. ``kept``: what to go on from."""

    shelf: CheckpointShelf | None = None
    every_steps: int | None = None
    kept: Checkpoint | None = None


def _seal(folder: Path, facts: Facts) -> None:
    files = {each.name: file_sha256(each) for each in sorted(folder.iterdir())}
    for name in files:
        (folder / name).chmod(0o600)
    text = json.dumps(facts.to_plain() | {"files": files}, indent=2, sort_keys=True) + "\n"
    with open(folder / FACTS, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _open(folder: Path) -> Checkpoint | None:
    try:
        plain = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        facts = Facts.from_plain(plain)
        damaged = [n for n, sha256 in plain["files"].items() if file_sha256(folder / n) != sha256]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("checkpoint %s cannot be read: %s", folder, error)
        return None
    if damaged:
        logger.warning("checkpoint %s is damaged: %s", folder, ", ".join(damaged))
        return None
    return Checkpoint(folder, facts)
