"""What moves a node's baseline and its live model.

The baseline is a state of contiguous CPU buffers in the promoted dtypes (`allocate` with
``in_promoted_dtype``). Its parameters move by what was sent; its statistics and integer entries
stay what the last installed global said. So the delta of statistics is always measured from that
global, which is what lets the master recover their absolute values, and the integer entries are
"the previous global" of the next installation.

``live`` is the state dict of the model itself: its tensors are written in place, each storage once,
whatever its device, dtype and memory format. Buffers are handed over instead of copied where they
can be: that is time of the training thread.
"""

from collections.abc import Callable
from functools import partial

import torch

from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import PIECE, State, as_numbers, pieces
from ray_diloco.tensors.fragments import mix
from ray_diloco.tensors.schema import Entry, StateSchema
from ray_diloco.tensors.snapshot import copy_tensors

_AT_ONCE = 4 * PIECE
"""Numbers that a rebase takes at once: three times 1 MiB, in few calls, stay in a shared cache."""


@torch.no_grad()
def advance(baseline: State, delta: DeltaReader, schema: StateSchema) -> None:
    """A job LANDED: ``baseline -= delta``, as every receiver decodes it. Statistics stay."""
    buffer = torch.empty(PIECE)
    for entry in _stepped(schema):
        numbers = as_numbers(baseline[entry.name])
        for start, stop in pieces(entry.numbers):
            part = buffer[: stop - start]
            delta.read_piece(entry, start, part)
            numbers[start:stop].sub_(part)


@torch.no_grad()
def advance_with_decay(
    baseline: State, delta: DeltaReader, schema: StateSchema, *, snapshot: State, decay: float
) -> None:
    """A job LANDED: ``baseline -= delta``, and of the error that the codec made, which is what
    then lies between baseline and snapshot, only the share ``decay`` goes out with later deltas.

    ``snapshot``: what was sent, carried along by installations since. Statistics stay.
    """
    advance(baseline, delta, schema)
    for entry in _stepped(schema):
        numbers, target = as_numbers(baseline[entry.name]), as_numbers(snapshot[entry.name])
        for start, stop in pieces(entry.numbers):
            part = numbers[start:stop]
            part.lerp_(target[start:stop].to(part.dtype), 1 - decay)


@torch.no_grad()
def carry_along(
    snapshot: State,
    baseline: State,
    incoming: State,
    schema: StateSchema,
    *,
    keep: frozenset[str] = frozenset(),
) -> None:
    """Before an installation while a job is in flight: the snapshot keeps its distance from the
    baseline, ``snapshot = G - (baseline - snapshot)``, rounded to its own dtype.
    """
    for entry in _stepped(schema):
        if entry.name in keep:
            continue
        kept, before = as_numbers(snapshot[entry.name]), as_numbers(baseline[entry.name])
        new = as_numbers(incoming[entry.name].contiguous())
        for start, stop in pieces(entry.numbers):
            unsent = before[start:stop] - kept[start:stop]
            kept[start:stop].copy_(new[start:stop].to(unsent.dtype) - unsent)


@torch.no_grad()
def advance_to_snapshot(baseline: State, snapshot: State, schema: StateSchema) -> None:
    """A job LANDED, sent without loss and with no installation since: the baseline is exactly
    the snapshot. Statistics stay.

    The two change buffers where their dtypes agree, so that the snapshot holds nothing any more.
    """
    differing: list[str] = []
    for entry in schema:
        if not entry.floating or entry.statistics:
            continue
        name = entry.name
        if baseline[name].dtype == snapshot[name].dtype:
            baseline[name], snapshot[name] = snapshot[name], baseline[name]
        elif entry.tied_to is None:
            differing.append(name)
    copy_tensors([snapshot[name] for name in differing], [baseline[name] for name in differing])


@torch.no_grad()
def rebase(
    live: State,
    baseline: State,
    incoming: State,
    schema: StateSchema,
    *,
    keep: frozenset[str] = frozenset(),
    alpha: float = 0.0,
) -> None:
    """Install a global: ``live = G - (baseline - live)``, mixed with the live model by ``alpha``
    (`fragments.mix`), so that what was not sent counts in full whatever ``alpha`` is. Then
    ``baseline = G``, which takes over the tensors of ``incoming`` where their dtypes agree.

    Computed in the baseline's dtype. Statistics take G's value; integer entries only where G
    differs from the previous global. ``keep``: names that `StateSchema.check` left out.
    """
    entry = partial(_mix_entry, alpha=alpha) if alpha else _rebase_entry
    _install(live, baseline, incoming, schema, keep, entry)


@torch.no_grad()
def replace(
    live: State,
    baseline: State,
    incoming: State,
    schema: StateSchema,
    *,
    keep: frozenset[str] = frozenset(),
) -> None:
    """Install a global: ``live = baseline = G``, which takes over the tensors of ``incoming`` where
    their dtypes agree; integer entries only where G differs from the previous global.
    """
    _install(live, baseline, incoming, schema, keep, _replace_entry)


@torch.no_grad()
def fold_back(live: State, delta: DeltaReader, schema: StateSchema) -> None:
    """A job REFUSED after an installation: ``live -= pseudo-gradient``. Statistics stay G's."""
    for entry in _stepped(schema):
        dtype = torch.complex64 if entry.dtype.is_complex else torch.float32
        whole = torch.empty(entry.shape, dtype=dtype)
        numbers = as_numbers(whole)
        for start, stop in pieces(entry.numbers):
            delta.read_piece(entry, start, numbers[start:stop])
        live[entry.name].sub_(whole.to(live[entry.name].device))


def _stepped(schema: StateSchema) -> list[Entry]:
    return [entry for entry in schema.distinct if entry.floating and not entry.statistics]


InstallEntry = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def _install(
    live: State,
    baseline: State,
    incoming: State,
    schema: StateSchema,
    keep: frozenset[str],
    install_entry: InstallEntry,
) -> None:
    for entry in schema.distinct:
        if entry.name in keep:
            continue
        tensors = live[entry.name], baseline[entry.name], incoming[entry.name]
        if not entry.floating:
            _install_integers(*tensors)
            continue
        if entry.statistics:
            _replace_entry(*tensors)
        else:
            install_entry(*tensors)
        baseline[entry.name] = _taken_over(*tensors[1:])
    for entry in schema:
        if entry.tied_to is not None:
            baseline[entry.name] = baseline[entry.tied_to]


def _taken_over(kept: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """What the baseline has from now on: the new tensor itself, or its numbers in the kept one."""
    fits = incoming.dtype == kept.dtype and incoming.device == kept.device
    return incoming if fits and incoming.is_contiguous() else kept.copy_(incoming)


def _install_integers(live: torch.Tensor, previous: torch.Tensor, incoming: torch.Tensor) -> None:
    changed = incoming != previous
    if bool(changed.any()):
        target = changed.to(live.device)
        live.copy_(torch.where(target, incoming.to(live.device, live.dtype), live))
        previous.copy_(incoming)


def _replace_entry(live: torch.Tensor, _baseline: torch.Tensor, incoming: torch.Tensor) -> None:
    live.copy_(incoming)


def _mix_entry(
    live: torch.Tensor, baseline: torch.Tensor, incoming: torch.Tensor, *, alpha: float
) -> None:
    local = live.cpu().to(baseline.dtype)
    live.copy_(mix(local, incoming.to(baseline.dtype) - (baseline - local), alpha))


def _rebase_entry(live: torch.Tensor, baseline: torch.Tensor, incoming: torch.Tensor) -> None:
    if live.device.type != "cpu" or not live.is_contiguous():
        live.copy_(incoming.to(baseline.dtype) - (baseline - live.cpu()))
        return
    now, before, new = as_numbers(live), as_numbers(baseline), as_numbers(incoming.contiguous())
    alike = now.dtype == before.dtype  # what was not sent may stand in the live model for a moment
    scratch = None if alike else torch.empty(min(_AT_ONCE, now.numel()), dtype=before.dtype)
    for part, old, fresh in zip(
        now.split(PIECE), before.split(PIECE), new.split(PIECE), strict=True
    ):
        unsent = part if scratch is None else scratch[: part.numel()]
        torch.sub(old, part, out=unsent)
        torch.sub(fresh, unsent, out=part)
