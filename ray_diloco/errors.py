"""Every error that ray_diloco raises on purpose.

    RayDilocoError
    |- UsageError                 wrong use by us; the message says what was given and expected
    |  |- ConfigError             a setting: name, value, what was expected
    |  |- ForeignRunError         the repository holds another run
    |  |- NodeInUseError          another process trains under this node id
    |  |- TrainingError           training cannot go on: no global in time, loss not finite
    |  `- DiskError               the local disk is full, or cannot be written
    |- ContentError               wrong data from the repository
    |  |- DeltaError              a node delta that must not be merged
    |  |- GlobalError             a global model or its metadata that must not be installed
    |  `- SafetensorsError        a file that is not well-formed safetensors
    |- SweepError                 trials of a sweep did not end well
    `- HubError                   trouble of the network or of the Hub
       |- PermanentHubError       will fail again: 400, 401, 403
       |  `- RepositoryMissing    no such repository, or the token may not see it
       |- EntryMissing            no such file at that commit; a fact, often not a fault
       |- RevisionMissing         no such commit or branch: perhaps squashed away
       |- ParentConflict          412: the branch is no longer at ``parent_commit``
       |- QuotaExceeded           429: send nothing for ``retry_after_us``
       `- TransientHubError       408, 409, 5xx, timeouts, resets; see ``outcome``

Errors carry only plain data, so that they survive pickling and never hold a request (whose headers
hold the token).
"""

import errno
from typing import Literal


class RayDilocoError(Exception):
    """Root of the tree."""


class UsageError(RayDilocoError):
    """Wrong use by us."""


class ConfigError(UsageError):
    """A setting that cannot be used: ``setting`` is its dotted name, ``value`` what was given,
    ``expected`` what would do.
    """

    def __init__(self, setting: str, value: object, expected: str) -> None:
        super().__init__(setting, value, expected)
        self.setting = setting
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        value = "null" if self.value is None else repr(self.value)
        return f"{self.setting}={value}: {self.expected}"


class ForeignRunError(UsageError):
    """The repository already holds another run."""


class NodeInUseError(UsageError):
    """Another process trains under this node id."""


class TrainingError(UsageError):
    """Training cannot go on."""


class DiskError(UsageError):
    """The local disk is full, or cannot be written."""


class ContentError(RayDilocoError):
    """Wrong data from the repository."""


class DeltaError(ContentError):
    """A node delta that must not be merged: where it lies and why, in one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class GlobalError(ContentError):
    """A global model or its metadata that must not be installed."""


class SafetensorsError(ContentError):
    """A file that is not well-formed safetensors."""


class SweepError(RayDilocoError):
    """Trials of a sweep did not end well. ``refused``: all of these for their configuration."""

    def __init__(self, message: str, refused: bool = False) -> None:
        super().__init__(message, refused)
        self.refused = refused

    def __str__(self) -> str:
        return str(self.args[0])


class HubError(RayDilocoError):
    """Trouble of the network or of the Hub."""


class PermanentHubError(HubError):
    """The same request will fail again; the message says what to do."""


class RepositoryMissing(PermanentHubError):
    """No such repository, or the token may not see it."""


class EntryMissing(HubError):
    """No such file at that commit."""


class RevisionMissing(HubError):
    """No such commit or branch."""


class ParentConflict(HubError):
    """The branch is no longer at the commit that was named as parent."""


class QuotaExceeded(HubError):
    """Too many requests. ``retry_after_us``: what the server asked to wait, in microseconds;
    None when it did not say.
    """

    def __init__(self, message: str, retry_after_us: int | None = None) -> None:
        super().__init__(message, retry_after_us)
        self.retry_after_us = retry_after_us

    def __str__(self) -> str:
        return str(self.args[0])


class TransientHubError(HubError):
    """May succeed later.

    ``outcome`` of a commit: ``refused`` when the server said so (408 before the body was read,
    409); ``unknown`` when it may have landed all the same (timeout, reset, 5xx).
    """

    def __init__(self, message: str, outcome: Literal["refused", "unknown"] = "unknown") -> None:
        super().__init__(message, outcome)
        self.outcome: Literal["refused", "unknown"] = outcome

    def __str__(self) -> str:
        return str(self.args[0])


DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""What an `OSError` says when it is about the disk, not about our use of it."""


def disk_error(who: str, error: OSError, *, folder: object) -> DiskError:
    """What to tell whoever runs the participant ``who``, which writes to ``folder``."""
    return DiskError(
        f"{who} cannot write to {error.filename or folder}: {error.strerror}; "
        "make room and start again with run.resume"
    )
