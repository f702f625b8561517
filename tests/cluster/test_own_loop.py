"""`join` and `lead`: plain PyTorch loops around a repository on a served hub."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import ray_diloco
from ray_diloco.cluster.joining import JoinedNode, join
from ray_diloco.cluster.leading import lead
from ray_diloco.errors import ConfigError, NodeInUseError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.settings import HubSettings
from ray_diloco.node.own_loop import OwnLoop

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum(1, keepdim=True)
FAST = {"poll_interval": 0.1, "outer_lr": 1.0, "outer_momentum": 0.0}
KEEPS = {"reset_inner_optimizer": False, "async_delta_upload": False}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def there(hub: EmbeddedHub, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A repository for one test."""
    return {
        "repo_id": re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:60],
        "endpoint": hub.endpoint,
        "token": hub.token.reveal(),
    }


def new_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model: nn.Module) -> torch.Tensor:
    return ((model(INPUTS) - TARGETS) ** 2).mean()


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return loss


def trained_plainly(steps: int) -> dict[str, torch.Tensor]:
    model = new_model()
    optimizer = new_optimizer(model)
    for _ in range(steps):
        one_step(model, optimizer)
    return model.state_dict()


class Odd:
    """Saves what a checkpoint cannot hold."""

    def state_dict(self) -> object:
        return {"itself": self}

    def load_state_dict(self, state_dict: object) -> None:
        raise AssertionError(f"never saved: {state_dict}")


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_a_plain_loop_that_joins_alone_trains_as_it_would_without(
    there: dict[str, Any], tmp_path: Path
) -> None:
    model = new_model()
    optimizer = new_optimizer(model)
    with lead(
        new_model(), nodes=["a"], evaluate=loss_of, state_dir=tmp_path / "m", **FAST, **there
    ) as leader:
        start = {name: value.clone() for name, value in model.state_dict().items()}
        for value in model.state_dict().values():
            value.zero_()  # the global is what the node starts from, not what it brought along
        node = join(
            model,
            optimizer,
            node_id="a",
            inner_steps=10,
            state_dir=tmp_path / "a",
            wait_for_merge=True,  # what is sent and not merged yet would be missed for a while
            **KEEPS,
            **FAST,
            **there,
        )
        assert_close(model.state_dict(), start)
        with node:
            for _ in range(45):
                assert node.step(one_step(model, optimizer), tokens=64)
    report = leader.wait()
    assert report is not None
    assert node.report is not None
    assert (node.report.local_steps, node.report.tokens) == (45, 45 * 64)
    assert [each["merged"] for each in report.accounts["a"].values()] == ["1-45"]
    assert report.tokens_total == 45 * 64
    assert report.evaluations[-1].loss == pytest.approx(loss_of(model).item(), rel=1e-4)
    assert_close(load_file(report.model_file), trained_plainly(45))


def test_a_loop_that_failed_goes_on_from_its_checkpoint_with_its_schedule(
    there: dict[str, Any], tmp_path: Path
) -> None:
    def run(node: JoinedNode, until: int, schedule: Any, *, fails: bool = False) -> None:
        for _ in range(node.local_step, until):
            loss = one_step(model, optimizer)
            schedule.step()
            node.step(loss)
        if fails:
            raise KeyError("the loop's own fault")

    def joined(schedule: Any) -> JoinedNode:
        parts = {"schedule": schedule}
        folder = tmp_path / "a"
        return join(
            model,
            optimizer,
            node_id="a",
            inner_steps=10,
            parts=parts,
            state_dir=folder,
            **KEEPS,
            **FAST,
            **there,
        )

    with lead(new_model(), nodes=["a"], state_dir=tmp_path / "m", **FAST, **there) as leader:
        model = new_model()
        optimizer = new_optimizer(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        with pytest.raises(KeyError), joined(schedule) as node:
            run(node, 23, schedule, fails=True)
        model = new_model()
        optimizer = new_optimizer(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        with joined(schedule) as node:
            assert node.local_step == 20  # the last boundary; with it, the optimizer's state
            assert schedule.last_epoch == 20
            assert optimizer.state
            run(node, 40, schedule)
    report = leader.wait()
    assert report is not None
    merged = [each["merged"] for each in report.accounts["a"].values()]
    assert merged == ["1-40"]


def test_a_loop_that_cannot_be_changed_is_followed_by_its_optimizer(
    there: dict[str, Any], tmp_path: Path
) -> None:
    model = new_model()
    optimizer = new_optimizer(model)
    with lead(new_model(), nodes=["a"], state_dir=tmp_path / "m", **FAST, **there) as leader:
        node = join(
            model, optimizer, node_id="a", inner_steps=5, state_dir=tmp_path / "a", **FAST, **there
        )
        with node.hooked(tokens_per_step=64):
            for _ in range(12):
                one_step(model, optimizer)
        one_step(model, optimizer)  # after the node has left, nobody counts
    report = leader.wait()
    assert report is not None
    assert report.tokens_total == 12 * 64


def test_the_end_of_the_run_reaches_the_loop(
    there: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = new_model()
    optimizer = new_optimizer(model)
    run = {"nodes": ["a"], "max_tokens": 640, "state_dir": tmp_path / "m", **FAST, **there}
    name = {"node_id": "a", "inner_steps": 5, "state_dir": tmp_path / "a", **FAST, **there}
    with lead(new_model(), **run) as leader, join(model, optimizer, **name) as node:
        steps = 0
        while node.step(one_step(model, optimizer), tokens=64):
            steps += 1
            assert steps < 100_000
    report = leader.wait()
    assert report is not None
    assert report.tokens_total >= 640
    assert "max_tokens=640" in report.stop_reason
    with join(model, optimizer, **(name | {"node_id": "b", "state_dir": tmp_path / "b"})) as late:
        assert late.over
    assert "b: the run in" in caplog.text
    assert "is over: run.max_tokens=640 reached" in caplog.text
    with join(model, optimizer, **name) as again:
        assert again.over
    assert "a: the run in" in caplog.text
    with lead(new_model(), **run) as leader:
        assert leader.wait() is not None
    assert "is over, no delta was merged: run.max_tokens=640 reached" in caplog.text


def test_a_loop_whose_deltas_are_held_back_is_told_once(
    there: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", there["endpoint"])
    model = new_model()
    optimizer = new_optimizer(model)
    counted = {"token": there["token"], "repo_id": there["repo_id"], **FAST}
    with (
        lead(new_model(), nodes=["a"], state_dir=tmp_path / "m", **FAST, **there),
        join(
            model,
            optimizer,
            node_id="a",
            inner_steps=5,
            state_dir=tmp_path / "a",
            hub=ray_diloco.HubSettings(commits_per_hour=4),
            **counted,
        ) as node,
    ):
        for _ in range(60):
            node.step(one_step(model, optimizer))
    assert caplog.text.count("the commit budget holds deltas back") == 1
    assert node.report is not None
    assert node.report.unsent == ""


def test_a_name_in_use_is_refused(there: dict[str, Any], tmp_path: Path) -> None:
    with lead(new_model(), nodes=["a"], state_dir=tmp_path / "m", **FAST, **there):
        model = new_model()
        both = {"node_id": "a", "state_dir": tmp_path / "a", **FAST, **there}
        with join(model, new_optimizer(model), **both):
            other = new_model()
            with pytest.raises(NodeInUseError, match="'a' is in use"):
                join(other, new_optimizer(other), **both)


def test_a_transformers_trainer_takes_part_by_a_callback(
    there: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf; runs in .ci/run")

    class InRun(transformers.TrainerCallback):
        def __init__(self, node: JoinedNode) -> None:
            self.node = node

        def on_step_end(self, _args: Any, _state: Any, control: Any, **_rest: Any) -> None:
            if not self.node.step(tokens=8):
                control.should_training_stop = True

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.arange(index, index + 8) % 32
            return {"input_ids": tokens, "labels": tokens}

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 8, "vocab_size": 32}
    config = transformers.GPT2Config(**sizes)
    model, start = transformers.GPT2LMHeadModel(config), transformers.GPT2LMHeadModel(config)
    optimizer = new_optimizer(model)
    settings = transformers.TrainingArguments(
        str(tmp_path / "hf"),
        max_steps=12,
        per_device_train_batch_size=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    run = {"nodes": ["a"], "state_dir": tmp_path / "m", **FAST, **there}
    name = {"node_id": "a", "inner_steps": 5, "state_dir": tmp_path / "a", **FAST, **there}
    with lead(start, **run) as leader, join(model, optimizer, **name) as node:
        trainer = transformers.Trainer(
            model,
            settings,
            train_dataset=Data(),
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1)),
            callbacks=[InRun(node)],
        )
        trainer.train()
    report = leader.wait()
    assert report is not None
    assert report.tokens_total == 12 * 8


def test_the_loops_that_the_readme_shows_run(
    hub: EmbeddedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    joins, leads = re.findall(
        r"```python\n((?:import ray_diloco\n\n)?with .*?)```", readme, re.DOTALL
    )
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", hub.token.reveal())
    monkeypatch.chdir(tmp_path)
    model = new_model()
    optimizer = new_optimizer(model)
    names = {
        "model": model,
        "optimizer": optimizer,
        "batches": [INPUTS] * 3,
        "ray_diloco": ray_diloco,
    }
    names |= {"train_step": lambda *_: one_step(model, optimizer), "held_out_loss": loss_of}
    joins, leads = (
        text.replace("me/", "local/").replace('run",', 'run", poll_interval=0.1,')
        for text in (joins, leads)
    )
    with ThreadPoolExecutor() as threads:
        led = threads.submit(exec, leads, names)
        while "leader" not in names or names["leader"].status.outer_step < 0:  # type: ignore[attr-defined]
            assert not wait([led], timeout=0.05).done
        exec(joins, names)
        led.result(timeout=60)
    assert names["report"].tokens_total == 3 * INPUTS.numel()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"node_id": "../x"}, "node_id"),
        ({"inner_steps": 0}, "diloco.inner_steps=0"),
        ({"pol_interval": 1.0}, "did you mean poll_interval"),
        ({"outer_lr": "fast"}, "diloco.outer_lr='fast': expected a number"),
        ({"inner_steps": 2.5}, "diloco.inner_steps=2.5: expected a whole number"),
        ({"max_staleness": "no"}, "diloco.max_staleness='no': expected a whole number or null"),
        ({"hub": HubSettings(read_timeout="5")}, "hub.read_timeout='5': expected a number"),
        ({"node_id": None}, "node_id=null: expected text"),
        ({"hub": {"commits_per_hour": 3}}, "expected HubSettings"),
        ({"model": nn.Linear}, "expected a torch.nn.Module"),
        ({"optimizer": None}, "optimizer='None': expected a torch.optim.Optimizer"),
        (
            {"model": nn.Linear(2, 2)},
            "expected one of the model's parameters",
        ),
        ({"checkpoint_every": True}, "checkpoint_every=True: expected a whole number or null"),
        ({"repo_id": "not-there"}, "hub.repo_id='local/not-there'"),
        ({"parts": {"odd": Odd()}}, "odd"),
    ],
)
def test_what_cannot_be_used_is_named(
    there: dict[str, Any], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    model = new_model()
    usual = {"node_id": "a", "state_dir": tmp_path, **there}
    usual |= {"model": model, "optimizer": new_optimizer(model)}
    with pytest.raises(ConfigError, match=message):
        join(**(usual | given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": nn.Linear}, "expected a torch.nn.Module"),
        ({"evaluate": 3}, "evaluate=3: expected a function of a model, or None"),
        ({"run_id": 7}, "run_id=7: expected text or null"),
        ({"max_tokens": "all"}, "max_tokens='all': expected a whole number or null"),
        ({"outer_lr": None}, "diloco.outer_lr=null: expected a number"),
    ],
)
def test_what_nobody_can_lead_with_is_named(
    there: dict[str, Any], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    usual = {"model": new_model(), "state_dir": tmp_path, **there}
    with pytest.raises(ConfigError, match=message):
        lead(**(usual | given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "x"}, "loss='x': expected a number or null"),
        ({"tokens": 2.5}, "tokens=2.5: expected a whole number"),
        ({"tokens": -5}, "tokens=-5: expected at least 0"),
    ],
)
def test_what_no_step_is_like_is_named(given: dict[str, Any], message: str) -> None:
    model = new_model()
    loop = OwnLoop(model, new_optimizer(model))
    with pytest.raises(ConfigError, match=message):
        loop.note(**({"loss": 1.0, "tokens": 1} | given))
