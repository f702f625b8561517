"""The command ``ray-diloco-export``: a run's final model as a folder that others can load."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ray_diloco.experiment.one_line import one_line_errors


def main(words: Sequence[str] | None = None) -> None:
    """Exits with 0, or 2 when there is no model, or no place for it."""
    parser = argparse.ArgumentParser(
        prog="ray-diloco-export",
        description="Write the final model of a run to a new folder: for from_pretrained with "
        "model=hf, otherwise safetensors and the configuration; with a model card.",
    )
    parser.add_argument("run", type=Path, metavar="folder", help="the run folder")
    parser.add_argument("target", type=Path, help="the folder to write")
    with one_line_errors("ray-diloco-export"):
        given = parser.parse_args(words)
        from ray_diloco.experiment.export import export  # brings torch, which help spares
        from ray_diloco.experiment.main import find_user_modules

        find_user_modules()
        names = export(given.run.expanduser(), given.target.expanduser())
        print(f"{given.target}: {', '.join(names)}")
