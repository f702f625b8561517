"""The sha256 of a file that is still being written, by a thread that follows its writer.

Neither reading a file nor hashing holds the interpreter, so that on a second core the hash of a
large file costs its writer next to nothing. A small file is hashed at the end, without a thread.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ray_diloco.tensors.safetensors_reader import BLOCK, read_exactly

_WORTH_A_THREAD = 16 * BLOCK


class RunningHash:
    """Of a file's bytes from ``start`` on, in order, however they are written.

    The descriptor stays its owner's, who calls `finish` or `cancel` before it is closed.
    """

    def __init__(self, fd: int, path: Path, *, start: int) -> None:
        """``path``: for errors."""
        self._fd = fd
        self._path = path
        self._digest = hashlib.sha256()
        self._handed = start
        self._complete = start
        self._ahead: dict[int, int] = {}
        self._follower: ThreadPoolExecutor | None = None
        self._jobs: list[Future[None]] = []

    def written(self, start: int, stop: int) -> None:
        """These bytes are in the file and stay as they are."""
        self._ahead[start] = stop
        while self._complete in self._ahead:
            self._complete = self._ahead.pop(self._complete)
        if self._complete - self._handed >= _WORTH_A_THREAD:
            self._hand_over()

    def finish(self, stop: int) -> str:
        """The hash of all up to byte ``stop``, hexadecimal. Raises what the follower met."""
        try:
            for job in self._jobs:
                job.result()
            self._hash(self._handed, stop)
        finally:
            self.cancel()
        return self._digest.hexdigest()

    def cancel(self) -> None:
        """Give up; the follower has ended when this returns."""
        if self._follower is not None:
            self._follower.shutdown(cancel_futures=True)
            self._follower = None

    def _hand_over(self) -> None:
        if self._follower is None:
            self._follower = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._jobs.append(self._follower.submit(self._hash, self._handed, self._complete))
        self._handed = self._complete

    def _hash(self, start: int, stop: int) -> None:
        block = memoryview(bytearray(min(BLOCK, max(0, stop - start))))
        for position in range(start, stop, BLOCK):
            part = block[: min(BLOCK, stop - position)]
            read_exactly(self._fd, part, position, self._path)
            self._digest.update(part)
