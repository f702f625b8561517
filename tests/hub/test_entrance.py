"""Who may come in, and what is said to those who may not."""

import pickle
import time
import traceback
from collections.abc import Iterator

import pytest
from huggingface_hub import HfApi

from ray_diloco.errors import ConfigError, HubError, PermanentHubError, RepositoryMissing
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.connect import connect
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.strict import no_faults
from ray_diloco.hub.entrance import (
    check_write_permission,
    ensure_repository,
    enter,
    find_token,
    require_repository,
    who_is,
)
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubKind, HubSettings

READER = Secret("hf_reader")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path_factory.mktemp("hub"), reader=READER) as hub:
        yield hub


def test_a_repository_is_made_private_and_found_again(hub: EmbeddedHub) -> None:
    for _ in range(2):
        made = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="mine")
        assert made == "local/mine"
    require_repository(endpoint=hub.endpoint, token=hub.token, repo_id=made)
    api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
    assert api.model_info(made).private is True


def test_a_public_repository_is_refused_unless_it_is_meant(hub: EmbeddedHub) -> None:
    api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
    api.create_repo("local/public", private=False)
    for ask in (ensure_repository, require_repository):
        with pytest.raises(ConfigError, match="allow_public"):
            ask(endpoint=hub.endpoint, token=hub.token, repo_id="local/public")
        ask(endpoint=hub.endpoint, token=hub.token, repo_id="local/public", allow_public=True)


def test_a_branch_of_its_own_is_made(hub: EmbeddedHub) -> None:
    repo_id = ensure_repository(
        endpoint=hub.endpoint, token=hub.token, repo_id="local/branched", branch="run"
    )
    repository = HubRepository(
        endpoint=hub.endpoint, token=hub.token, repo_id=repo_id, branch="run"
    )
    commit = repository.commit("one", additions=[Addition(path="x.json", source=b"1")])
    head = repository.head("x.json")
    assert head is not None
    assert head.commit == commit


def test_who_joins_makes_no_repository(hub: EmbeddedHub) -> None:
    with pytest.raises(ConfigError, match="repo_id"):
        require_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/nobodys")
    ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/here")
    with pytest.raises(ConfigError, match="branch"):
        require_repository(
            endpoint=hub.endpoint, token=hub.token, repo_id="local/here", branch="nobodys"
        )
    with pytest.raises(RepositoryMissing):
        HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id="local/nobodys").head_commit()


def test_a_wrong_token_costs_less_than_a_second_and_one_request(hub: EmbeddedHub) -> None:
    wrong = Secret("hf_wrong")
    begun = time.monotonic()
    with pytest.raises(PermanentHubError, match="HF_TOKEN"):
        who_is(endpoint=hub.endpoint, token=wrong)
    repository = HubRepository(endpoint=hub.endpoint, token=wrong, repo_id="local/any")
    with pytest.raises(PermanentHubError, match="HF_TOKEN"):
        repository.commit("one", additions=[Addition(path="x.json", source=b"1")])
    assert repository.traffic.requests == 1
    assert time.monotonic() - begun < 1


def test_write_permission_is_asked_for_without_a_commit(hub: EmbeddedHub) -> None:
    repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/asked")
    repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
    before = repository.head_commit()
    asked: list[str] = []
    hub.plan_faults(lambda route, _request: asked.append(route))
    check_write_permission(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
    hub.plan_faults(no_faults)
    assert asked == ["preupload"]
    with pytest.raises(PermanentHubError, match="permission"):
        check_write_permission(endpoint=hub.endpoint, token=READER, repo_id=repo_id)
    assert repository.head_commit() == before


def test_all_questions_are_asked_at_once(hub: EmbeddedHub) -> None:
    settings = HubSettings()
    with pytest.raises(ConfigError, match="repo_id"):
        enter(settings, endpoint=hub.endpoint, token=hub.token, repo_id="all", make=False)
    for make in (True, False):
        assert (
            enter(settings, endpoint=hub.endpoint, token=hub.token, repo_id="all", make=make)
            == "local/all"
        )
    with pytest.raises(PermanentHubError, match="permission"):
        enter(settings, endpoint=hub.endpoint, token=READER, repo_id="all", make=False)


def test_without_a_token_the_users_own_is_not_used(
    hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token.reveal())
    nobody = HubRepository(endpoint=hub.endpoint, token=None, repo_id="local/asked")
    with pytest.raises(PermanentHubError, match="401"):
        nobody.head_commit()
    with pytest.raises(PermanentHubError, match="401"):
        nobody.stage([Addition(path="x.safetensors", source=b"1")])


def test_the_token_comes_from_the_environment_or_it_is_said_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert find_token() == Secret("hf_mine")
    monkeypatch.delenv("HF_TOKEN")
    login = tmp_path_factory.mktemp("home") / "token"
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(login))
    with pytest.raises(PermanentHubError, match="hf auth login"):
        find_token()
    login.write_text("hf_of_the_login\n")
    assert find_token() == Secret("hf_of_the_login")


def test_no_error_shows_or_carries_the_token(hub: EmbeddedHub) -> None:
    token = "hf_very_secret_and_wrong"
    repository = HubRepository(endpoint=hub.endpoint, token=Secret(token), repo_id="local/any")
    calls = (
        repository.head_commit,
        lambda: repository.head("x"),
        lambda: repository.read("x", commit="0" * 40, limit=1),
        lambda: repository.commit("m", additions=[Addition(path="x", source=b"")]),
        lambda: repository.stage([Addition(path="x.safetensors", source=b"1")]),
    )
    for call in calls:
        with pytest.raises(HubError) as caught:
            call()
        error = caught.value
        shown = "".join(traceback.format_exception(error)) + repr(error) + str(error)
        assert token not in shown
        assert token.encode() not in pickle.dumps(error)
        assert error.__context__ is None
        assert error.__cause__ is None


def test_a_secret_hides_its_value_and_can_be_handed_over() -> None:
    secret = Secret("hf_hidden")
    assert "hf_hidden" not in f"{secret} {secret!r} {[secret]}"
    assert pickle.loads(pickle.dumps(secret)).reveal() == "hf_hidden"


def test_settings_lead_to_a_repository(hub: EmbeddedHub) -> None:
    repository = connect(
        HubSettings(), repo_id="local/asked", endpoint=hub.endpoint, token=hub.token
    )
    assert isinstance(repository, HubRepository)
    memory = HubSettings(kind=HubKind.memory)
    store = MemoryStore()
    one = connect(memory, repo_id="local/run", store=store)
    other = connect(memory, repo_id="local/run", store=store)
    assert one.commit("m", additions=[Addition(path="x", source=b"")]) == other.head_commit()
    with pytest.raises(ConfigError, match="memory"):
        connect(memory, repo_id="local/run")
    with pytest.raises(ConfigError, match="endpoint"):
        connect(HubSettings(), repo_id="local/run")
