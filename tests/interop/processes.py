"""Real processes of both packages on one hub, each ended by its id."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import yaml

from ray_diloco.hub.embedded.server import EmbeddedHub

VOCABULARY, CONTEXT = 256, 32
SHAPE = {"vocab_size": VOCABULARY, "max_seq_len": CONTEXT, "n_layer": 1, "n_head": 2, "d_model": 16}
REPO = "local/run"
PATIENCE = 100.0


def environment(hub: EmbeddedHub, folder: Path) -> dict[str, str]:
    """What the Hub's own client reads, and nothing of the user's."""
    return os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": hub.token.reveal(),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(folder / "hf"),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def peers_configuration(folder: Path, *, role: str, node_id: str, max_steps: int) -> Path:
    """The file of a plain peer; its scheduler and boundaries are fast enough for a test."""
    settings = {
        "run": {"device": "cpu", "max_steps": max_steps, "output_dir": str(folder)},
        "model": {"name": "reference_transformer", **SHAPE},
        "data": {"synthetic": True, "vocab_size": VOCABULARY, "block_size": CONTEXT},
        "scheduler": {"name": "constant", "warmup_steps": 0},
        "precision": {"mode": "fp32"},
        "checkpoint": {"enabled": False},
        "logging": {"json_file": str(folder / "events.jsonl"), "every_steps": 100},
        "distributed": {
            "enabled": True,
            "role": role,
            "node_id": node_id,
            "repo_id": REPO,
            "inner_steps": 20,
            "poll_interval": 0.5,
            "outer_lr": 0.7,
            "outer_momentum": 0.9,
            "cache_dir": str(folder / "cache"),
            "state_dir": str(folder / "state"),
            "retry_initial": 0.2,
            "delta_upload_shutdown_timeout": 20.0,
        },
    }
    file = folder / "peer.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def our_overrides(hub: EmbeddedHub) -> list[str]:
    """Our side of the same run: the peer's own model, the same pace."""
    custom = ", ".join(f"{name}: {value}" for name, value in SHAPE.items())
    return [
        "hub=embedded",
        f"hub.endpoint={hub.endpoint}",
        f"hub.repo_id={REPO}",
        "engine=inproc",
        "time=wall",
        "model=custom",
        f"+model.custom={{_target_: speedtronic.model.ReferenceTransformer, {custom}}}",
        "model.allow_targets=[speedtronic]",
        "data=synthetic",
        "data.synthetic_bytes=20000",
        f"data.sequence_length={CONTEXT}",
        "data.batch_size=2",
        "data.eval_batches=1",
        "diloco.inner_steps=20",
        "diloco.poll_interval=0.5",
        "diloco.outer_lr=0.7",
        "diloco.outer_momentum=0.9",
        "diloco.stop_timeout=20",
        "run.progress=none",
    ]


@contextmanager
def started(
    words: list[str], folder: Path, env: dict[str, str]
) -> Generator["subprocess.Popen[bytes]", None, None]:
    """A process whose output goes to `<folder>/output.txt`; killed if it is still there."""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=env, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for(condition: Callable[[], bool], *, running: "list[subprocess.Popen[bytes]]") -> None:
    """Until it is true; AssertionError when a process that should run has ended, or it is late."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, "nothing happened for long"
        for process in running:
            assert process.poll() in (None, 0), f"{process.args} ended with {process.returncode}"
        time.sleep(0.1)  # another process is waited for
