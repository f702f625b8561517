"""How a model is cut into fragments, and how a node mixes what comes back (arXiv 2501.18512)."""

import torch

from ray_diloco.errors import ConfigError
from ray_diloco.tensors.schema import Entry, StateSchema


def split(schema: StateSchema, fragments: int) -> tuple[StateSchema, ...]:
    """The schema in fragments that hold each entry once, ties together.

    Strided over layers: the i-th layer belongs to fragment i mod P. What has no layer number, such
    as an embedding or a head, goes module by module to the fragment with the fewest numbers so far.
    ConfigError when a fragment would have nothing to send.
    """
    if fragments == 1:
        return (schema,)
    places = _places(schema, fragments)
    parts = tuple(
        StateSchema(entries=tuple(e for e in schema if places[e.tied_to or e.name] == fragment))
        for fragment in range(fragments)
    )
    sending = sum(any(entry.numbers for entry in part.floating) for part in parts)
    if sending < fragments:
        raise ConfigError(
            "diloco.fragments",
            fragments,
            f"expected at most {sending}: this model has no layers for more",
        )
    return parts


def mix(local: torch.Tensor, incoming: torch.Tensor, alpha: float) -> torch.Tensor:
    """``alpha * local + (1 - alpha) * incoming``; in new memory."""
    return incoming + alpha * (local - incoming)


def _places(schema: StateSchema, fragments: int) -> dict[str, int]:
    """Fragment of each storage, by its first name."""
    ranks = _ranks(schema)
    places: dict[str, int] = {}
    sizes = [0] * fragments
    for entry in schema.distinct:
        if entry.name in ranks:
            places[entry.name] = ranks[entry.name] % fragments
            sizes[places[entry.name]] += entry.numbers
    modules: dict[str, list[Entry]] = {}
    for entry in schema.distinct:
        if entry.name not in places:
            modules.setdefault(entry.name.rpartition(".")[0], []).append(entry)
    for entries in modules.values():
        place = sizes.index(min(sizes))
        sizes[place] += sum(entry.numbers for entry in entries)
        places |= dict.fromkeys((entry.name for entry in entries), place)
    return places


def _ranks(schema: StateSchema) -> dict[str, int]:
    """The how manyth layer of its stack an entry belongs to, by the first number in its name; a
    stack may leave numbers out, as `nn.Sequential` does where a layer has no weights.
    """
    layers: dict[str, tuple[str, int]] = {}
    for entry in schema.distinct:
        parts = entry.name.split(".")
        numbered = [place for place, part in enumerate(parts) if part.isdecimal()]
        if numbered:
            layers[entry.name] = ".".join(parts[: numbered[0]]), int(parts[numbered[0]])
    stacks: dict[str, set[int]] = {}
    for stack, number in layers.values():
        stacks.setdefault(stack, set()).add(number)
    return {name: sorted(stacks[stack]).index(number) for name, (stack, number) in layers.items()}
