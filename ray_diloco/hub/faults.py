"""Sorts what can go wrong with a request into our errors, by status and by `X-Error-Code`. Pure.

Every message is one line that says what to do. No request, response or header is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub.utils import parse_ratelimit_headers

from ray_diloco.errors import (
    EntryMissing,
    HubError,
    ParentConflict,
    PermanentHubError,
    QuotaExceeded,
    RepositoryMissing,
    RevisionMissing,
    TransientHubError,
)

MICROS_PER_SECOND = 1_000_000
LONGEST_DETAIL = 300
BLOB_IS_GONE = "LFS pointer pointed to a file that does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for. ``host``: of the hub. ``changes_branch``: a commit or a squash.

    ``signed``: the address itself was the permission (an upload or download URL that expires).
    """

    host: str
    method: str
    path: str
    changes_branch: bool
    signed: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path} at {self.host}"


def fault_of_status(status: int, headers: Mapping[str, str], detail: str, asked: Asked) -> HubError:
    """The error that an answer of 400 or above stands for. ``detail``: what the hub said."""
    said = f" ({line})" if (line := one_line(detail)) else ""
    what = f"{asked}: {status}{said}"
    if asked.signed and status in (401, 403, 404):
        return TransientHubError(f"{what}; the signed address has expired", "refused")
    if status >= 500:
        return TransientHubError(what, "unknown" if asked.changes_branch else "refused")
    if status in (408, 409, 425) or BLOB_IS_GONE in detail:
        return TransientHubError(what, "refused")
    return _refusal(status, headers, what)


def _refusal(status: int, headers: Mapping[str, str], what: str) -> HubError:
    """The error for an answer between 400 and 499 that will not pass by itself."""
    match status:
        case 401:
            return PermanentHubError(
                f"{what}: the token is wrong or has expired; "
                "set HF_TOKEN to a valid one or log in with `hf auth login`"
            )
        case 403:
            return PermanentHubError(
                f"{what}: no permission; use a token that may write to this repository"
            )
        case 404:
            return _missing(headers.get("X-Error-Code"), what)
        case 412:
            return ParentConflict(what)
        case 429:
            return QuotaExceeded(f"{what}: too many requests", _retry_after_us(headers))
        case _:
            return PermanentHubError(f"{what}: the hub refuses this request")


def fault_of_network(reason: str, asked: Asked, *, connected: bool) -> TransientHubError:
    """The error for a request without a whole answer. ``connected``: it may have arrived."""
    may_have_landed = connected and asked.changes_branch
    return TransientHubError(
        f"{asked}: {one_line(reason)}", "unknown" if may_have_landed else "refused"
    )


def one_line(text: str) -> str:
    """A text in one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_DETAIL else line[:LONGEST_DETAIL] + "..."


def _missing(code: str | None, what: str) -> HubError:
    match code:
        case "EntryNotFound":
            return EntryMissing(f"{what}: no such file")
        case "RevisionNotFound":
            return RevisionMissing(f"{what}: no such commit or branch")
        case _:
            return RepositoryMissing(
                f"{what}: no such repository, or the token may not see it; check hub.repo_id"
            )


def _retry_after_us(headers: Mapping[str, str]) -> int | None:
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds * MICROS_PER_SECOND
    seconds = headers.get("Retry-After", "").strip()
    return int(seconds) * MICROS_PER_SECOND if seconds.isdecimal() else None
