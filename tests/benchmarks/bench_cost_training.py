"""Training speed with the exchange on against off, hub and master beside it on this machine.

One node trains for real. Stretches of so many steps take turns: with the exchange, one boundary in
each, its upload, the merge, and the next global installed before the stretch ends; and without. Hub
and master are processes of their own, whose CPU seconds are told apart.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench_cost_hub import PEERS_REPO, REPO, leading
from bench_cost_node import SteppedNode, SteppedPeer, made
from bench_cost_samples import Sample, measured
from bench_cost_subjects import Layers, silent
from huggingface_hub import HfApi
from speedtronic.distributed.hub import HubClient
from speedtronic.distributed.outer import MasterOuterLoop

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings
from ray_diloco.node.training import StepReport

EARLY = 4
"""A stretch has its boundary after a quarter of its steps: all that follows fits into it."""
OUTER_SECONDS = 1.0


class Learning:
    """A trainer with AdamW, in fp32; one batch again and again."""

    def __init__(self, model: Layers, rows: int) -> None:
        self.model = model
        self.local_step = self.tokens = self.overflows = self.fast_forwarded = 0
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        width = model.layers[0].in_features
        self._batch = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))

    def step(self) -> StepReport:
        loss = self.model(self._batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.local_step += 1
        self.tokens += len(self._batch)
        return StepReport(
            loss=float(loss.detach()),
            tokens=len(self._batch),
            stepped=True,
            grad_norm=None,
            learning_rate=1e-4,
        )

    def reset_optimizer(self) -> None:
        raise AssertionError("this optimizer is kept")

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        raise AssertionError("nothing is resumed here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a hub listens."""

    endpoint: str
    token: Secret


@contextmanager
def beside(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of this file, until its standard input closes."""
    with subprocess.Popen(
        [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()


def said(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def cpu_seconds(pid: int) -> float:
    """Of a process so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def training_costs(
    parameters: int, folder: Path, *, rows: int, steps: int, turns: int, reference: bool
) -> dict[str, Any]:
    """Speeds as ratios. ``steps``: of a stretch."""
    with beside("hub", str(made(folder / "hub"))) as hub:
        place = Place(endpoint=said(hub), token=Secret(said(hub)))
        who = "reference" if reference else "ours"
        with beside(f"master-{who}", place.endpoint, str(parameters), str(folder)) as master:
            assert master.stdin is not None
            master.stdin.write(place.token.reveal() + "\n")
            master.stdin.flush()
            assert said(master) == "leads"
            model = Layers(parameters)
            learning = Learning(model, rows)
            with ExitStack() as stack:
                step = (peer_step if reference else our_step)(learning, place, folder, steps, stack)
                return compared(learning, step, steps, turns, hub.pid, master.pid)


def compared(
    learning: Learning, step: Callable[[], Any], steps: int, turns: int, hub: int, master: int
) -> dict[str, Any]:
    found: dict[str, list[Sample]] = {"on": [], "off": []}
    before = cpu_seconds(hub), cpu_seconds(master)
    for turn in range(turns):
        order = ("on", "off") if turn % 2 else ("off", "on")
        for name in order:
            work = step if name == "on" else learning.step
            found[name].append(measured(lambda work=work: [work() for _ in range(steps)]))
    after = cpu_seconds(hub), cpu_seconds(master)
    speeds = {
        kind: round(
            statistics.median(
                getattr(off, kind) / getattr(on, kind)
                for on, off in zip(found["on"], found["off"], strict=True)
            ),
            3,
        )
        for kind in ("wall", "own")
    }
    return {
        "speed on / off": speeds,
        "seconds of a stretch": {
            name: round(statistics.median(each.wall for each in samples), 1)
            for name, samples in found.items()
        },
        "CPU seconds a boundary": {
            "training thread": round(statistics.median(each.own for each in found["off"]), 2),
            "other threads of the node": round(
                statistics.median(each.cpu - each.own for each in found["on"]), 2
            ),
            "hub": round((after[0] - before[0]) / turns, 2),
            "master": round((after[1] - before[1]) / turns, 2),
        },
    }


def our_step(
    learning: Learning, place: Place, folder: Path, steps: int, stack: ExitStack
) -> Callable[[], Any]:
    """A step of our node, a quarter of a stretch before its boundary."""
    repository = HubRepository(endpoint=place.endpoint, token=place.token, repo_id=REPO)
    stepped = SteppedNode(
        learning.model,
        made(folder / "node"),
        repository=repository,
        training=learning,
        inner_steps=steps,
        poll_interval=OUTER_SECONDS,
    )
    node = stack.enter_context(stepped.running())

    def step() -> None:
        node.node.after_step(node.node.step())

    for _ in range(steps - steps // EARLY - 1):
        step()
    return step


def peer_step(
    learning: Learning, place: Place, folder: Path, steps: int, stack: ExitStack
) -> Callable[[], Any]:
    peer = SteppedPeer(
        learning.model,
        made(folder / "peer"),
        hub=peers_client(place, folder / "peer"),
        inner_steps=steps,
        poll_interval=OUTER_SECONDS,
    )
    stack.enter_context(peer.begun())

    def step() -> None:
        learning.step()
        peer.after_step()

    for _ in range(steps - steps // EARLY):
        step()
    return step


def peers_client(place: Place, folder: Path) -> HubClient:
    token = place.token.reveal()
    return HubClient(
        PEERS_REPO,
        token=token,
        cache_dir=folder / "cache",
        api=HfApi(endpoint=place.endpoint, token=token),
    )


def serve_hub(folder: str) -> None:
    with EmbeddedHub(Path(folder)) as hub:
        print(hub.endpoint, hub.token.reveal(), sep="\n", flush=True)
        sys.stdin.read()


def lead(who: str, endpoint: str, parameters: str, folder: str) -> None:
    torch.set_num_threads(1)
    place = Place(endpoint=endpoint, token=Secret(sys.stdin.readline().strip()))
    state = {name: each.detach() for name, each in Layers(int(parameters)).state_dict().items()}
    if who == "ours":
        enter(HubSettings(), endpoint=endpoint, token=place.token, repo_id=REPO, make=True)
        with leading(place, state, Path(folder) / "master"):
            print("leads", flush=True)
            sys.stdin.read()
        return
    client = peers_client(place, Path(folder) / "master")
    client.create_repo(private=True)
    client.publish_global(state, outer_step=0, work_dir=Path(folder) / "work")
    loop = MasterOuterLoop(
        client,
        state,
        node_state_dir=Path(folder) / "master",
        poll_interval=OUTER_SECONDS,
        logger=silent(),
    )
    loop.start()
    print("leads", flush=True)
    sys.stdin.read()
    loop.stop()


def main() -> None:
    role, *words = sys.argv[1:]
    if role == "hub":
        serve_hub(*words)
    else:
        lead(role.removeprefix("master-"), *words)


if __name__ == "__main__":
    main()
