"""A round as one stream: deltas and the previous global in, the next global's two files out.

Per piece: the mean, the outer step, and the result into both files, so that a round's memory is a
few pieces and the statistics, whatever the model and the number of deltas. A delta that turns out
bad costs one more pass without it; nothing of a pass that had one is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ray_diloco.errors import DeltaError
from ray_diloco.master.aggregation import FetchedDelta, OpenDelta, in_merge_order
from ray_diloco.master.inner_products import inner_products
from ray_diloco.master.merge_pass import (
    MODEL_NAME,
    STATE_NAME,
    Group,
    MergePass,
    NextGlobal,
    Publication,
)
from ray_diloco.master.outer_optimizer import OuterOptimizer, Turn, buffer_names
from ray_diloco.master.outer_state import (
    STRINGS,
    GlobalFiles,
    OpenGlobal,
    needs_copy,
    own_metadata,
    state_layout,
)
from ray_diloco.master.recipe import PLAIN, Recipe, needs_products, recipe_for
from ray_diloco.master.validation import NormLimits, check_values
from ray_diloco.protocol.paths import fragment_path
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import State, pieces
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.safetensors_writer import (
    SafetensorsWriter,
    WrittenFile,
    copy_with_metadata,
    write_state,
)
from ray_diloco.tensors.schema import StateSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What came of each delta. ``norms`` belong to ``merged``, both in merge order. ``zero``: a
    peer's deltas without any change, dropped from the count. ``aggregation``: that was used.
    """

    merged: tuple[FetchedDelta, ...]
    norms: tuple[float, ...]
    rejected: tuple[tuple[FetchedDelta, DeltaError], ...]
    zero: tuple[FetchedDelta, ...]
    aggregation: str = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished round. ``publication`` None: no delta was left to merge, the global stays."""

    merge: Merge
    publication: Publication | None


DescribeState = Callable[[Merge], Mapping[str, str]]
"""The strings to store with the outer state, once it is known what was merged."""


@torch.no_grad()
def aggregate_and_step(
    deltas: Sequence[FetchedDelta],
    *,
    previous: GlobalFiles,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    limits: NormLimits,
    folder: Path,
    model_metadata: Mapping[str, str],
    describe_state: DescribeState,
    settings: DilocoSettings = PLAIN,
    nodes: int = 1,
    spare: Path | None = None,
) -> Round:
    """Merge deltas that `check_file` accepted into the files of outer step
    ``previous.outer_step + 1``.

    ``folder`` gets `latest.safetensors` and `outer_state.safetensors`; the previous files may lie
    in it, and stay readable until a pass succeeded. Holds one open file per delta. ``settings``:
    how deltas are weighed and combined; ``nodes``: how many live. ``spare``: a folder with the
    files of an old global, which are written over.
    """
    counted = in_merge_order(deltas)
    rejected: list[tuple[FetchedDelta, DeltaError]] = []
    zero: list[FetchedDelta] = []
    while counted:
        with ExitStack() as stack:
            opened = _open(counted, split(schema, settings.fragments), stack)
            old = stack.enter_context(OpenGlobal(previous))
            new = NextGlobal(stack, old, schema, optimizer, folder, model_metadata, spare)
            groups = _groups(opened, previous, schema, optimizer, settings, nodes)
            MergePass(old, new, optimizer, groups).run()
            bad, empty = _judge(opened, limits)
            if not bad and not empty:
                merge = Merge(
                    merged=counted,
                    norms=tuple(each.tally.norm for each in opened),
                    rejected=tuple(rejected),
                    zero=tuple(zero),
                    aggregation=_used(groups),
                )
                strings = {**describe_state(merge), **_left(groups, optimizer)}
                files = new.finish(strings)
                parts = _parts(files.model, groups, folder) if len(groups) > 1 else {}
                return Round(merge=merge, publication=replace(files, parts=parts))
        rejected += bad
        zero += empty
        gone = {delta.path for delta, _ in bad} | {delta.path for delta in empty}
        counted = tuple(delta for delta in counted if delta.path not in gone)
    merge = Merge(merged=(), norms=(), rejected=tuple(rejected), zero=tuple(zero))
    return Round(merge=merge, publication=None)


def write_first_global(
    state: State,
    *,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    folder: Path,
    model_metadata: Mapping[str, str],
    state_metadata: Mapping[str, str],
) -> Publication:
    """The files of outer step 0, from a model's state: outer buffers are zeros."""
    model = write_state(folder / MODEL_NAME, state, model_metadata)
    files = GlobalFiles(model=model.path, state=None, outer_step=0)
    written = write_fresh_state(
        files, schema=schema, optimizer=optimizer, folder=folder, metadata=state_metadata
    )
    return Publication(model=model, state=written)


@torch.no_grad()
def write_fresh_state(
    files: GlobalFiles,
    *,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    folder: Path,
    metadata: Mapping[str, str],
) -> WrittenFile:
    """An outer state for a global that has none: zero buffers, the model's own values."""
    buffers = buffer_names(optimizer)
    planned = state_layout(schema, buffers, {files.outer_step})
    complete = own_metadata(schema, metadata)
    with (
        OpenGlobal(files) as old,
        SafetensorsWriter(folder / STATE_NAME, planned, complete) as writer,
    ):
        for entry in schema.floating:
            if entry.statistics:
                values = old.statistics(entry, files.outer_step)
                assert values is not None
                writer.write(f"statistics.{files.outer_step}.{entry.name}", values)
                continue
            for start, stop in pieces(entry.numbers):
                numbers = torch.zeros(stop - start, dtype=entry.working_dtype)
                for buffer in buffers:
                    writer.write(f"{buffer}.{entry.name}", numbers, start=start)
                if needs_copy(entry):
                    old.read_parameter(entry, start, numbers)
                    writer.write(f"float32.{entry.name}", numbers, start=start)
        return writer.finish()


def restate(
    files: GlobalFiles, *, schema: StateSchema, folder: Path, metadata: Mapping[str, str]
) -> WrittenFile:
    """The same outer state with other strings, for a publication with unchanged weights."""
    assert files.state is not None, "there is no outer state to write again"
    kept = {**metadata, **Turn.from_strings(files.state_metadata()).strings()}
    metadata = own_metadata(schema, kept)
    return copy_with_metadata(files.state, folder / STATE_NAME, metadata, leave_out={STRINGS})


def _groups(
    opened: Sequence[OpenDelta],
    previous: GlobalFiles,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    settings: DilocoSettings,
    nodes: int,
) -> list[Group]:
    groups: list[Group] = []
    for fragment, part in enumerate(split(schema, settings.fragments)):
        deltas = [each for each in opened if (each.delta.card.fragment or 0) == fragment]
        recipe = Recipe(turns=())
        if deltas:
            recipe = _recipe(deltas, previous, part, optimizer, settings, nodes)
        groups.append(Group(schema=part, deltas=deltas, recipe=recipe))
    return groups


def _used(groups: Sequence[Group]) -> str:
    """The aggregation of all groups; the mean when one had too few deltas for it."""
    used = {group.recipe.aggregation for group in groups if group.deltas}
    return used.pop() if len(used) == 1 else "mean"


def _left(groups: Sequence[Group], optimizer: OuterOptimizer) -> dict[str, str]:
    """What the optimizer has counted: of one group, since none that counts steps fragments."""
    turns = [group.recipe.turns[-1] for group in groups if group.deltas]
    return turns[-1].left(optimizer).strings()


def _parts(model: WrittenFile, groups: Sequence[Group], folder: Path) -> dict[int, WrittenFile]:
    """Each fragment that changed, in a file of its own."""
    names = {entry.name for group in groups for entry in group.schema}
    return {
        fragment: copy_with_metadata(
            model.path,
            folder / Path(fragment_path(fragment)).name,
            {"format": "pt"},
            leave_out=names - {entry.name for entry in group.schema},
        )
        for fragment, group in enumerate(groups)
        if group.deltas
    }


def _recipe(
    opened: Sequence[OpenDelta],
    previous: GlobalFiles,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    settings: DilocoSettings,
    nodes: int,
) -> Recipe:
    products = inner_products(opened, schema) if needs_products(settings, len(opened)) else None
    return recipe_for(
        settings,
        optimizer,
        [each.delta.card for each in opened],
        last=Turn.from_strings(previous.state_metadata()),
        outer_step=previous.outer_step,
        nodes=nodes,
        products=products,
    )


def _open(
    deltas: Sequence[FetchedDelta], parts: Sequence[StateSchema], stack: ExitStack
) -> tuple[OpenDelta, ...]:
    return tuple(
        OpenDelta(
            delta,
            stack.enter_context(
                DeltaReader(
                    delta.file,
                    schema=parts[delta.card.fragment or 0],
                    codec=delta.card.codec,
                    path=delta.path,
                )
            ),
        )
        for delta in deltas
    )


def _judge(
    opened: Sequence[OpenDelta], limits: NormLimits
) -> tuple[list[tuple[FetchedDelta, DeltaError]], list[FetchedDelta]]:
    bad: list[tuple[FetchedDelta, DeltaError]] = []
    empty: list[FetchedDelta] = []
    for each in opened:
        try:
            check_values(each.tally, path=each.delta.path, limits=limits)
        except DeltaError as error:
            bad.append((each.delta, error))
            continue
        if each.tally.zero and each.delta.from_peer:
            empty.append(each.delta)
    return bad, empty
