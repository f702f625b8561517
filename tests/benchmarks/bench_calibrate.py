"""How well a virtual run of a calibrated cluster foretells the real run of the same three nodes.

    python tests/benchmarks/bench_calibrate.py

Prints virtual and wall figures and their ratio, which should be within 15 % of 1 on a machine that
does nothing else.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from ray_diloco.experiment.calibrate import calibrate
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config

SETTINGS = (
    "experiment=quickstart",
    "engine=inproc",
    "data=synthetic",
    "data.synthetic_bytes=100000",
    "cluster.nodes=3",
    "diloco.inner_steps=20",
    "diloco.poll_interval=2.0",
    "run.max_steps=null",
    "run.max_seconds=40",
    "run.progress=none",
    "inner.schedule_steps=1000",
)
SLOWER = (2.0, 3.0, 4.0)
"""The nodes' steps as multiples of the measured one, so that the cores keep up in wall time."""


def configured(*overrides: str) -> Config:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return read_config(compose("config", [*SETTINGS, *overrides]))


def figures(numbers: dict[str, Any]) -> dict[str, float]:
    merged = {int(age): count for age, count in numbers["staleness"].items()}
    stale = sum(age * count for age, count in merged.items())
    return {
        "run_seconds": numbers["run_seconds"],
        "outer_steps": numbers["outer_steps"],
        "mean_staleness": stale / sum(merged.values()),
    }


def main() -> None:
    measured = calibrate(configured(), steps=30, at_once=3).profile
    step = max(0.05, measured.seconds_per_step)
    profiles = [replace(measured, seconds_per_step=step * factor) for factor in SLOWER]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("virtual", "wall"):
            config = configured(f"time={kind}")
            config = replace(config, cluster=replace(config.cluster, profiles=profiles))
            found[kind] = figures(run(config, Path(folder) / kind).numbers)
    found["ratio"] = {
        name: round(value / found["wall"][name], 3) if found["wall"][name] else float("nan")
        for name, value in found["virtual"].items()
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
