"""What a sweep costs beyond its trials. By hand; prints JSON, the load of the machine among it:

python tests/benchmarks/bench_sweep.py overhead --trials 24
python tests/benchmarks/bench_sweep.py engines --trials 4
python tests/benchmarks/bench_sweep.py launchers --trials 24

`overhead` starts Ray and one trial on each worker first, and then times the others: `share` is the
time of the whole over the sum of what the trials took divided by the workers. `engines` compares
the CPU time of trials as one process, with hub=memory, and as actors. `launchers` times whole
commands that run the same trials, start-up included: ours, Hydra's own one, Ray Tune, and those of
hydra-joblib-launcher 1.2.0 and hydra-ray-launcher 1.2.2 where they are installed. The last one
wants an older cloudpickle, so in an environment of its own; Ray Tune wants "ray[tune]".
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from rich.console import Console

from ray_diloco.cluster.settings import RaySettings
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.experiment.sweep.arena import Arena
from ray_diloco.experiment.sweep.board import Board, Standing
from ray_diloco.experiment.sweep.composing import Composer
from ray_diloco.experiment.sweep.rows import RowBook, latest, read_rows
from ray_diloco.experiment.sweep.session import Session
from ray_diloco.experiment.sweep.settings import LauncherSettings, SweepSettings
from ray_diloco.experiment.sweep.side_by_side import run_all
from ray_diloco.experiment.sweep.trials import propose
from ray_diloco.timing.wall import WallClock

SMALL = ("experiment=quickstart", "data=synthetic", "data.synthetic_bytes=100000")
ALIKE = (*SMALL, "engine=inproc", "hub=memory", "run.progress=none", "run.report=false")
LAUNCHERS = ("ray_pool", "basic", "joblib", "ray")
LOOK_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["overhead", "engines", "launchers", "tune"])
    parser.add_argument("--trials", type=int, default=24)
    given = parser.parse_args()
    if given.what == "tune":
        tune_trials(given.trials)
        return
    measure = {"overhead": overhead, "engines": engines, "launchers": launchers}[given.what]
    with tempfile.TemporaryDirectory() as folder:
        told = measure(given.trials, Path(folder))
    print(json.dumps({"load": os.getloadavg()[0], "cpus": os.cpu_count(), **told}, indent=2))


def overhead(trials: int, folder: Path) -> dict:
    """Of the sweep as a whole, and of each trial."""
    workers = os.cpu_count() or 1
    with Arena(RaySettings(), folder) as arena:
        run(arena, folder, range(workers))
        memory_before = worker_mebibytes()
        cpu_before, before = driver_cpu(), time.perf_counter()
        run(arena, folder, range(workers, workers + trials))
        took, cpu = time.perf_counter() - before, driver_cpu() - cpu_before
        memory = worker_mebibytes()
    rows = [row for row in latest(read_rows(folder)) if row.trial >= workers]
    own = sum(row.duration for row in rows)
    assert len(rows) == trials
    return {
        "seconds": took,
        "own_seconds": own,
        "share": took / (own / workers),
        "overhead_per_trial": (took * workers - own) / trials,
        "driver_cpu_per_trial": cpu / trials,
        "worker_rss_mib_before": memory_before,
        "worker_rss_mib": memory,
    }


def engines(trials: int, folder: Path) -> dict:
    """CPU seconds of whole sweeps, start-up included."""
    kinds = {"inproc": (), "inproc_memory": ("hub=memory",), "ray": ("engine=ray",)}
    return {
        name: command(folder / name, trials, *words, *SMALL)["cpu_seconds"]
        for name, words in kinds.items()
    }


def launchers(trials: int, folder: Path) -> dict:
    """Wall and CPU seconds of whole sweeps of the same trials, start-up included."""
    found = [
        name
        for name in LAUNCHERS
        if name in ("ray_pool", "basic") or plugin(f"hydra_{name}_launcher")
    ]
    told = {
        name: command(folder / name, trials, f"hydra/launcher={name}", *ALIKE) for name in found
    }
    words = [__file__, "tune", "--trials", str(trials)]
    return told | {"tune": timed([sys.executable, *words], cwd=folder)}


def tune_trials(trials: int) -> None:
    """With Ray Tune, each in a process of its own as Tune has it."""
    from ray import tune

    def trial(config: dict) -> None:
        import ray_diloco

        words = [*ALIKE, f"run.seed={config['seed']}"]
        result = ray_diloco.run(words, folder=Path.cwd() / "run")
        tune.report({"eval_loss": result.eval_loss})

    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"seed": tune.grid_search(list(range(trials)))},
        run_config=tune.RunConfig(storage_path=str(Path.cwd() / "tune"), verbose=0),
    )
    results = tuner.fit()
    assert len(results) == trials
    assert not results.errors, results.errors


def plugin(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    except ModuleNotFoundError:
        return False


def command(folder: Path, trials: int, *words: str) -> dict:
    """Run `ray-diloco -m` over seeds in a process of its own."""
    told = timed(
        [sys.executable, "-m", "ray_diloco.experiment.main", "-m", *words, "run.report=false",
         f"run.seed=range(0,{trials})", f"hydra.sweep.dir={folder}", "run.progress=none"],
        cwd=folder.parent,
    )  # fmt: skip
    assert len(list(folder.glob("*/result.json"))) == trials
    return told


def timed(words: list[str], *, cwd: Path) -> dict:
    """Of a command: wall seconds, and CPU seconds of all processes that it starts, theirs too."""
    spent: dict[tuple[int, float], float] = {}
    began = time.perf_counter()
    with subprocess.Popen(words, cwd=cwd, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            spent |= cpu_of(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
    assert process.returncode == 0
    return {"seconds": time.perf_counter() - began, "cpu_seconds": sum(spent.values())}


def cpu_of(pid: int) -> dict[tuple[int, float], float]:
    """CPU seconds so far of a process and its descendants, by process."""
    found: dict[tuple[int, float], float] = {}
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for each in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                found[each.pid, each.create_time()] = times.user + times.system
    return found


def run(arena: Arena, folder: Path, seeds: range) -> None:
    """Trials that differ in their seed."""
    setup_globals()
    loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
    composer = Composer(loader, loader.load_configuration("config", [], RunMode.MULTIRUN))
    settings, clock = LauncherSettings(), WallClock()
    board = Board(ProgressKind.none, Console(), clock)
    with RowBook(folder) as book, closing(board):
        run_all(
            Session(arena, book, settings, sweep_dir=folder, clock=clock),
            propose(
                composer,
                [[*SMALL, f"run.seed={seed}"] for seed in seeds],
                SweepSettings(),
                first=seeds.start,
            ),
            {},
            standing=Standing(total=len(seeds), objective="eval_loss"),
            board=board,
            settings=settings,
            asked=lambda: False,
        )


def driver_cpu() -> float:
    return time.process_time()


def worker_mebibytes() -> list[int]:
    """Resident memory of each worker."""
    found = psutil.Process().children(recursive=True)
    workers = [each for each in found if "_Worker" in " ".join(each.cmdline())]
    return [round(each.memory_info().rss / 2**20) for each in workers]


if __name__ == "__main__":
    main()
