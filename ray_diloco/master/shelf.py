"""Where the files of globals lie on disk: one folder each, gone when nobody needs it any more."""

import shutil
from pathlib import Path


class Shelf:
    """Folders of one master. Local files are a cache: a new master begins with an empty shelf."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._folder = folder
        self._count = 0

    def new(self) -> Path:
        """An empty folder for the files of one global."""
        self._count += 1
        folder = self._folder / f"{self._count:06d}"
        folder.mkdir(mode=0o700)
        return folder

    def keep_only(self, files: list[Path]) -> None:
        """Delete every folder that holds none of these files."""
        kept = {file.parent for file in files}
        for folder in self._folder.iterdir():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)
