"""The unmodified client of the Hub, over HTTP, against the embedded hub."""

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError
from safetensors.numpy import save

from ray_diloco.hub.embedded.server import PART_BYTES, EmbeddedHub
from ray_diloco.hub.embedded.strict import no_faults
from ray_diloco.hub.transport import make_client

REPO = "local/run"
TREE_PAGE = 1000


@pytest.fixture(autouse=True)
def plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_HUB_DISABLE_XET=1 does, also when the client was imported before."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path_factory.mktemp("hub"), part_bytes=1 << 20) as hub:
        yield hub


@pytest.fixture
def api(hub: EmbeddedHub) -> Iterator[HfApi]:
    api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
    api.create_repo(REPO, private=True)
    yield api
    api.delete_repo(REPO)


def put(api: HfApi, **files: str) -> str:
    operations = [CommitOperationAdd(f"{name}.json", text.encode()) for name, text in files.items()]
    return api.create_commit(REPO, operations, commit_message="put").oid


@contextlib.contextmanager
def counting(hub: EmbeddedHub) -> Iterator[Counter[str]]:
    """Requests by the names of their routes."""
    asked = Counter[str]()

    def note(route: str, _request: web.Request) -> None:
        asked[route] += 1

    hub.plan_faults(note)
    yield asked
    hub.plan_faults(no_faults)


def test_each_hub_has_a_token_of_its_own(hub: EmbeddedHub, tmp_path: Path) -> None:
    other = EmbeddedHub(tmp_path)
    other.close()
    assert other.token != hub.token
    assert len(other.token.reveal()) > 40


def test_a_token_has_a_name(api: HfApi) -> None:
    assert api.whoami()["name"] == "local"


def test_a_repository_is_made_once_and_can_be_deleted(api: HfApi) -> None:
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
    assert api.create_repo("other", private=True).repo_id == "local/other"
    api.delete_repo("local/other")
    assert not api.repo_exists("local/other")


def test_repo_info_tells_commit_privacy_and_files(api: HfApi) -> None:
    commit = put(api, a="1")
    info = api.repo_info(REPO, files_metadata=True)
    assert (info.sha, info.private) == (commit, True)
    assert [(file.rfilename, file.size) for file in info.siblings or []] == [("a.json", 1)]


def test_a_tree_comes_in_pages_and_by_folder(api: HfApi, hub: EmbeddedHub) -> None:
    count = TREE_PAGE + 5
    files = [CommitOperationAdd(f"n/{i:04}/x.json", b"{}") for i in range(count)]
    api.create_commit(REPO, files, commit_message="many")
    with counting(hub) as asked:
        found = list(api.list_repo_tree(REPO, recursive=True))
    assert asked["tree"] == 3  # a folder beside each file, and the one above them
    assert [item.path for item in found if item.path.endswith(".json")] == [
        f"n/{i:04}/x.json" for i in range(count)
    ]
    assert [item.path for item in api.list_repo_tree(REPO)] == ["n"]
    assert len(list(api.list_repo_tree(REPO, "n"))) == count


def test_paths_info_tells_the_last_commit_and_leaves_out_what_is_not_there(api: HfApi) -> None:
    first = put(api, a="1")
    put(api, b="1")
    found = api.get_paths_info(REPO, ["a.json", "gone.json"], expand=True)
    assert [(item.path, item.last_commit.oid if item.last_commit else "") for item in found] == [
        ("a.json", first)
    ]


def test_regular_files_go_with_the_commit_and_large_ones_before(api: HfApi, tmp_path: Path) -> None:
    operations = [
        CommitOperationAdd("a.json", b"{}"),
        CommitOperationAdd("b.safetensors", os.urandom(1000)),
    ]
    api.preupload_lfs_files(REPO, operations, free_memory=False)
    assert [operation._upload_mode for operation in operations] == ["regular", "lfs"]
    api.create_commit(REPO, operations, commit_message="both")
    content = Path(api.hf_hub_download(REPO, "b.safetensors", local_dir=tmp_path)).read_bytes()
    assert content == operations[1].path_or_fileobj


def test_a_large_file_comes_in_parts(api: HfApi, hub: EmbeddedHub, tmp_path: Path) -> None:
    content = os.urandom((5 << 19) + 3)
    with counting(hub) as asked:
        api.upload_file(path_or_fileobj=content, path_in_repo="x.safetensors", repo_id=REPO)
    assert (asked["upload_part"], asked["complete"], asked["upload"]) == (3, 1, 0)
    found = api.hf_hub_download(REPO, "x.safetensors", local_dir=tmp_path)
    assert Path(found).read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [PART_BYTES, 64 << 20], ids=["basic", "multipart"])
def test_a_file_of_300_megabytes_goes_up_and_comes_back(tmp_path: Path, part_bytes: int) -> None:
    source = tmp_path / "x"
    block = os.urandom(1 << 20)
    with source.open("wb") as file:
        for number in range(300):
            file.write(number.to_bytes(8, "big") + block[8:])
    with EmbeddedHub(tmp_path / "hub", part_bytes=part_bytes) as hub, counting(hub) as asked:
        api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
        api.create_repo(REPO, private=True)
        api.upload_file(path_or_fileobj=source, path_in_repo="x.safetensors", repo_id=REPO)
        found = api.hf_hub_download(REPO, "x.safetensors", local_dir=tmp_path / "down")
    assert (asked["upload"], asked["upload_part"]) == (
        (1, 0) if part_bytes == PART_BYTES else (0, 5)
    )
    assert Path(found).read_bytes() == source.read_bytes()


def test_uploading_the_same_bytes_again_makes_no_commit(api: HfApi) -> None:
    content = os.urandom(100)
    for _ in range(2):
        api.upload_file(path_or_fileobj=content, path_in_repo="x.safetensors", repo_id=REPO)
    assert len(api.list_repo_commits(REPO)) == 2


def test_additions_and_deletions_of_files_and_folders_are_one_commit(api: HfApi) -> None:
    put(api, **{"d/a": "1", "d/b": "1", "c": "1", "keep": "1"})
    api.create_commit(
        REPO,
        [
            CommitOperationDelete("d/"),
            CommitOperationDelete("c.json"),
            CommitOperationAdd("new.json", b"1"),
        ],
        commit_message="change",
    )
    assert api.list_repo_files(REPO) == ["keep.json", "new.json"]


def test_an_old_parent_is_answered_412(api: HfApi) -> None:
    old = put(api, a="1")
    put(api, a="2")
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_commit(
            REPO,
            [CommitOperationAdd("a.json", b"3")],
            commit_message="late",
            parent_commit=old,
        )
    assert caught.value.response.status_code == 412


def test_head_and_ranges_tell_what_a_file_is(api: HfApi, hub: EmbeddedHub) -> None:
    commit = put(api, a="0123456789")
    headers = {"Authorization": f"Bearer {hub.token.reveal()}"}
    url = f"{hub.endpoint}/{REPO}/resolve/main/a.json"
    with make_client() as client:
        head = client.head(url, headers=headers, follow_redirects=False)
        assert (head.status_code, head.headers["X-Repo-Commit"]) == (307, commit)
        assert head.headers["X-Linked-Size"] == "10"
        got = client.get(url, headers={**headers, "Range": "bytes=2-4"})
        assert (got.status_code, got.content) == (206, b"234")
        assert got.headers["ETag"] == head.headers["ETag"]
        assert client.head(url, headers=headers).headers["Content-Length"] == "10"
        assert client.head(f"{url}x", headers=headers).headers["X-Error-Code"] == "EntryNotFound"


def test_the_client_reads_what_a_head_tells(api: HfApi, hub: EmbeddedHub) -> None:
    content = os.urandom(1000)
    api.upload_file(path_or_fileobj=content, path_in_repo="x.safetensors", repo_id=REPO)
    url = f"{hub.endpoint}/{REPO}/resolve/main/x.safetensors"
    found = api.get_hf_file_metadata(url=url)
    assert found.commit_hash == api.repo_info(REPO).sha
    assert (found.etag, found.size) == (hashlib.sha256(content).hexdigest(), 1000)


def test_the_header_of_a_safetensors_file_is_read_by_range(api: HfApi) -> None:
    content = save({"w": np.zeros((64, 1024), np.float32)}, metadata={"node_id": "a"})
    api.upload_file(path_or_fileobj=content, path_in_repo="n/x.safetensors", repo_id=REPO)
    found = api.parse_safetensors_file_metadata(REPO, "n/x.safetensors")
    assert found.metadata == {"node_id": "a"}
    assert found.tensors["w"].shape == [64, 1024]


def test_branches_and_tags_keep_what_they_name(api: HfApi, tmp_path: Path) -> None:
    first = put(api, a="1")
    api.create_branch(REPO, branch="side")
    api.create_branch(REPO, branch="side", exist_ok=True)
    api.create_tag(REPO, tag="v1")
    put(api, a="2")
    refs = api.list_repo_refs(REPO)
    assert {ref.name: ref.target_commit for ref in refs.branches}["side"] == first
    assert [ref.name for ref in refs.tags] == ["v1"]
    for revision in ("side", "v1"):
        found = api.hf_hub_download(REPO, "a.json", revision=revision, local_dir=tmp_path)
        assert json.loads(Path(found).read_text()) == 1
    api.delete_branch(REPO, branch="side")
    api.delete_tag(REPO, tag="v1")
    refs = api.list_repo_refs(REPO)
    assert ([ref.name for ref in refs.branches], refs.tags) == (["main"], [])


def test_a_branch_and_a_tag_may_begin_at_an_older_commit_and_go_on_by_themselves(
    api: HfApi,
) -> None:
    first = put(api, a="1")
    newest = put(api, a="2")
    api.create_branch(REPO, branch="side", revision=first)
    api.create_tag(REPO, tag="old", revision=first)
    on_side = api.create_commit(
        REPO, [CommitOperationAdd("b.json", b"1")], commit_message="on the side", revision="side"
    )
    refs = api.list_repo_refs(REPO)
    assert {ref.name: ref.target_commit for ref in refs.branches} == {
        "main": newest,
        "side": on_side.oid,
    }
    assert refs.tags[0].target_commit == first
    titles = [commit.title for commit in api.list_repo_commits(REPO, revision="side")]
    assert titles == ["on the side", "put", "initial commit"]
    assert api.list_repo_files(REPO, revision="side") == ["a.json", "b.json"]


def test_a_squash_leaves_one_commit(api: HfApi, hub: EmbeddedHub) -> None:
    for number in range(60):
        put(api, a=str(number))
    with counting(hub) as asked:
        titles = [commit.title for commit in api.list_repo_commits(REPO)]
    assert titles == ["put"] * 60 + ["initial commit"]
    assert asked["commits"] == 2
    api.super_squash_history(REPO, commit_message="squash")
    assert [commit.title for commit in api.list_repo_commits(REPO)] == ["squash"]
    assert api.list_repo_files(REPO) == ["a.json"]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a//b", "/x", "."])
def test_a_path_that_leaves_the_repository_is_refused(
    api: HfApi, hub: EmbeddedHub, path: str
) -> None:
    lines = [
        {"key": "header", "value": {"summary": "bad"}},
        {"key": "file", "value": {"path": path, "content": "", "encoding": "base64"}},
    ]
    with make_client() as client:
        answer = client.post(
            f"{hub.endpoint}/api/models/{REPO}/commit/main",
            content="\n".join(map(json.dumps, lines)),
            headers={"Authorization": f"Bearer {hub.token.reveal()}"},
        )
    assert answer.status_code == 400


def test_an_upload_address_that_was_not_signed_here_is_refused(
    api: HfApi, hub: EmbeddedHub
) -> None:
    with make_client() as client:
        url = f"{hub.endpoint}/blobs/{'0' * 64}"
        assert client.put(url, content=b"x").status_code == 403
        forged = f"{url}?size=1&expires=99999999999&signature=00"
        assert client.put(forged, content=b"x").status_code == 403


@pytest.mark.parametrize("size", [99, 100, 101])
def test_bytes_that_are_not_those_announced_are_refused(
    api: HfApi, hub: EmbeddedHub, size: int
) -> None:
    right = os.urandom(100)
    sha256 = hashlib.sha256(right).hexdigest()
    url = asked_to_send(hub, sha256, 100)["actions"]["upload"]["href"]
    with make_client() as client:
        assert client.put(url, content=os.urandom(size)).status_code == 400
        assert "actions" in asked_to_send(hub, sha256, 100)
        assert client.put(url, content=right).status_code == 200
    assert "actions" not in asked_to_send(hub, sha256, 100)


def test_parts_that_do_not_make_what_was_announced_are_refused(
    api: HfApi, hub: EmbeddedHub
) -> None:
    content = os.urandom((1 << 20) + 5)
    sha256 = hashlib.sha256(content).hexdigest()
    upload = asked_to_send(hub, sha256, len(content))["actions"]["upload"]
    done = {"oid": sha256, "parts": [{"partNumber": number, "etag": "x"} for number in (1, 2)]}
    with make_client() as client:
        for part, status in ((content[:5][::-1], 400), (content[-5:], 200)):
            client.put(upload["header"]["1"], content=content[: 1 << 20])
            client.put(upload["header"]["2"], content=part)
            assert client.post(upload["href"], json=done).status_code == status


def asked_to_send(hub: EmbeddedHub, sha256: str, size: int) -> dict[str, Any]:
    """What the hub says of one blob of a batch."""
    with make_client() as client:
        answer = client.post(
            f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch",
            json={"operation": "upload", "objects": [{"oid": sha256, "size": size}]},
            headers={"Authorization": f"Bearer {hub.token.reveal()}"},
        )
    return answer.json()["objects"][0]
