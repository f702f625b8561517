"""One log file per process."""

import logging
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(file: Path, level: str) -> None:
    """Send this process's log of ray_diloco to a file, and nowhere else."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger("ray_diloco")
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
