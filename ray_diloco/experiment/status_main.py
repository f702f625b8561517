"""The commands ``ray-diloco-status`` and ``ray-diloco-stop``: a run that goes on elsewhere."""

import argparse
import sys
from pathlib import Path

from ray_diloco.experiment.consoles import ShowingConsole
from ray_diloco.experiment.legible import is_file_in, mapping_of, understood
from ray_diloco.experiment.live_status import LiveStatus, ask_to_stop, read_status
from ray_diloco.experiment.one_line import one_line_errors
from ray_diloco.experiment.progress import live_table
from ray_diloco.experiment.result import Result
from ray_diloco.experiment.run_files import RESULT
from ray_diloco.experiment.summary import NEEDED, print_summary
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.timing.wall import WallPort

LOOK = micros(0.5)
DONE, FAILED = 0, 1


def status() -> None:
    """Exits with 0 (it runs, has ended well, or was stopped), 1 (it failed, or is gone) or 2."""
    parser = argparse.ArgumentParser(
        prog="ray-diloco-status", description="Show a run, while it goes on or when it has ended."
    )
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--follow", action="store_true", help="show it again until it ends")
    with one_line_errors("ray-diloco-status"):
        chosen = parser.parse_args()
        sys.exit(_status(chosen.run.expanduser(), follow=chosen.follow))


def stop() -> None:
    """Exits with 0 (it has ended, state saved), 1 (it has not, or its process is gone) or 2."""
    parser = argparse.ArgumentParser(
        prog="ray-diloco-stop", description="End a run: it sends what it has, saves and ends."
    )
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds to wait for its end (120)"
    )
    with one_line_errors("ray-diloco-stop"):
        chosen = parser.parse_args()
        sys.exit(_stop(chosen.run.expanduser(), timeout=chosen.timeout))


def _status(run_dir: Path, *, follow: bool) -> int:
    console, port = ShowingConsole(), WallPort()
    while True:
        live = read_status(run_dir)
        ended = live is None or not live.running
        if ended and (result := _result(run_dir)) is not None:
            with understood(run_dir / RESULT, holds="the result of a run"):
                print_summary(result, console)
            return DONE if result.status == "stopped" else result.exit_code
        if live is None:
            console.print("starting: nobody trains yet")
        else:
            _show(live, console)
            if not live.alive:
                return _tell_gone(run_dir, live)
        if not follow:
            return DONE
        port.wait(Micros(port.now() + LOOK))


def _show(live: LiveStatus, console: ShowingConsole) -> None:
    console.print(live_table(live.view, live.limits, 0.0 if live.virtual else None))
    for note in live.notes:
        console.print(note, markup=False, style="dim")
    console.print(f"as of {live.updated_at}, process {live.pid} on {live.host}", style="dim")


def _stop(run_dir: Path, *, timeout: float) -> int:
    live = read_status(run_dir)
    ended = not live.running if live is not None else _result(run_dir) is not None
    if ended:
        print(f"{run_dir}: the run has ended already")
        return DONE
    if live is not None and not live.alive:
        return _tell_gone(run_dir, live)
    ask_to_stop(run_dir)
    port = WallPort()
    while port.now() < micros(timeout):
        live = read_status(run_dir)
        if live is not None and not live.running:
            print(f"stopped and saved; ray-diloco run.resume={run_dir} goes on")
            return DONE
        port.wait(Micros(port.now() + LOOK))
    print(f"ray-diloco-stop: {run_dir} was asked to end, and has not within {timeout:g} s")
    return FAILED


def _tell_gone(run_dir: Path, live: LiveStatus) -> int:
    print(
        f"process {live.pid} is gone without a word; ray-diloco run.resume={run_dir} goes on",
        file=sys.stderr,
    )
    return FAILED


def _result(run_dir: Path) -> Result | None:
    if not is_file_in(run_dir, RESULT):
        return None
    numbers = mapping_of(run_dir / RESULT, holds="the result of a run", needs=NEEDED)
    return Result(run_dir=run_dir, status=numbers["status"], numbers=numbers)
