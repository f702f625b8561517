"""Every answer of the Hub is one of our errors."""

import pickle

import pytest

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
from ray_diloco.hub.faults import BLOB_IS_GONE, Asked, fault_of_network, fault_of_status

READ = Asked(host="hub", method="GET", path="/x", changes_branch=False, signed=False)
COMMIT = Asked(host="hub", method="POST", path="/commit/main", changes_branch=True, signed=False)
UPLOAD = Asked(host="hub", method="PUT", path="/blob", changes_branch=False, signed=True)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "", PermanentHubError),
        (401, "", PermanentHubError),
        (403, "", PermanentHubError),
        (404, "RepoNotFound", RepositoryMissing),
        (404, "RevisionNotFound", RevisionMissing),
        (404, "EntryNotFound", EntryMissing),
        (408, "", TransientHubError),
        (409, "", TransientHubError),
        (412, "", ParentConflict),
        (429, "", QuotaExceeded),
        (500, "", TransientHubError),
        (503, "", TransientHubError),
    ],
)
def test_an_answer_has_its_error(status: int, code: str, kind: type[HubError]) -> None:
    error = fault_of_status(status, {"X-Error-Code": code}, "why", READ)
    assert type(error) is kind
    assert "why" in str(error)
    assert "\n" not in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, str(error))


def test_what_to_do_about_a_wrong_token_is_said() -> None:
    assert "HF_TOKEN" in str(fault_of_status(401, {}, "", READ))


@pytest.mark.parametrize(
    ("status", "outcome"), [(408, "refused"), (409, "refused"), (500, "unknown"), (504, "unknown")]
)
def test_only_a_server_error_leaves_a_commit_in_doubt(status: int, outcome: str) -> None:
    error = fault_of_status(status, {}, "", COMMIT)
    assert isinstance(error, TransientHubError)
    assert error.outcome == outcome


def test_a_broken_connection_leaves_a_commit_in_doubt_once_it_stood() -> None:
    assert fault_of_network("reset", COMMIT, connected=True).outcome == "unknown"
    assert fault_of_network("refused", COMMIT, connected=False).outcome == "refused"
    assert fault_of_network("reset", READ, connected=True).outcome == "refused"


def test_an_expired_upload_address_and_a_lost_blob_pass_by_themselves() -> None:
    for error in (
        fault_of_status(403, {}, "expired", UPLOAD),
        fault_of_status(400, {}, f"{BLOB_IS_GONE}: x", COMMIT),
    ):
        assert isinstance(error, TransientHubError)
        assert error.outcome == "refused"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7_000_000),
        ({"RateLimit": '"api";r=0;t=55'}, 55_000_000),
        ({"RateLimit": '"api";r=3;t=55', "Retry-After": "9"}, 9_000_000),
        ({}, None),
    ],
)
def test_a_quota_says_how_long_to_wait(headers: dict[str, str], expected: int | None) -> None:
    error = fault_of_status(429, headers, "", COMMIT)
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after_us == expected
