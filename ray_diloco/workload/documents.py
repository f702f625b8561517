"""Byte text as documents: read from the standard library, from the user's files, or drawn from a
Markov source.
"""

import functools
import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_diloco.errors import ConfigError

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "lib-dynload"})
_MACHINE_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize")

_SYNTHETIC_DOCUMENTS = 64
_SYNTHETIC_GROUPS = 8
_SYNTHETIC_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz .,;\n()", dtype=np.uint8)
_SUCCESSORS = np.array([0.6, 0.25, 0.1, 0.05])
"""Chances of a letter's four successors: 1.06 nats per byte, which no model can beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A piece of text. ``group`` is what belongs together when shards shall differ: a package, a
    folder, a source.
    """

    name: str
    group: str
    text: bytes


def manifest_hash(documents: Iterable[Document]) -> str:
    """sha256 over names and contents, in order: two runs with the same one read the same text."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{len(document.text)}\0".encode())
        digest.update(document.text)
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def read_stdlib() -> tuple[Document, ...]:
    """Source of the running Python's standard library without its tests, package by package."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(_stdlib_files(root), key=lambda path: (_package(path, root), path.as_posix()))
    if not paths:
        raise ConfigError(
            "data.name", "stdlib", f"no source files under {root}; use data=text or synthetic"
        )
    return tuple(
        Document(
            name=path.relative_to(root).as_posix(),
            group=_package(path, root),
            text=path.read_bytes(),
        )
        for path in paths
    )


def read_files(patterns: Sequence[str]) -> tuple[Document, ...]:
    """The user's files, each once, in order of their paths; a group is a folder, or a file where
    all lie in one folder.

    ConfigError names the pattern that matches no file.
    """
    paths = sorted({path for pattern in patterns for path in _matches(pattern)})
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return tuple(
        Document(name=name, group=Path(name).parts[0], text=_read(path))
        for path, name in ((path, path.relative_to(root).as_posix()) for path in paths)
    )


@functools.lru_cache(maxsize=4)
def draw_synthetic(total_bytes: int, seed: int) -> tuple[Document, ...]:
    """Text from eight Markov chains over 33 letters, one group each; all documents grow side by
    side, a letter at a time.
    """
    draws = np.random.default_rng(seed)
    letters = len(_SYNTHETIC_ALPHABET)
    following = np.stack(
        [
            [draws.permutation(letters)[: len(_SUCCESSORS)] for _ in range(letters)]
            for _ in range(_SYNTHETIC_GROUPS)
        ]
    )
    groups = np.arange(_SYNTHETIC_DOCUMENTS) % _SYNTHETIC_GROUPS
    length = -(-total_bytes // _SYNTHETIC_DOCUMENTS)
    choices = draws.choice(len(_SUCCESSORS), size=(length, _SYNTHETIC_DOCUMENTS), p=_SUCCESSORS)
    text = np.empty((length, _SYNTHETIC_DOCUMENTS), dtype=np.int64)
    state = draws.integers(letters, size=_SYNTHETIC_DOCUMENTS)
    for position in range(length):
        state = following[groups, state, choices[position]]
        text[position] = state
    columns = _SYNTHETIC_ALPHABET[text].T
    return tuple(
        Document(
            name=f"source{group}/{number:02d}",
            group=f"source{group}",
            text=columns[number].tobytes(),
        )
        for number, group in sorted(enumerate(groups.tolist()), key=lambda pair: (pair[1], pair[0]))
    )


def _stdlib_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _TEST_FOLDERS | _FOREIGN_FOLDERS]
        for name in files:
            if name.endswith(".py") and not name.startswith(_MACHINE_FILES):
                yield Path(folder, name)


def _package(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def _matches(pattern: str) -> list[Path]:
    expanded = os.path.expanduser(pattern)  # noqa: PTH111 (a glob is no path)
    found = [Path(match).resolve() for match in glob.glob(expanded, recursive=True)]  # noqa: PTH207 (absolute globs too)
    files = [path for path in found if path.is_file()]
    if found and not files:
        raise ConfigError(
            "data.files", pattern, f"is a folder; expected files, such as {pattern}/**/*.txt"
        )
    if not files:
        raise ConfigError(
            "data.files", pattern, "no such file; expected a path or glob of existing files"
        )
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("data.files", str(path), f"cannot be read: {error.strerror}") from error
