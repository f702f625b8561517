import json

import pytest

from ray_diloco.experiment.run import run

SETTINGS = (
    *("time=virtual", "data.synthetic_bytes=60000", "model.window=4", "model.hidden=64"),
    *("data.eval_batches=4", "data.sequence_length=32", "run.max_steps=64", "inner.warmup_steps=4"),
    *("diloco.inner_steps=8", "diloco.poll_interval=0.05", "diloco.outer_momentum=0.0"),
    *("diloco.reset_inner_optimizer=false", "run.progress=none", "inner.schedule=constant"),
)


@pytest.fixture(scope="module")
def plain(small, tmp_path_factory):
    """The same run in fp32."""
    return numbers_of(small, tmp_path_factory.mktemp("fp32"), "codec=fp32")


def numbers_of(small, folder, *overrides):
    run(small(*SETTINGS, *overrides), folder)
    return json.loads((folder / "result.json").read_text())


def uploaded(numbers) -> int:
    return sum(node["bytes_up"] for node in numbers["nodes"].values())


@pytest.mark.parametrize(
    ("codec", "share", "worse"),
    [
        ("codec=bf16", 0.6, 0.002),
        ("codec=fp16", 0.6, 0.002),
        ("codec=int8", 0.35, 0.01),
        ("codec=int4", 0.25, 0.03),
        ("codec=fp4_e3m0", 0.25, 0.05),
        ("diloco.codec=topk_8", 0.25, 1.3),  # trails while there were few rounds
    ],
)
def test_a_run_with_a_codec_sends_less_and_learns_as_much(
    small, plain, tmp_path, codec, share, worse
):
    numbers = numbers_of(small, tmp_path, codec)
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert (numbers["rejected_deltas"], numbers["dropped_local_steps"]) == (0, 0)
    assert uploaded(numbers) < share * uploaded(plain)
    assert plain["eval_loss"] < plain["initial_eval_loss"] - 1
    assert numbers["eval_loss"] < plain["eval_loss"] + worse


def test_with_decay_a_run_accounts_for_every_step_too(small, tmp_path):
    numbers = numbers_of(small, tmp_path, "codec=topk", "diloco.codec_decay=0.95")
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["eval_loss"] < numbers["initial_eval_loss"]
