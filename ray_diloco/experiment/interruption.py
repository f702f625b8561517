"""Ctrl-C, gently: the first one asks, the second one ends."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first SIGINT or SIGTERM sets ``asked``, and the second raises
    KeyboardInterrupt. Does nothing outside the main thread, where Python has no signals.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._take) for each in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _take(
        self,
        number: int,  # noqa: ARG002 - both signals ask for the same
        frame: FrameType | None,  # noqa: ARG002
    ) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
