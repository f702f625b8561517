"""``global/step_count.json``: which global model is current, and what the master knows about the
nodes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.counts import is_count
from ray_diloco.protocol.delta_card import Identity
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH, is_model_file, is_node_id
from ray_diloco.protocol.terms import ALGORITHM, OPTIMIZER, PROTOCOL_VERSION

CARD_LIMIT = 16 * 1024 * 1024
"""The most bytes that a global card may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """What the global contains of one node: the row of the `nodes` table that the node itself
    reads.

    ``last_local_step``: every delta of this nonce up to this step was merged or rejected, for ever.
    ``seen_outer_step``: the outer step when something new of this node was last seen.
    ``rejected``: the last rejected deltas as (local step, reason), newest last.
    """

    nonce: str | None
    last_local_step: int
    seen_outer_step: int
    tokens: int = 0
    rejected: tuple[tuple[int, str], ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalCard:
    """The metadata of a global model. None marks what a plain peer does not publish."""

    outer_step: int
    model_file: str = MODEL_PATH
    updated_at: str = ""
    bootstrap: bool = False
    optimizer: str = OPTIMIZER
    run_id: str | None = None
    config_hash: str | None = None
    publication_id: str | None = None
    master_id: str | None = None
    master_epoch: int = 0
    model_sha256: str | None = None
    state_file: str | None = None
    state_sha256: str | None = None
    round: tuple[Identity, ...] = ()
    nodes: Mapping[str, NodeRow] = field(default_factory=dict[str, NodeRow])
    tokens_total: int = 0
    stop: str | None = None
    """Why the run is over, or None while it goes on."""
    closed: bool = False
    """The last publication of a run: its master has merged everything and gone."""
    since_state: tuple[tuple[Identity, ...], ...] = ()
    """What the rounds merged that the outer state does not cover, oldest first; their deltas are
    still in the repository. Empty when the state is of this publication.
    """
    state_notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """With `since_state`: the strings that the outer state would carry now."""
    fragment_steps: tuple[int, ...] = ()
    """Where the model is cut into fragments: the outer step of each one's last change."""
    fragment_sha256: tuple[str, ...] = ()
    """Of the file with each fragment alone, as of its last change; "" before there is one."""
    signed_by: str | None = None
    """The public key of whoever signed it, hexadecimal; None: unsigned."""
    signature: str | None = None

    @property
    def version(self) -> tuple[int, int]:
        """Globals are ordered by (master epoch, outer step)."""
        return (self.master_epoch, self.outer_step)

    def to_json(self) -> bytes:
        """The file as it is published: indent 2, sorted keys, a newline at the end."""
        fields: dict[str, Any] = {
            "algorithm": ALGORITHM,
            "model_file": self.model_file,
            "outer_step": self.outer_step,
            "updated_at": self.updated_at,
        }
        fields |= {"bootstrap": "true"} if self.bootstrap else {"optimizer": self.optimizer}
        if self.publication_id is not None:
            fields |= self._extensions()
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()

    def _extensions(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL_VERSION,
            "run_id": self.run_id,
            "config_hash": self.config_hash,
            "publication_id": self.publication_id,
            "master_id": self.master_id,
            "master_epoch": self.master_epoch,
            "model_sha256": self.model_sha256,
            "state_file": self.state_file,
            "state_sha256": self.state_sha256,
            "round": [list(identity) for identity in self.round],
            "nodes": {
                node_id: {
                    "nonce": row.nonce,
                    "last_local_step": row.last_local_step,
                    "seen_outer_step": row.seen_outer_step,
                    "tokens": row.tokens,
                    "rejected": [list(item) for item in row.rejected],
                    "done": row.done,
                }
                for node_id, row in self.nodes.items()
            },
            "tokens_total": self.tokens_total,
            "stop": self.stop,
        } | self._unusual()

    def _unusual(self) -> dict[str, Any]:
        """What most cards have no use for."""
        fields: dict[str, Any] = {"closed": True} if self.closed else {}
        if self.fragment_steps:
            fields["fragment_steps"] = list(self.fragment_steps)
            fields["fragment_sha256"] = list(self.fragment_sha256)
        if self.since_state:
            fields["since_state"] = [
                [list(identity) for identity in merged] for merged in self.since_state
            ]
            fields["state_notes"] = dict(self.state_notes)
        signing = {"signed_by": self.signed_by, "signature": self.signature}
        fields |= {key: value for key, value in signing.items() if value is not None}
        return fields

    @classmethod
    def from_json(cls, data: bytes) -> "GlobalCard":
        """Read the file of a master, ours or a peer's. GlobalError when it must not be trusted."""
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            raise GlobalError(f"{CARD_PATH} is not JSON") from None
        if not isinstance(parsed, dict):
            raise GlobalError(f"{CARD_PATH} is not a JSON object")
        read = _Fields(cast(dict[str, Any], parsed))
        if read.fields.get("algorithm") != ALGORITHM:
            raise GlobalError(f"{CARD_PATH}: algorithm is {read.fields.get('algorithm')!r}")
        model_file = read.text("model_file") or MODEL_PATH
        if not is_model_file(model_file):
            raise GlobalError(f"{CARD_PATH}: model_file {model_file!r} is not a file in global/")
        return cls(
            outer_step=read.count("outer_step", required=True),
            model_file=model_file,
            updated_at=read.text("updated_at") or "",
            bootstrap=read.fields.get("bootstrap") == "true",
            optimizer=read.text("optimizer") or OPTIMIZER,
            run_id=read.text("run_id"),
            config_hash=read.text("config_hash"),
            publication_id=read.text("publication_id"),
            master_id=read.text("master_id"),
            master_epoch=read.count("master_epoch"),
            model_sha256=read.text("model_sha256"),
            state_file=read.text("state_file"),
            state_sha256=read.text("state_sha256"),
            round=read.identities("round", read.fields.get("round", ())),
            since_state=read.rounds("since_state"),
            state_notes=read.texts("state_notes"),
            closed=read.fields.get("closed") is True,
            nodes=read.nodes(),
            tokens_total=read.count("tokens_total"),
            stop=read.text("stop"),
            fragment_steps=tuple(read.list_of("fragment_steps", is_count)),
            fragment_sha256=tuple(read.list_of("fragment_sha256", lambda x: isinstance(x, str))),
            signed_by=read.text("signed_by"),
            signature=read.text("signature"),
        )


@dataclass(frozen=True, slots=True)
class _Fields:
    fields: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise GlobalError(f"{CARD_PATH}: {key} is {value!r}, not a text")
        return value

    def count(self, key: str, *, required: bool = False) -> int:
        value = self.fields.get(key, None if required else 0)
        if not is_count(value):
            raise GlobalError(f"{CARD_PATH}: {key} is {value!r}, not a count")
        return value

    def identities(self, key: str, value: Any) -> tuple[Identity, ...]:
        try:
            return tuple(
                Identity(_node_id(node), _nonce(nonce), _count(step)) for node, nonce, step in value
            )
        except (TypeError, ValueError):
            raise GlobalError(f"{CARD_PATH}: {key} is not a list of identities") from None

    def list_of(self, key: str, is_sound: Callable[[object], bool]) -> list[Any]:
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(map(is_sound, cast(list[Any], value))):
            raise GlobalError(f"{CARD_PATH}: {key} is not a list of what it should hold")
        return cast(list[Any], value)

    def rounds(self, key: str) -> tuple[tuple[Identity, ...], ...]:
        value = self.fields.get(key, [])
        if not isinstance(value, list):
            raise GlobalError(f"{CARD_PATH}: {key} is not a list of rounds")
        return tuple(self.identities(key, each) for each in cast(list[Any], value))

    def texts(self, key: str) -> dict[str, str]:
        value = self.fields.get(key, {})
        if not isinstance(value, dict):
            raise GlobalError(f"{CARD_PATH}: {key} is not a table of texts")
        table = cast(dict[Any, Any], value)
        if not all(isinstance(text, str) for text in (*table, *table.values())):
            raise GlobalError(f"{CARD_PATH}: {key} is not a table of texts")
        return table

    def nodes(self) -> dict[str, NodeRow]:
        table = self.fields.get("nodes", {})
        if not isinstance(table, dict):
            raise GlobalError(f"{CARD_PATH}: nodes is not a table")
        try:
            return {_node_id(key): _row(row) for key, row in cast(dict[Any, Any], table).items()}
        except (TypeError, ValueError, KeyError, AttributeError):
            raise GlobalError(f"{CARD_PATH}: nodes has a malformed row") from None


def _count(value: object) -> int:
    if not is_count(value):
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _nonce(value: object) -> str | None:
    return None if value is None else _text(value)


def _node_id(text: Any) -> str:
    if not isinstance(text, str) or not is_node_id(text):
        raise ValueError(text)
    return text


def _row(row: Mapping[str, Any]) -> NodeRow:
    return NodeRow(
        nonce=_nonce(row["nonce"]),
        last_local_step=_count(row["last_local_step"]),
        seen_outer_step=_count(row["seen_outer_step"]),
        tokens=_count(row.get("tokens", 0)),
        rejected=tuple((_count(step), _text(reason)) for step, reason in row.get("rejected", ())),
        done=row.get("done", False) is True,
    )
