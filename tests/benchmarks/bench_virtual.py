"""Costs of virtual time. By hand, on a calm machine:

python tests/benchmarks/bench_virtual.py schedule
python tests/benchmarks/bench_virtual.py overhead --engine inproc
python tests/benchmarks/bench_virtual.py overhead --engine ray
python tests/benchmarks/bench_virtual.py memory --engine inproc --nodes 32
python tests/benchmarks/bench_virtual.py memory --engine inproc --nodes 256 --steps 4
python tests/benchmarks/bench_virtual.py memory --engine ray --nodes 16
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch
from hydra import compose, initialize_config_dir

from ray_diloco.experiment.build import build_plans, complete, identify
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import NO_HUB, run
from ray_diloco.node.build import prepare_node
from ray_diloco.timing.claims import Ask, Claim
from ray_diloco.timing.schedule import Schedule

FEW = 10
SPEEDS = (0.1, 0.13, 0.17, 0.2, 0.23, 0.3, 0.37, 0.5)


def configure(engine, nodes, steps):
    """About 134k parameters in the gpt; unequal nodes; H = 10."""
    profiles = ", ".join(f"{{seconds_per_step: {each}}}" for each in SPEEDS)
    overrides = [
        "experiment=quickstart",
        "model=gpt",
        "model.layers=2",
        "model.width=64",
        "model.heads=4",
        "model.kv_heads=4",
        "model.hidden=256",
        f"engine={engine}",
        f"run.max_steps={steps}",
        f"cluster.nodes={nodes}",
        f"cluster.profiles=[{profiles}]",
        "time=virtual",
        "run.progress=none",
    ]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return complete(read_config(compose("config", overrides)))


def schedule(events=100_000, nodes=16):
    """Microseconds of this process per granted access of the schedule alone."""
    plan = Schedule()
    names = [f"n{index}" for index in range(nodes)]
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


def pure_compute(config):
    """Seconds of all inner steps alone, as many nodes at once as there are cores."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plans = build_plans(config, identify(config, Path(folder)), NO_HUB, Path(folder))
        trainers = [prepare_node(plan).trainer for plan in plans.nodes]
    for trainer in trainers:
        trainer.step()
    waiting, lock = list(trainers), threading.Lock()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                trainer = waiting.pop()
            for _ in range(config.run.max_steps):
                trainer.step()

    threads = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def played(config):
    """The numbers of a run."""
    with tempfile.TemporaryDirectory() as folder:
        return run(config, Path(folder)).numbers


def overhead(engine, nodes, steps):
    """Seconds that further steps take in a run against those of the steps alone. On a busy machine
    the CPU seconds, of this process, are the ones to look at.
    """
    config, short = configure(engine, nodes, steps), configure(engine, nodes, FEW)
    alone, alone_cpu = timed(lambda: pure_compute(config))
    whole, whole_cpu = timed(lambda: played(config))
    start, start_cpu = timed(lambda: played(short))
    share = (steps - FEW) / steps
    return {
        "pure_compute_seconds": alone,
        "run_seconds": whole,
        "short_run_seconds": start,
        "ratio": (whole - start) / (alone * share),
        "ratio_of_cpu_seconds": (whole_cpu - start_cpu) / (alone_cpu * share),
    }


def timed(work):
    """Seconds that it says, or else that it took, and CPU seconds of this process."""
    began, began_cpu = time.perf_counter(), time.process_time()
    said = work()
    took = said if isinstance(said, float) else time.perf_counter() - began
    return took, time.process_time() - began_cpu


def memory(engine, nodes, steps):
    """Most GiB of this process and all it started (PSS), while it runs."""
    config, ended, most = configure(engine, nodes, steps), threading.Event(), [0]

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

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        numbers = played(config)
    finally:
        ended.set()
        watcher.join()
    return {"gib": most[0] / 2**30, "status": numbers["status"], "rounds": numbers["outer_steps"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["schedule", "overhead", "memory"])
    parser.add_argument("--engine", default="inproc")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    if given.what == "schedule":
        found = schedule()
    else:
        found = {"overhead": overhead, "memory": memory}[given.what](
            given.engine, given.nodes, given.steps
        )
    print(json.dumps(vars(given) | found))


if __name__ == "__main__":
    main()
