"""What becomes of a command whose output nobody reads any more (``ray-diloco ... | head -1``): one
that only shows something ends, one that works goes on without a word.
"""

import os
import select
import sys
from collections.abc import Generator
from contextlib import contextmanager

UNREAD = 141
"""The exit code that a shell gives to whoever is ended by the signal for it."""


@contextmanager
def until_unread() -> Generator[None, None, None]:
    """Around all that a command shows: exits with `UNREAD`, quietly, once nobody reads."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_unread():
            raise  # a connection to somebody else
        discard_output()
        sys.exit(UNREAD)


def say(line: str) -> None:
    """Print a line that nobody has to read."""
    try:
        print(line, flush=True)  # noqa: T201 (for those who print)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Whatever is printed from now on, or was and is not written yet, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_unread() -> bool:
    """Whether standard output is a pipe that nobody holds the other end of."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in pipe.poll(0))
