import itertools
import math
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.workload.documents import (
    Document,
    draw_synthetic,
    manifest_hash,
    read_files,
    read_stdlib,
)


def test_the_standard_library_is_some_ten_megabytes_without_tests_or_installed_packages():
    documents = read_stdlib()
    names = [document.name for document in documents]
    assert 5_000_000 < sum(len(document.text) for document in documents) < 50_000_000
    assert {"argparse.py", "asyncio/tasks.py"} <= set(names)
    assert not any(name.startswith(("test/", "site-packages/")) for name in names)
    assert not any("/tests/" in name or "/test/" in name for name in names)


def test_the_standard_library_is_ordered_by_package():
    groups = [document.group for document in read_stdlib()]
    assert groups == sorted(groups)
    assert {"argparse", "asyncio"} <= set(groups)


def test_the_standard_library_is_read_once_and_as_it_lies_on_disk():
    assert read_stdlib() is read_stdlib()
    document = next(one for one in read_stdlib() if one.name == "argparse.py")
    assert document.text == Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_bytes()


def test_the_manifest_depends_on_names_contents_and_order():
    one = Document(name="a", group="g", text=b"xy")
    other = Document(name="b", group="g", text=b"z")
    moved = Document(name="ax", group="g", text=b"y")
    hashes = {manifest_hash(docs) for docs in ([one, other], [other, one], [one], [moved, other])}
    assert len(hashes) == 4
    assert manifest_hash([one, other]) == manifest_hash([one, other])


def test_own_files_are_read_once_each_in_order_of_their_paths(tmp_path):
    for name in ("b/two.txt", "a/one.txt", "a/three.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    documents = read_files([f"{tmp_path}/**/*.txt", f"{tmp_path}/a/one.txt"])
    assert [document.name for document in documents] == ["a/one.txt", "a/three.txt", "b/two.txt"]
    assert [document.group for document in documents] == ["a", "a", "b"]
    assert documents[0].text == b"a/one.txt"


def test_files_in_one_folder_are_a_group_each(tmp_path):
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text(name)
    assert [one.group for one in read_files([f"{tmp_path}/*.txt"])] == ["x.txt", "y.txt"]


@pytest.mark.parametrize("pattern", ["missing.txt", "*.missing", "."])
def test_a_pattern_without_files_is_refused_by_name(tmp_path, pattern):
    (tmp_path / "there.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"data\.files") as caught:
        read_files([f"{tmp_path}/there.txt", f"{tmp_path}/{pattern}"])
    assert caught.value.value == f"{tmp_path}/{pattern}"


def test_synthetic_text_is_the_same_for_a_seed_and_another_for_another():
    assert draw_synthetic(5000, 1) == draw_synthetic(5000, 1)
    assert manifest_hash(draw_synthetic(5000, 1)) != manifest_hash(draw_synthetic(5000, 2))


def test_synthetic_text_has_the_length_asked_for_up_to_a_letter_per_document():
    total = sum(len(document.text) for document in draw_synthetic(10_000, 0))
    assert 10_000 <= total < 10_064


def test_synthetic_text_is_learnable_and_its_sources_differ():
    documents = draw_synthetic(200_000, 0)
    by_group = {
        group: b"".join(one.text for one in documents if one.group == group)
        for group in ("source0", "source1")
    }
    for text in by_group.values():
        assert _entropy_given_last_letter(text) < 1.15
    assert _entropy_given_last_letter(b"".join(by_group.values())) > 1.5


def _entropy_given_last_letter(text: bytes) -> float:
    pairs = Counter(itertools.pairwise(text))
    firsts = Counter(text[:-1])
    return -sum(count * math.log(count / firsts[pair[0]]) for pair, count in pairs.items()) / (
        len(text) - 1
    )
