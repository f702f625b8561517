"""Where things lie in the repository, and which spellings are accepted."""

import re
from typing import NamedTuple

GLOBAL_FOLDER = "global"
NODES_FOLDER = "nodes"
MODEL_PATH = "global/latest.safetensors"
CARD_PATH = "global/step_count.json"
STATE_PATH = "global/outer_state.safetensors"
HEARTBEAT_PATH = "global/master.json"

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL_FILE = re.compile(r"global/[A-Za-z0-9._-]+\.safetensors")
_DELTA = re.compile(
    r"nodes/([A-Za-z0-9][A-Za-z0-9._-]{0,63})/delta_(0|[1-9][0-9]{0,17})\.safetensors"
)

NODE_ID_RULE = "a letter or digit, then at most 63 letters, digits, '.', '_' or '-'"


class DeltaPath(NamedTuple):
    """What the path of a node delta says."""

    node_id: str
    local_step: int


def is_node_id(text: str) -> bool:
    """Whether a node may have this id; it names a folder in the repository and one on disk."""
    return _NODE_ID.fullmatch(text) is not None


def is_model_file(text: str) -> bool:
    """Whether metadata may name this file as the global model."""
    return _MODEL_FILE.fullmatch(text) is not None and ".." not in text


def delta_path(node_id: str, local_step: int) -> str:
    return f"{NODES_FOLDER}/{node_id}/delta_{local_step}.safetensors"


def fragment_path(fragment: int) -> str:
    """Where a fragment of the global lies by itself, once it has changed."""
    return f"{GLOBAL_FOLDER}/fragment_{fragment}.safetensors"


def node_card_path(node_id: str) -> str:
    return f"{NODES_FOLDER}/{node_id}/node.json"


def parse_delta_path(path: str) -> DeltaPath | None:
    """Node and step of a delta; None for anything else, odd spellings of a step (+7, 1_0, 010)
    included.
    """
    match = _DELTA.fullmatch(path)
    return DeltaPath(match[1], int(match[2])) if match else None
