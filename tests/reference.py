"""The protocol in a single loop, to hold the product against: no hub, no threads, no time, and no
line of code in common with the product.

What happens when is handed in as a list of moments:

    ("step", node)                     one local step
    ("send", node, local_step)         a pseudo-gradient is measured; resets the optimizer
    ("land", node)                     it is in the repository: the baseline moves by it
    ("merge", ((node, step, base), ..))  one outer round over deltas and their base outer steps
    ("install", node, outer_step)      a global is installed; resets the optimizer
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from reference_state import State, distinct, floats, is_stepped, wide
from torch import nn


class Node:
    """A local loop; ``names`` are the entries of the state, each storage once."""

    def __init__(self, model: nn.Module, batches: Sequence[Any], new_optimizer: Callable) -> None:
        self.model, self.new_optimizer = model.train(), new_optimizer
        self.optimizer = new_optimizer(model)
        self.batches = itertools.cycle(batches)
        self.live = distinct(model.state_dict())
        self.baseline = {name: wide(value).clone() for name, value in self.live.items()}
        self.snapshot: State = {}
        self.delta: State = {}
        self.installed = False

    def step(self) -> None:
        self.model(*next(self.batches)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def send(self) -> State:
        self.snapshot = {name: wide(value).clone() for name, value in self.live.items()}
        floating = [name for name in self.live if floats(self.live[name])]
        self.delta = {name: self.baseline[name] - self.snapshot[name] for name in floating}
        self.installed = False
        return self.delta

    def land(self, install: str) -> None:
        for name in filter(is_stepped, self.delta):
            if not self.installed:
                self.baseline[name].copy_(self.snapshot[name])
            elif install == "rebase":
                self.baseline[name].sub_(self.delta[name])

    def take(self, new: State, install: str) -> None:
        for name, live in self.live.items():
            before, value = self.baseline[name], wide(new[name])
            if not floats(live):
                live.copy_(torch.where(new[name] != before, new[name], live))
            elif is_stepped(name) and install == "rebase":
                live.copy_(value - (before - wide(live)))
            else:
                live.copy_(value)
            before.copy_(value)
        self.installed = True


@torch.no_grad()
def play(
    moments: Iterable[tuple],
    *,
    models: dict[str, nn.Module],
    batches: dict[str, Sequence[Any]],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    outer_lr: float,
    outer_momentum: float,
    install: str = "rebase",
    reset: bool = True,
) -> tuple[list[State], dict[str, State]]:
    """All globals in order, and what the nodes' models hold at the end."""
    nodes = {name: Node(model, batches[name], optimizer) for name, model in models.items()}
    first = next(iter(nodes.values())).live
    own = {name: wide(value).clone() for name, value in first.items()}
    momenta = {name: torch.zeros_like(value) for name, value in own.items()}
    published = [{name: value.clone() for name, value in first.items()}]
    sent: dict[tuple[str, int], State] = {}
    for what, *details in moments:
        if what == "merge":
            taken = [(sent[node, step], published[base]) for node, step, base in details[0]]
            outer_step(own, momenta, taken, outer_lr, outer_momentum)
            published.append({name: own[name].to(first[name].dtype, copy=True) for name in own})
            continue
        node = nodes[details[0]]
        match what:
            case "step":
                with torch.enable_grad():
                    node.step()
            case "send":
                sent[details[0], details[1]] = node.send()
            case "land":
                node.land(install)
            case "install":
                node.take(published[details[1]], install)
        if reset and what in ("send", "install"):
            node.optimizer = node.new_optimizer(node.model)
    return published, {name: node.live for name, node in nodes.items()}


def outer_step(
    own: State, momenta: State, taken: list[tuple[State, State]], lr: float, momentum: float
) -> None:
    """Nesterov on the mean of the deltas; ``taken``: each with the global at its base."""
    for name in taken[0][0]:
        if not is_stepped(name):
            own[name] = sum(base[name] - delta[name] for delta, base in taken) / len(taken)
            continue
        mean = sum(delta[name] for delta, _ in taken) / len(taken)
        momenta[name].mul_(momentum).add_(mean)
        own[name] -= lr * (mean + momentum * momenta[name])
