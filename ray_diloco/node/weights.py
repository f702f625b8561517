"""The node's tensors: live model, baseline and snapshot, and what the coordinator's actions do
to them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from ray_diloco.protocol.terms import Install
from ray_diloco.tensors.baseline import (
    advance,
    advance_to_snapshot,
    advance_with_decay,
    carry_along,
    fold_back,
    rebase,
    replace,
)
from ray_diloco.tensors.delta_file import DeltaReader, WrittenDelta, write_delta
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.safetensors_reader import SafetensorsReader, read_header
from ray_diloco.tensors.safetensors_writer import Seal, write_state
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.tensors.snapshot import allocate, capture


class Weights:
    """Owned by the training thread, but for `write`, which the upload lane calls between the
    snapshot and the word that its file is written; until then the baseline does not move.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        codec: str,
        mismatch: str,
        codec_decay: float = 1.0,
        delta_factor: float = 1.0,
        fragments: int = 1,
        alpha: float = 0.0,
    ) -> None:
        """``mismatch``: what an entry of a global that does not fit means, error or ignore.
        ``codec_decay``: the share of a codec's error that goes out with later deltas.
        ``delta_factor``: of a machine that sends something else than it should. ``fragments``: into
        how many the model is cut; ``alpha``: the share of a node's own weights where it installs.
        """
        self.schema = StateSchema.of(model)
        self.fragments = fragments
        self._parts = split(self.schema, fragments)
        self._mix = alpha
        self._live: State = model.state_dict()
        self._baseline = allocate(self.schema, in_promoted_dtype=True)
        self._snapshot = allocate(self.schema)
        capture(self._live, self._baseline, self.schema)
        self.codec = codec
        self._decay = codec_decay
        self._factor = delta_factor
        self._mismatch = mismatch
        self._installed_since_snapshot = False
        self.mismatched: frozenset[str] = frozenset()
        """Entries that kept their local value at the last installation."""

    def take_snapshot(self) -> None:
        """One copy of the live model into the kept buffer; all of it, for a checkpoint too."""
        capture(self._live, self._snapshot, self.schema)
        self._installed_since_snapshot = False

    def write(
        self, path: Path, header: Mapping[str, str], seal: Seal | None = None
    ) -> WrittenDelta:
        """Write baseline - snapshot as a delta file, of the fragment that the header names."""
        return write_delta(
            path,
            baseline=self._baseline,
            current=self._snapshot,
            schema=self._part_in(header),
            header=dict(header) | {"codec": self.codec},
            codec=self.codec,
            seal=seal,
            factor=self._factor,
        )

    def advance(self, delta: Path) -> None:
        """The delta landed: the baseline moves by what its receivers decode."""
        header = read_header(delta).metadata
        baseline, snapshot, schema = self._baseline, self._snapshot, self._part_in(header)
        if header["codec"] == "fp32" and not self._installed_since_snapshot:
            advance_to_snapshot(baseline, snapshot, schema)
            return
        with self._open(delta) as reader:
            if self._decay < 1:
                advance_with_decay(baseline, reader, schema, snapshot=snapshot, decay=self._decay)
            else:
                advance(baseline, reader, schema)

    def fold_back(self, delta: Path) -> None:
        """The delta was refused after an installation: the live model takes it up again."""
        part = self._part_in(read_header(delta).metadata)
        with self._open(delta) as reader:
            fold_back(self._live, reader, part)

    def return_to_baseline(self) -> None:
        """The live model becomes the baseline; its local counters go on."""
        replace(self._live, self._baseline, self._baseline, self.schema)

    # -- a checkpoint ------------------------------------------------------------------------------

    @property
    def snapshot_holds(self) -> bool:
        """Landing moves the baseline to the snapshot, so that a checkpoint needs it."""
        return self._decay < 1 or not self._installed_since_snapshot

    def save_live(self, path: Path) -> None:
        write_state(path, self._live, {"format": "pt"})

    def save_snapshot(self, path: Path) -> None:
        write_state(path, self._snapshot, {"format": "pt"})

    def save_baseline(self, path: Path) -> None:
        write_state(path, self._baseline, {"format": "pt"})

    def read(self, path: Path) -> State:
        """A state that one of these has written."""
        with SafetensorsReader(path) as reader:
            return {name: reader.read(name) for name in reader.header.tensors}

    def restore(self, *, baseline: Path, snapshot: Path | None) -> None:
        """Take back the kept buffers; the live model is restored by its owner."""
        capture(self.read(baseline), self._baseline, self.schema)
        self._installed_since_snapshot = snapshot is None
        if snapshot is not None:
            capture(self.read(snapshot), self._snapshot, self.schema)

    # -- a global ----------------------------------------------------------------------------------

    def check(self, path: Path, fragment: int | None = None) -> State:
        """Read a global model, or one fragment of it. GlobalError when it is not one of this model;
        SafetensorsError.
        """
        schema = self.schema if fragment is None else self._parts[fragment]
        with SafetensorsReader(path) as reader:
            tensors = reader.header.tensors
            schema.check(tensors, mismatch=self._mismatch)
            return {name: reader.read(name) for name in tensors}

    def install(
        self, incoming: State, policy: Install, fragments: Sequence[int] | None = None
    ) -> None:
        """Take a global that `check` has read, its tensors included. ``fragments``: of it only
        these, each mixed with the node's own weights; None: all of it, as it is.
        """
        mixed = 0.0 if fragments is None else self._mix
        for place in range(self.fragments) if fragments is None else fragments:
            part = self._parts[place]
            names = {entry.name for entry in part}
            found = {name: value for name, value in incoming.items() if name in names}
            keep = part.check(found, mismatch=self._mismatch)
            self.mismatched = self.mismatched - names | keep
            if self._decay < 1:
                carry_along(self._snapshot, self._baseline, incoming, part, keep=keep)
            if policy == "rebase":
                rebase(self._live, self._baseline, incoming, part, keep=keep, alpha=mixed)
            else:
                replace(self._live, self._baseline, incoming, part, keep=keep)
            self._installed_since_snapshot = True

    def _part_in(self, header: Mapping[str, str]) -> StateSchema:
        """The entries that a delta with this header has."""
        fragment = header.get("fragment")
        return self._parts[0 if fragment is None else int(fragment.partition("/")[0])]

    def _open(self, delta: Path) -> DeltaReader:
        header = read_header(delta).metadata
        return DeltaReader(
            delta,
            schema=self._part_in(header),
            codec=header["codec"],  # after a resume it may be that of the setting before
            path=delta.name,
            factor=self._factor,
        )
