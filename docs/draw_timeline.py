"""Draws docs/timeline.png (or another file) from a small unequal run as a report does; needs
Chromium:

python docs/draw_timeline.py [file]
"""

import sys
import tempfile
from pathlib import Path

import ray_diloco
from ray_diloco.experiment.report.document import Document
from ray_diloco.experiment.report.picture import picture_of
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.report.timeline_figure import timeline_figure

RUN = ("experiment=quickstart", "engine=inproc", "cluster=volunteers", "cluster.nodes=5")


def main(target: Path) -> None:
    """Virtual time: the picture does not depend on the machine's speed."""
    with tempfile.TemporaryDirectory() as folder:
        result = ray_diloco.run([*RUN, "run.report=false", f"hydra.run.dir={folder}/run"])
        page = Document(title="timeline")
        timeline = timeline_figure(read_run(result.folder))
        page.add(page.figure(timeline, caption="", alt="What five unequal nodes did when"))
        drawn = Path(folder) / "timeline.html"
        drawn.write_text(page.to_html(), encoding="utf-8")
        picture_of(drawn, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("timeline.png"))
