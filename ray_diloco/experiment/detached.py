"""The same command in the background, in a session of its own."""

import subprocess
import sys
from pathlib import Path

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.live_status import read_status
from ray_diloco.experiment.run_files import CONFIG, CONSOLE
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.timing.wall import WallPort

LOOK = micros(0.25)


def detach(run_dir: Path, words: list[str], *, many: bool) -> int:
    """Start the command with these words again, and return when its run trains: 0. When it ends
    before that, what it printed is shown, and its exit code given. ``many``: it is a multirun, of
    which every trial would be a process of its own: ConfigError.
    """
    if many:
        raise ConfigError("ray.detach", True, "expected false with -m: a sweep runs in one process")
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / CONSOLE
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray_diloco.experiment.main", *words, *_own_words(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    port = WallPort()
    while process.poll() is None and not _trains(run_dir, process.pid):
        port.wait(Micros(port.now() + LOOK))
    if process.returncode is not None:
        sys.stderr.write(log.read_text(encoding="utf-8").rstrip() + "\n")
        return process.returncode
    sys.stdout.write(
        f"process {process.pid} goes on in {run_dir}\n"
        f"ray-diloco-status {run_dir}  shows it, ray-diloco-stop {run_dir}  ends it\n"
    )
    return 0


def _own_words(run_dir: Path) -> tuple[str, ...]:
    escaped = str(run_dir.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return ("ray.detach=false", f"hydra.run.dir='{escaped}'")


def _trains(run_dir: Path, pid: int) -> bool:
    if not (run_dir / CONFIG).exists():
        return False
    live = read_status(run_dir)
    return live is not None and live.pid == pid
