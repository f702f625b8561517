"""The part of ``ray-diloco --help`` that lists the groups of ``conf``."""

import textwrap
from pathlib import Path

from ray_diloco.experiment.conf_folder import conf_dir

WIDTH = 100
STUDIES = "paper_"
"""What the names of published studies begin with; they are too many to be listed."""


def group_lines() -> str:
    """A line for each group with its choices; groups of a single file share one."""
    groups = {folder.name: _choices(folder) for folder in sorted(conf_dir().iterdir())}
    several = {name: choices for name, choices in groups.items() if len(choices) > 1}
    single = [name for name, choices in groups.items() if len(choices) == 1]
    lines = [
        line
        for name, choices in several.items()
        for line in textwrap.wrap(
            f"{name}: {', '.join(choices)}", WIDTH, subsequent_indent="  ", break_long_words=False
        )
    ]
    return "\n".join([*lines, f"one file each: {', '.join(single)}"])


def _choices(folder: Path) -> list[str]:
    if not folder.is_dir() or folder.name == "hydra":
        return []
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    listed = [name for name in names if not name.startswith(STUDIES)]
    return listed if listed == names else [*listed, f"{STUDIES}..."]
