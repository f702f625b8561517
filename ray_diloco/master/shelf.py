"""Where the files of globals lie on disk: one folder each.

The newest that nobody needs any more stays until the next: writing over a file is cheaper than
finding room for a new one, and a full disk stops no round that wrote as much before.
"""

import shutil
from pathlib import Path


class Shelf:
    """Folders of one master. Local files are a cache: a new master begins with an empty shelf."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._folder = folder
        self._count = 0
        self._spare: Path | None = None

    def new(self) -> Path:
        """An empty folder for the files of one global."""
        self._count += 1
        folder = self._folder / f"{self._count:06d}"
        folder.mkdir(mode=0o700)
        return folder

    def take_spare(self) -> Path | None:
        """A folder with the files of an old global, to be written over; None before there is one.
        It is gone with the next `keep_only`.
        """
        spare, self._spare = self._spare, None
        return spare

    def keep_only(self, files: list[Path]) -> None:
        """Give up every folder that holds none of these files: the newest becomes the spare one,
        the others are deleted.
        """
        kept = {file.parent for file in files}
        given_up = sorted(folder for folder in self._folder.iterdir() if folder not in kept)
        for folder in given_up[:-1]:
            shutil.rmtree(folder, ignore_errors=True)
        self._spare = given_up[-1] if given_up else None
