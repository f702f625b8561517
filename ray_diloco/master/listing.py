"""What a listing of the repository means to the master. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ray_diloco.hub.repository import FileEntry
from ray_diloco.protocol.paths import (
    NODES_FOLDER,
    is_node_id,
    parse_delta_path,
)

Key = tuple[str, str]
"""(path, blob id): one version of one file."""

Listing = Mapping[str, FileEntry]
"""The files at one commit, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a listing holds that was not read yet. ``strays``: files in nodes/ that are nothing."""

    deltas: tuple[FileEntry, ...]
    claims: tuple[FileEntry, ...]
    strays: tuple[str, ...] = ()


def key_of(entry: FileEntry) -> Key:
    return (entry.path, entry.blob_id)


def deltas_in(listing: Listing) -> list[FileEntry]:
    """Sorted by (node, step, path)."""
    found = [
        (where.node_id, where.local_step, path, entry)
        for path, entry in listing.items()
        if (where := parse_delta_path(path)) is not None
    ]
    return [entry for *_, entry in sorted(found, key=lambda item: item[:3])]


def claims_in(listing: Listing) -> list[FileEntry]:
    return [entry for path, entry in listing.items() if claimant(path) is not None]


def claimant(path: str) -> str | None:
    """The node whose claim lies at this path; None for any other file."""
    parts = path.split("/")
    if len(parts) == 3 and parts[0] == NODES_FOLDER and parts[2] == "node.json":
        return parts[1] if is_node_id(parts[1]) else None
    return None


def node_of(path: str) -> str | None:
    """The node that wrote a file; None for files that are no node's."""
    where = parse_delta_path(path)
    return where.node_id if where is not None else claimant(path)


def strays_in(listing: Listing) -> list[str]:
    return [
        path for path in listing if path.startswith(f"{NODES_FOLDER}/") and node_of(path) is None
    ]
