"""One log file per process, which does not grow for ever and in which no token stands."""

import logging
import re
from logging.handlers import RotatingFileHandler
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MOST_BYTES = 10_000_000
"""Of a log file; then it becomes the first of the old ones (run.log.1)."""
OLD_FILES = 3
"""That are kept of a log."""

TOKEN = re.compile(r"hf_[A-Za-z0-9_-]{20,}")
"""What a token of the Hub looks like, and of the embedded one."""


def mask_tokens(text: str) -> str:
    """The text without anything that looks like a token."""
    return TOKEN.sub("hf_***", text)


class MaskingFormatter(logging.Formatter):
    """Whatever is logged, the text of a user's own exception included, stands there masked."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_tokens(super().format(record))


def log_handler(file: Path, *, delay: bool = False) -> RotatingFileHandler:
    """Writes to the file, and to a new one when it is full. ``delay``: there is none before the
    first line.
    """
    handler = RotatingFileHandler(
        file, maxBytes=MOST_BYTES, backupCount=OLD_FILES, encoding="utf-8", delay=delay
    )
    handler.setFormatter(MaskingFormatter(FORMAT))
    return handler


def log_to(file: Path, level: str) -> None:
    """Send this process's log of ray_diloco to a file, and nowhere else."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    root = logging.getLogger("ray_diloco")
    root.addHandler(log_handler(file))
    root.setLevel(level)
    root.propagate = False
