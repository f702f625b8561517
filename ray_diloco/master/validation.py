"""Which node deltas may be merged."""

import hashlib
import statistics
from dataclasses import dataclass
from pathlib import Path

from ray_diloco.errors import DeltaError, SafetensorsError
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.terms import NEVER_HAD_A_GLOBAL
from ray_diloco.tensors.codec import codec_named
from ray_diloco.tensors.delta_file import check_layout
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.pseudo_gradient import Tally
from ray_diloco.tensors.safetensors_reader import SafetensorsReader, read_header
from ray_diloco.tensors.schema import StateSchema

_ENOUGH_NORMS = 5
"""Merged norms before the relative limit holds; a median of fewer says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What a delta is held against. ``run_id`` None: this run has none to compare."""

    schema: StateSchema
    outer_step: int
    run_id: str | None = None
    accept_unbased: bool = False
    fragments: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLimits:
    """Largest L2 norm of a delta: ``absolute``, and ``relative`` to the median of ``history``, the
    norms merged lately. None: no limit.
    """

    absolute: float | None = None
    relative: float | None = None
    history: tuple[float, ...] = ()

    @property
    def limit(self) -> float | None:
        """The lower of the two; the relative one holds from 5 norms on."""
        limits = [] if self.absolute is None else [self.absolute]
        if self.relative is not None and len(self.history) >= _ENOUGH_NORMS:
            limits.append(self.relative * statistics.median(self.history))
        return min(limits, default=None)


def check_card(card: DeltaCard, *, path: str, acceptance: Acceptance) -> None:
    """Hold what a delta says of itself against the global. DeltaError with the reason."""
    base = card.base_outer_step
    if base > acceptance.outer_step:
        raise DeltaError(
            path, f"base_outer_step {base} is above the outer step {acceptance.outer_step}"
        )
    if base == NEVER_HAD_A_GLOBAL and not acceptance.accept_unbased:
        raise DeltaError(path, "its node never had a global (accept_unbased=false)")
    if card.schema is not None and card.schema != acceptance.schema.fingerprint:
        raise DeltaError(path, f"schema {card.schema[:12]!r} is not that of the global")
    if None not in (card.run_id, acceptance.run_id) and card.run_id != acceptance.run_id:
        raise DeltaError(path, f"it belongs to run {str(card.run_id)[:40]!r}")
    whole = card.fragment is None
    if (1 if whole else card.fragments) != acceptance.fragments or whole != (
        acceptance.fragments == 1
    ):
        found = "the whole model" if whole else f"fragment {card.fragment} of {card.fragments}"
        raise DeltaError(path, f"it holds {found}, expected one of {acceptance.fragments}")
    codec_named(card.codec, path=path)


def card_in(file: Path, *, path: str) -> DeltaCard:
    """What a fetched delta says of itself. DeltaError when that is malformed or disagrees with the
    path.
    """
    try:
        return DeltaCard.from_header(read_header(file).metadata, path=path)
    except SafetensorsError as error:
        raise DeltaError(path, str(error)) from None


def check_file(file: Path, *, path: str, acceptance: Acceptance) -> DeltaCard:
    """Check all of a fetched delta but its values, and give its card.

    ``path``: where it lies in the repository. DeltaError with the reason: not well-formed, a card
    that is wrong or disagrees with the path, other keys, shapes or dtypes than the global's, a
    payload that is not what the card's hash says. Values and norm are checked by the merge.
    """
    try:
        with SafetensorsReader(file) as reader:
            card = DeltaCard.from_header(reader.header.metadata, path=path)
            check_card(card, path=path, acceptance=acceptance)
            codec = codec_named(card.codec, path=path)
            part = split(acceptance.schema, acceptance.fragments)[card.fragment or 0]
            check_layout(reader.header, part, codec, path=path)
            _check_payload(reader, card, path)
    except SafetensorsError as error:
        raise DeltaError(path, str(error)) from None
    return card


def check_values(found: Tally, *, path: str, limits: NormLimits) -> None:
    """Hold what a pass found in a delta's values against the rules. DeltaError with the reason."""
    if not found.finite:
        raise DeltaError(path, "it holds values that are not finite")
    if limits.limit is not None and not found.norm <= limits.limit:
        raise DeltaError(path, f"norm {found.norm:.4g} is above the limit {limits.limit:.4g}")


def _check_payload(reader: SafetensorsReader, card: DeltaCard, path: str) -> None:
    if card.sha256 is None:
        return
    digest = hashlib.sha256()
    for block in reader.payload():
        digest.update(block)
    if digest.hexdigest() != card.sha256:
        raise DeltaError(path, "its payload is not what its sha256 says")
