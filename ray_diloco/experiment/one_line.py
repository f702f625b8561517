"""How a command that only looks at folders ends when something is wrong: with one line."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from ray_diloco.errors import RayDilocoError
from ray_diloco.unread import until_unread

MISUSED, INTERRUPTED = 2, 130


@contextmanager
def one_line_errors(program: str) -> Generator[None, None, None]:
    """Around all that a command does. Exits with 2 for an error of ours and for a file or a folder
    that does not do what is asked of it, with 130 for Ctrl-C, and quietly once nobody reads what it
    shows; what is our own fault comes up.
    """
    try:
        with until_unread():
            yield
    except RayDilocoError as error:
        _end(program, str(error))
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{error.filename}: {error.strerror or type(error).__name__}"
        _end(program, f"{reason}; expected what this user may read and write")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(program: str, line: str) -> None:
    sys.stderr.write(f"{program}: {' '.join(line.split())}\n")
    sys.exit(MISUSED)
