import pytest

from ray_diloco.protocol.paths import (
    CARD_PATH,
    MODEL_PATH,
    delta_path,
    is_model_file,
    is_node_id,
    node_card_path,
    parse_delta_path,
)


def test_files_lie_where_the_protocol_says():
    assert MODEL_PATH == "global/latest.safetensors"
    assert CARD_PATH == "global/step_count.json"
    assert delta_path("n1", 500) == "nodes/n1/delta_500.safetensors"
    assert node_card_path("n1") == "nodes/n1/node.json"


@pytest.mark.parametrize("node_id", ["n", "9", "worker-1", "a.b_c-D", "a..b", "x" * 64])
def test_a_plain_name_is_a_node_id_and_its_delta_path_reads_back(node_id: str):
    assert is_node_id(node_id)
    assert parse_delta_path(delta_path(node_id, 7)) == (node_id, 7)


@pytest.mark.parametrize(
    "node_id",
    ["", ".", "..", "../n", "a/b", "-a", "_a", ".a", "a b", "a\n", "a\0", "é", "n١", "x" * 65],
)
def test_a_name_that_could_escape_its_folder_is_no_node_id(node_id: str):
    assert not is_node_id(node_id)
    assert parse_delta_path(f"nodes/{node_id}/delta_7.safetensors") is None


@pytest.mark.parametrize("step", [0, 1, 500, 10**18 - 1])
def test_a_canonical_step_is_read(step: int):
    assert parse_delta_path(delta_path("n", step)) == ("n", step)


@pytest.mark.parametrize(
    "spelling",
    [
        "+7",
        "-7",
        "1_0",
        "010",
        "00",
        "",
        " 7",
        "7 ",
        "7\n",
        "7.0",
        "0x7",
        "1e3",
        "٧",
        "７",
        "9" * 19,
    ],
)
def test_an_odd_spelling_of_a_step_is_not_a_delta(spelling: str):
    assert parse_delta_path(f"nodes/n/delta_{spelling}.safetensors") is None


@pytest.mark.parametrize(
    "path",
    [
        "nodes/n/delta_7.safetensors.tmp",
        "nodes/n/delta_7.bin",
        "nodes/n/sub/delta_7.safetensors",
        "nodes/delta_7.safetensors",
        "other/n/delta_7.safetensors",
        "/nodes/n/delta_7.safetensors",
        "nodes/n/Delta_7.safetensors",
        "nodes/n/node.json",
        "global/latest.safetensors",
    ],
)
def test_other_files_are_not_deltas(path: str):
    assert parse_delta_path(path) is None


@pytest.mark.parametrize("path", [MODEL_PATH, "global/m-1_x.safetensors", "global/A.safetensors"])
def test_metadata_may_name_a_model_in_the_global_folder(path: str):
    assert is_model_file(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "latest.safetensors",
        "/global/latest.safetensors",
        "global/../nodes/n/delta_7.safetensors",
        "global/..safetensors",
        "global/sub/latest.safetensors",
        "global/latest.bin",
        "global/latest.safetensors\n",
        "global/lätest.safetensors",
        "nodes/n/delta_7.safetensors",
        "https://elsewhere/global/latest.safetensors",
    ],
)
def test_metadata_may_name_no_other_file_as_the_model(path: str):
    assert not is_model_file(path)
