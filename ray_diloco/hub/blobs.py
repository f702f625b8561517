"""Blobs that a commit will name: sent ahead, so that the commit itself is one small request."""

from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import quote

from huggingface_hub import CommitOperationAdd
from huggingface_hub.lfs import lfs_upload, post_lfs_batch_info

from ray_diloco.errors import HubError
from ray_diloco.hub.digest import is_large
from ray_diloco.hub.door import HubDoor
from ray_diloco.hub.faults import Asked, fault_of_status
from ray_diloco.hub.repository import Addition


class Blobs:
    """Large files on their way into one branch. What is staged is not sent again."""

    def __init__(self, door: HubDoor, *, repo_id: str, branch: str) -> None:
        self._door = door
        self._repo_id = repo_id
        self._branch = branch
        self._staged: set[str] = set()

    def stage(self, additions: Sequence[Addition]) -> None:
        """Send those that are not there yet. HubError."""
        operations = {
            operation.upload_info.sha256.hex(): operation
            for operation in map(operation_of, additions)
            if operation._upload_mode == "lfs"
        }
        missing = {oid: operations[oid] for oid in operations if oid not in self._staged}
        if missing:
            self._door.ask(lambda: self._upload(missing), seconds=self._door.timeouts.transfer)
            self._staged.update(missing)

    def forget(self, operations: Iterable[CommitOperationAdd]) -> None:
        """The hub may drop a blob that no commit names: ask again the next time."""
        self._staged.difference_update(op.upload_info.sha256.hex() for op in operations)

    def _upload(self, operations: dict[str, CommitOperationAdd]) -> None:
        """Send the blobs that the hub does not have yet, one after the other, in this thread."""
        headers = self._door.headers
        token = cast(str, self._door.plain_token)
        actions, refused, _ = post_lfs_batch_info(
            upload_infos=[operation.upload_info for operation in operations.values()],
            token=token,
            repo_type="model",
            repo_id=self._repo_id,
            revision=quote(self._branch, safe=""),
            endpoint=self._door.endpoint,
            headers=headers,
        )
        for problem in refused:
            raise self._upload_fault(problem["error"])
        for action in actions:
            operation = operations[action["oid"]]
            if action.get("actions"):
                with operation.as_file() as file:
                    operation.path_or_fileobj = file  # an open file has no progress bar
                    lfs_upload(operation, action, token, headers, self._door.endpoint)
                self._door.count(up=operation.upload_info.size)

    def _upload_fault(self, error: dict[str, Any]) -> HubError:
        asked = Asked(
            host=self._door.endpoint,
            method="upload",
            path=self._repo_id,
            changes_branch=False,
            signed=False,
        )
        return fault_of_status(error["code"], {}, error["message"], asked)


def operation_of(addition: Addition) -> CommitOperationAdd:
    """A new operation for each attempt; its mode is set, so that the hub is not asked for it."""
    source = addition.source
    operation = CommitOperationAdd(
        addition.path, source if isinstance(source, bytes) else str(source)
    )
    if addition.sha256 is not None and not isinstance(source, bytes):
        operation.upload_info.sha256 = bytes.fromhex(addition.sha256)
    large = is_large(addition.path) and operation.upload_info.size > 0
    operation._upload_mode = "lfs" if large else "regular"
    operation._should_ignore = False
    return operation
