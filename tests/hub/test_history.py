"""Commits, branches and what changed when, without blobs."""

import pytest

from ray_diloco.errors import EntryMissing, ParentConflict, RevisionMissing
from ray_diloco.hub.digest import git_blob_id, regular_entry
from ray_diloco.hub.history import Commit, History, changed_files, files_below, make_commit


def a_history() -> History:
    history = History()
    first = make_commit(parent=None, message="first", author="a", time="t", files={})
    history.accept("main", first)
    return history


def add(history: History, path: str, content: bytes, parent: str | None = None) -> Commit:
    commit = history.propose(
        "main",
        additions=[regular_entry(path, content)],
        deletions=[],
        parent=parent,
        message="add",
        author="a",
        time="t",
    )
    history.accept("main", commit)
    return commit


def test_a_blob_id_is_that_of_git() -> None:
    assert git_blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_equal_histories_have_equal_ids() -> None:
    assert add(a_history(), "x", b"1").id == add(a_history(), "x", b"1").id


def test_a_commit_that_changes_nothing_is_the_tip_itself() -> None:
    history = a_history()
    first = add(history, "x", b"1")
    assert add(history, "x", b"1") is first


def test_a_commit_on_an_old_parent_is_refused() -> None:
    history = a_history()
    old = history.tip("main").id
    add(history, "x", b"1")
    with pytest.raises(ParentConflict):
        add(history, "y", b"1", parent=old)


def test_the_last_change_of_a_file_is_found_below_later_commits() -> None:
    history = a_history()
    changed = add(history, "x", b"1")
    add(history, "y", b"1")
    assert history.last_change("x", "main") == changed
    with pytest.raises(EntryMissing):
        history.last_change("z", "main")


def test_a_squashed_branch_forgets_its_commits_but_not_those_of_a_tag() -> None:
    history = a_history()
    tagged = add(history, "x", b"1")
    history.tags["v1"] = tagged.id
    gone = add(history, "y", b"1")
    root = make_commit(parent=None, message="s", author="a", time="t", files=gone.files)
    history.accept("main", root)
    assert history.resolve("v1") == tagged
    with pytest.raises(RevisionMissing):
        history.resolve(gone.id)


def test_a_deletion_may_name_a_folder() -> None:
    files = {path: regular_entry(path, b"") for path in ("a/x", "a/b/y", "ab")}
    assert set(changed_files(files, [], ["a/"])) == {"ab"}


def test_files_below_a_folder_come_sorted_and_no_sibling_slips_in() -> None:
    files = {path: regular_entry(path, b"") for path in ("a/z", "a/b/y", "ab", "b")}
    assert [entry.path for entry in files_below(files, "a")] == ["a/b/y", "a/z"]
