"""What a commit request asks for: its lines of JSON, checked. Pure."""

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Any

from ray_diloco.hub.digest import large_entry, regular_entry
from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.faults import BLOB_IS_GONE
from ray_diloco.hub.repository import FileEntry


@dataclass(slots=True, kw_only=True)
class Changes:
    """``contents``: the bytes of small files, by git id. ``large``: (sha256, size) to be found."""

    message: str = ""
    parent: str | None = None
    additions: list[FileEntry] = field(default_factory=list[FileEntry])
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    large: dict[str, int] = field(default_factory=dict[str, int])
    deletions: list[str] = field(default_factory=list[str])


def read_changes(body: bytes) -> Changes:
    """The changes that the lines of a request ask for. Refused with 400."""
    changes = Changes()
    try:
        for line in body.splitlines():
            if line.strip():
                item = json.loads(line)
                _read_line(changes, item["key"], item["value"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise Refused(400, "BadRequest", "this is no list of changes") from None
    if not changes.message:
        raise Refused(400, "BadRequest", "a commit needs a summary")
    return changes


def _read_line(changes: Changes, key: str, value: dict[str, Any]) -> None:
    match key:
        case "header":
            changes.message = value["summary"]
            changes.parent = value.get("parentCommit")
        case "file":
            content = base64.b64decode(value["content"], validate=True)
            entry = regular_entry(checked_path(value["path"]), content)
            changes.additions.append(entry)
            changes.contents[entry.blob_id] = content
        case "lfsFile":
            sha256 = checked_sha256(value["oid"])
            size = int(value["size"])
            changes.large[sha256] = size
            path = checked_path(value["path"])
            changes.additions.append(large_entry(path, sha256=sha256, size=size))
        case "deletedFile":
            changes.deletions.append(checked_path(value["path"]))
        case "deletedFolder":
            changes.deletions.append(checked_path(value["path"].rstrip("/")) + "/")
        case _:
            raise Refused(400, "BadRequest", f"unknown kind of change {key!r}")


def checked_path(path: str) -> str:
    """A path that stays inside the repository. Refused with 400."""
    steps = path.split("/")
    if len(path) > 1024 or "\0" in path or any(step in ("", ".", "..") for step in steps):
        raise Refused(400, "BadRequest", f"{path!r} is no path of a file")
    return path


def checked_sha256(text: str) -> str:
    """64 hex digits. Refused with 400."""
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise Refused(400, "BadRequest", "that is no sha256")
    return text


def missing_blob(path: str) -> Refused:
    return Refused(400, "BadRequest", f"{BLOB_IS_GONE}: {path}")
