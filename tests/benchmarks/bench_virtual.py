"""Costs of virtual time. By hand; each line prints JSON, the load of the machine among it:

python tests/benchmarks/bench_virtual.py schedule
python tests/benchmarks/bench_virtual.py events --nodes 8
python tests/benchmarks/bench_virtual.py overhead --engine inproc
python tests/benchmarks/bench_virtual.py overhead --engine ray
python tests/benchmarks/bench_virtual.py overhead --engine ray --batch 32
python tests/benchmarks/bench_virtual.py memory --engine inproc --nodes 32
python tests/benchmarks/bench_virtual.py memory --engine inproc --nodes 256 --steps 12
python tests/benchmarks/bench_virtual.py memory --engine ray --nodes 16
python tests/benchmarks/bench_virtual.py slept --steps 20
python tests/benchmarks/bench_virtual.py rounds --nodes 8

`tests/benchmarks/bench_flower.py` does what `rounds` does with Flower's simulation.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from hydra import compose, initialize_config_dir

from ray_diloco.experiment.build import build_plans, complete, identify
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.progress import NoProgress
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import NO_HUB, run
from ray_diloco.node.build import prepare_node
from ray_diloco.node.trainer import Trainer
from ray_diloco.protocol.clock import Access, Sleep
from ray_diloco.timing.claims import Ask, Claim
from ray_diloco.timing.schedule import Schedule

SPEEDS = (0.1, 0.13, 0.17, 0.2, 0.23, 0.3, 0.37, 0.5)
GPT = (
    "model=gpt",
    "model.layers=2",
    "model.width=64",
    "model.heads=4",
    "model.kv_heads=4",
    "model.hidden=256",
)
"""About 148 000 parameters."""


def configure(engine, nodes, steps, *overrides, speeds=SPEEDS):
    """Unequal nodes that exchange a small gpt by `diloco=quick`: a boundary every 20 steps, a look
    every 2 seconds. Held-out losses are no part of what is measured: one batch each.
    """
    profiles = ", ".join(f"{{seconds_per_step: {each}}}" for each in speeds)
    chosen = [
        "diloco=quick",
        *GPT,
        "data.eval_batches=1",
        "inner.warmup_steps=0",
        f"engine={engine}",
        f"run.max_steps={steps}",
        f"cluster.nodes={nodes}",
        f"cluster.profiles=[{profiles}]",
        "run.progress=none",
        *overrides,
    ]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return complete(read_config(compose("config", chosen)))


class Gauge(NoProgress):
    """Looks at a run from when all nodes train to its end: seconds, CPU seconds of this process and
    all it started, local steps in between.
    """

    def __init__(self):
        self._cpu = {}
        self._first = None
        self.taken = None

    def show(self, view):
        steps = sum(node.local_step for node in view.nodes)
        if self._first is None and all(node.local_step for node in view.nodes):
            self._first = (time.perf_counter(), self._cpu_seconds(), steps)
        if self._first is not None and view.ended:
            began, cpu, before = self._first
            taken = time.perf_counter() - began
            self.taken = (taken, self._cpu_seconds() - cpu, steps - before)

    def _cpu_seconds(self):
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                used = process.cpu_times()
                self._cpu[process.pid] = used.user + used.system
            except psutil.Error:
                continue
        return sum(self._cpu.values())


def played(config):
    """The numbers of a run, and what it took from its first step on."""
    gauge = Gauge()
    with tempfile.TemporaryDirectory() as folder:
        numbers = run(config, Path(folder), progress=gauge).numbers
    assert numbers["status"] == "done", numbers
    return numbers, gauge.taken


def schedule(given):
    """Microseconds of this process per granted access of the schedule alone."""
    plan, events = Schedule(), 100_000
    names = [f"n{index}" for index in range(given.nodes)]
    for name in names:
        plan.register(name)
    numbers = dict.fromkeys(names, 0)
    waiting = list(names)
    began = time.process_time()
    while plan.accesses < events:
        grants = []
        for name in waiting:
            ask = Ask("access", "x", 0, True)
            at = plan.frontier + 1 + int(name[1:])
            grants += plan.apply(Claim(name, numbers[name], at, (), ask))
            numbers[name] += 1
        waiting = [grant.participant for grant in grants]
    return {"microseconds_per_event": (time.process_time() - began) / events * 1e6}


class Asker:
    """A participant that does nothing but ask for its turn."""

    def meet(self, times):
        """The first one to come imports everything, which is no part of an event."""

    def play(self, times, name, count):
        def lane():
            for _ in range(count):
                yield Sleep(1)
                yield Access(lambda: None)

        port = times.port(name, profile=None, seed=0)
        port.start("ask", lane())
        port.wait()
        port.close()


def events(given):
    """Milliseconds per access that actors are granted by the clock's actor."""
    import ray

    from ray_diloco.cluster.clock_actor import clock_actor, remote_times

    each = 300
    ray.init(
        address="local", log_to_driver=False, include_dashboard=False, object_store_memory=78643200
    )
    with clock_actor("") as clock:
        names = [f"n{index}" for index in range(given.nodes)]
        actors = [ray.remote(Asker).options(num_cpus=0).remote() for _ in names]
        ray.get([actor.__ray_ready__.remote() for actor in actors])
        times = remote_times(clock, dict.fromkeys(names, 0))
        ray.get([actor.meet.remote(times) for actor in actors])
        began = time.perf_counter()
        ray.get([a.play.remote(times, n, each) for a, n in zip(actors, names, strict=True)])
        taken = time.perf_counter() - began
    ray.shutdown()
    return {"milliseconds_per_event": taken / (each * given.nodes) * 1e3}


def steps_alone(config, part, parts, ready, found):
    """In a process of its own: the steps of every ``parts``-th node, in turn as in a run; seconds
    and CPU seconds.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plans = build_plans(config, identify(config, Path(folder)), NO_HUB, Path(folder))
        trainers = [prepare_node(plan).trainer for plan in plans.nodes[part::parts]]
    for trainer in trainers:
        trainer.step()
    ready.wait()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(config.run.max_steps):
        for trainer in trainers:
            trainer.step()
    found.put((time.perf_counter() - began, time.process_time() - began_cpu))


def pure_compute(config):
    """Seconds and CPU seconds of all inner steps alone, on as many processes as cores."""
    cores = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    ready, found = context.Barrier(cores), context.Queue()
    workers = [
        context.Process(target=steps_alone, args=(config, part, cores, ready, found))
        for part in range(cores)
    ]
    for worker in workers:
        worker.start()
    taken = [found.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(each for each, _ in taken), sum(cpu for _, cpu in taken)


@contextmanager
def steps_timed():
    """CPU seconds that the steps of this process take, and how many there were."""
    lock, taken, step = threading.Lock(), [0.0, 0], Trainer.step

    def timed(trainer):
        began = time.thread_time()
        report = step(trainer)
        with lock:
            taken[0] += time.thread_time() - began
            taken[1] += 1
        return report

    Trainer.step = timed
    try:
        yield taken
    finally:
        Trainer.step = step


def overhead(given):
    """What a run takes, from its first step to its end, against its inner steps alone. Each run
    lies between two measurements of these. On a busy machine only CPU seconds count, and best those
    of the same run's own steps, which only threads can tell.
    """
    batch = f"data.batch_size={given.batch}"
    config = configure(given.engine, given.nodes, given.steps, batch)
    total, ratios, alone = given.nodes * given.steps, [], [pure_compute(config)]
    own = []
    for _ in range(given.pairs):
        with steps_timed() as taken:
            _, (seconds, cpu, steps) = played(config)
        own += [round(cpu / (taken[0] / taken[1] * steps), 3)] if taken[1] else []
        alone.append(pure_compute(config))
        mean, mean_cpu = (statistics.fmean(each) for each in zip(*alone[-2:], strict=True))
        ratios.append((seconds / mean * total / steps, cpu / mean_cpu * total / steps))
    return {
        "ratios": [round(each, 3) for each, _ in ratios],
        "ratios_of_cpu_seconds": [round(each, 3) for _, each in ratios],
        "ratios_to_own_steps": own,
        "ratio": statistics.median(each for each, _ in ratios),
        "ratio_of_cpu_seconds": statistics.median(each for _, each in ratios),
        "pure_cpu_seconds": [round(cpu, 2) for _, cpu in alone],
        "cpu_milliseconds_per_step": statistics.fmean(cpu for _, cpu in alone) / total * 1e3,
    }


def memory(given):
    """Most GiB of this process and all it started (PSS), while it runs. A boundary every 10 steps,
    so that few of them show all that a node ever holds.
    """
    config = configure(given.engine, given.nodes, given.steps, "diloco.inner_steps=10")
    ended, most = threading.Event(), [0]

    def watch():
        me = psutil.Process()
        while not ended.wait(0.5):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            most[0] = max(most[0], total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        numbers, (seconds, cpu, _) = played(config)
    finally:
        ended.set()
        watcher.join()
    return {
        "gib": most[0] / 2**30,
        "rounds": numbers["outer_steps"],
        "run_seconds": numbers["run_seconds"],
        "seconds": seconds,
        "cpu_seconds": cpu,
    }


def slept(given):
    """One scenario in virtual time, and slept in real time."""
    found = {}
    for kind, more in (("virtual", ()), ("wall", ("time.emulate_profile=true",))):
        config = configure(given.engine, given.nodes, given.steps, f"time={kind}", *more)
        numbers, (seconds, _, _) = played(config)
        found[kind] = {"seconds": seconds, "outer_steps": numbers["outer_steps"]}
    found["times_as_fast"] = found["wall"]["seconds"] / found["virtual"]["seconds"]
    return found


def rounds(given):
    """Rounds per second of equal nodes that take 10 steps of one sequence of 16 bytes in each, all
    in one process.
    """
    config = configure(
        given.engine,
        given.nodes,
        given.steps,
        "diloco.inner_steps=10",
        "diloco.poll_interval=1.0",
        "data.batch_size=1",
        "data.sequence_length=16",
        "cluster.master_trains=false",
        f"hub={given.hub}",
        speeds=(0.1,),
    )
    numbers, (seconds, cpu, _) = played(config)
    made = numbers["outer_steps"]
    return {"rounds": made, "rounds_per_second": made / seconds, "cpu_seconds_a_round": cpu / made}


def main():
    modes = {each.__name__: each for each in (schedule, events, overhead, memory, slept, rounds)}
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=modes)
    parser.add_argument("--engine", default="inproc", choices=["inproc", "ray"])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="overhead: sequences of 128 tokens")
    parser.add_argument("--hub", default="embedded", choices=["embedded", "memory"], help="rounds")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    found = modes[given.what](given)
    print(json.dumps(vars(given) | found | {"load": [round(load, 1), os.getloadavg()[0]]}))


if __name__ == "__main__":
    main()
