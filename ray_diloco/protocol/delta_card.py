"""The header of a node delta: who sends what, measured from where."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ray_diloco.errors import DeltaError
from ray_diloco.protocol.fragments import STRIDE, cells
from ray_diloco.protocol.paths import is_node_id, parse_delta_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.terms import ALGORITHM, NEVER_HAD_A_GLOBAL

SHA256_PLACEHOLDER = "0" * 64

_FRAGMENT = re.compile(r"(0|[1-9][0-9]{0,5})/([1-9][0-9]{0,5})")

NONCE_LENGTH = 128
"""The most letters of a nonce: the ledger keeps every nonce for ever. None is empty."""


class Identity(NamedTuple):
    """Which delta this is. ``nonce`` is None for a peer, whose path and blob id stand in for it."""

    node_id: str
    nonce: str | None
    local_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCard:
    """The string header of a delta. None marks what a plain peer does not say."""

    node_id: str
    local_step: int
    base_outer_step: int
    nonce: str | None = None
    covers: StepRanges | None = None
    oldest_base_outer_step: int | None = None
    codec: str = "fp32"
    tokens: int | None = None
    shard_tokens: int | None = None
    """Size of the data that its node trains on; said where weights ask for it."""
    mean_loss: float | None = None
    sha256: str | None = None
    """Of the payload: every byte behind the safetensors header."""
    schema: str | None = None
    run_id: str | None = None
    sent_at: str | None = None
    final: bool = False
    fragment: int | None = None
    """Which fragment it carries, of ``fragments``; None: the whole model."""
    fragments: int = 1

    @property
    def cells(self) -> StepRanges | None:
        """What it covers, as the books have it."""
        return None if self.covers is None else cells(self.covers, self.fragment or 0)

    @property
    def identity(self) -> Identity:
        return Identity(self.node_id, self.nonce, self.local_step)

    def header(self) -> dict[str, str]:
        """The header as it is written; a payload hash that is not known yet is a placeholder of
        the same length.
        """
        header = {
            "algorithm": ALGORITHM,
            "node_id": self.node_id,
            "local_step": str(self.local_step),
            "base_outer_step": str(self.base_outer_step),
            "codec": self.codec,
            "sha256": self.sha256 or SHA256_PLACEHOLDER,
            "final": "true" if self.final else "false",
        }
        optional = {
            "nonce": self.nonce,
            "covers": self.covers,
            "oldest_base_outer_step": self.oldest_base_outer_step,
            "tokens": self.tokens,
            "shard_tokens": self.shard_tokens,
            "mean_loss": None if self.mean_loss is None else repr(self.mean_loss),
            "schema": self.schema,
            "run_id": self.run_id,
            "sent_at": self.sent_at,
            "fragment": None if self.fragment is None else f"{self.fragment}/{self.fragments}",
        }
        return header | {key: str(value) for key, value in optional.items() if value is not None}

    @classmethod
    def from_header(cls, header: Mapping[str, str], *, path: str) -> "DeltaCard":
        """Read a header. DeltaError when it is malformed or disagrees with the path."""
        read = _Header(header, path)
        fragment, fragments = read.fragment("fragment")
        if header.get("algorithm") != ALGORITHM:
            raise DeltaError(path, f"algorithm is {header.get('algorithm')!r}, not {ALGORITHM!r}")
        card = cls(
            node_id=read.text("node_id"),
            local_step=read.integer("local_step"),
            base_outer_step=read.integer("base_outer_step", least=NEVER_HAD_A_GLOBAL),
            nonce=read.nonce(),
            covers=read.ranges("covers"),
            oldest_base_outer_step=read.optional_integer(
                "oldest_base_outer_step", least=NEVER_HAD_A_GLOBAL
            ),
            codec=header.get("codec", "fp32"),
            tokens=read.optional_integer("tokens"),
            shard_tokens=read.optional_integer("shard_tokens"),
            mean_loss=read.number("mean_loss"),
            sha256=header.get("sha256"),
            schema=header.get("schema"),
            run_id=header.get("run_id"),
            sent_at=header.get("sent_at"),
            final=header.get("final") == "true",
            fragment=fragment,
            fragments=fragments,
        )
        _agree(card, path)
        return card


def _agree(card: DeltaCard, path: str) -> None:
    where = parse_delta_path(path)
    if where is None or not is_node_id(card.node_id):
        raise DeltaError(path, "not the path of a node delta")
    if (card.node_id, card.local_step) != where:
        raise DeltaError(
            path, f"the header says node {card.node_id!r}, local step {card.local_step}"
        )
    if card.covers is not None and card.covers and card.covers.last > card.local_step:
        raise DeltaError(path, f"covers {card.covers} goes beyond local step {card.local_step}")
    if card.fragment is not None and card.local_step >= STRIDE:
        raise DeltaError(path, f"local step {card.local_step} is beyond all steps of a fragment")


@dataclass(frozen=True, slots=True)
class _Header:
    fields: Mapping[str, str]
    path: str

    def text(self, key: str) -> str:
        if key not in self.fields:
            raise DeltaError(self.path, f"the header has no {key}")
        return self.fields[key]

    def nonce(self) -> str | None:
        nonce = self.fields.get("nonce")
        if nonce is not None and not 0 < len(nonce) <= NONCE_LENGTH:
            raise DeltaError(self.path, f"the nonce has {len(nonce)} letters")
        return nonce

    def integer(self, key: str, *, least: int = 0) -> int:
        text = self.text(key)
        canonical = text.removeprefix("-")
        if not (canonical.isascii() and canonical.isdigit() and len(canonical) < 19):
            raise DeltaError(self.path, f"{key} is {text!r}, not an integer")
        value = int(text)
        if str(value) != text or value < least:
            raise DeltaError(self.path, f"{key} is {text!r}, not an integer from {least} up")
        return value

    def optional_integer(self, key: str, *, least: int = 0) -> int | None:
        return self.integer(key, least=least) if key in self.fields else None

    def number(self, key: str) -> float | None:
        if key not in self.fields:
            return None
        try:
            value = float(self.fields[key])
        except ValueError:
            raise DeltaError(self.path, f"{key} is {self.fields[key]!r}, not a number") from None
        return value if math.isfinite(value) else None

    def fragment(self, key: str) -> tuple[int | None, int]:
        """Written as "2/4", the first of all being 0."""
        if key not in self.fields:
            return None, 1
        found = _FRAGMENT.fullmatch(self.fields[key])
        if found is None or not int(found[1]) < int(found[2]):
            raise DeltaError(
                self.path, f"{key} is {self.fields[key][:20]!r}, not one such as '0/4'"
            )
        return int(found[1]), int(found[2])

    def ranges(self, key: str) -> StepRanges | None:
        if key not in self.fields:
            return None
        try:
            return StepRanges.parse(self.fields[key])
        except ValueError as error:
            raise DeltaError(self.path, f"{key}: {error}") from None
