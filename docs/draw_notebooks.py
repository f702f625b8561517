"""Runs the notebooks and keeps what their cells show, figures as pictures, since nothing runs where
notebooks are looked at; needs Chromium and the extra dev:

python docs/draw_notebooks.py
"""

import base64
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ray_diloco.experiment.report.document import Document
from ray_diloco.experiment.report.picture import picture_of

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PLOTLY = "application/vnd.plotly.v1+json"


def main(names: list[str]) -> None:
    """Those that are named, or all."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(drawn(nbformat.read(path, as_version=4)), path)


def drawn(notebook: Any) -> Any:
    """The notebook with the outputs of a run of its own, which do not say when that was."""
    NotebookClient(
        notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    for cell in notebook.cells:
        if "outputs" in cell:  # what packages warn of is of the machine, and no result
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        for output in cell.get("outputs", ()):
            if PLOTLY in output.get("data", {}):
                output["data"] = {"image/png": picture(output["data"][PLOTLY])}
    notebook.metadata = {
        name: notebook.metadata[name] for name in ("kernelspec", "language_info")
    } | {"drawn_from": sources_hash(notebook)}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def picture(figure: dict[str, Any]) -> str:
    """A figure of plotly as the text of a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        page = Document(title="figure")
        layout = {name: value for name, value in figure["layout"].items() if name != "template"}
        page.add(page.figure({"data": figure["data"], "layout": layout}, caption="", alt=""))
        file = Path(folder) / "figure.html"
        file.write_text(page.to_html(), encoding="utf-8")
        png = picture_of(file, file.with_suffix(".png")).read_bytes()
    return base64.b64encode(png).decode("ascii")


def sources_hash(notebook: Any) -> str:
    """Of the code that the outputs come from: other code would show something else."""
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join("".join(each) for each in code).encode()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
