"""What a pool's workers are given to do."""

import os
import signal
import threading


def place(*, channel, gang) -> tuple[int, bool]:
    """The process, and whether it has a placement group."""
    return os.getpid(), gang is not None


def fail(*, channel, gang) -> None:
    raise ValueError("it goes wrong")


def die(*, channel, gang) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def talk(*, channel, gang) -> str:
    """Tell something, and end when asked to."""
    channel.tell("well begun")
    while channel.wish is None:
        threading.Event().wait(0.01)
    return channel.wish
