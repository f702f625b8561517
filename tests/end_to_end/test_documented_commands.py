"""Every command that README.md and conf/experiment/ show is run here, with what makes it small
behind it; the others are named, each with where it is run or what it needs.
"""

import re
import shlex
from pathlib import Path

import pytest
from programs import program

import ray_diloco
from ray_diloco.experiment.conf_folder import conf_dir

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- settings -->")[0]
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
LINES = [
    part.strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    for part in re.split(r"&&|;", line.split(" #")[0])
]
SMALL = {
    "run.max_steps": "4",
    "diloco.inner_steps": "2",
    "inner.warmup_steps": "1",
    "data": "synthetic",
    "data.synthetic_bytes": "200000",
    "data.sequence_length": "16",
    "data.eval_batches": "1",
    "model": "mlp",
    "hub": "memory",
    "run.report": "false",
    "run.progress": "none",
}
SHORT = (
    *("run.max_steps=20", "data=synthetic", "data.synthetic_bytes=200000"),
    *("inner.warmup_steps=1", "run.report=false", "run.progress=plain"),
)
ELSEWHERE = {
    r"pip install -e": ".ci/run",
    r"pytest$": ".ci/run",
    r"pip wheel": "tests/experiment/test_wheel.py",
    r"ray-diloco-calibrate --help$": "tests/experiment/test_unread.py",
    r"kubectl|ray up": "a cluster; tests/experiment/test_deploy.py checks the files",
    r"ray job": "tests/end_to_end/test_ray_jobs.py",
    r"ray-diloco ray=cluster": "a cluster; tests/experiment/test_readme.py composes it, "
    "tests/end_to_end/test_ray_failures.py joins one",
    r"ray-diloco-hub|ray-diloco-node|export HF_ENDPOINT": "test_three_shells",
    r"ray-diloco experiment=quickstart hub=huggingface": "test_three_shells",
    r"ray-diloco-results|ray-diloco -m .*hydra.sweep.dir=study": "test_a_study_and_what_it_left",
    r"ray-diloco -m experiment=": "tests/experiment/sweep/test_studies.py",
}
HERE = [line for line in LINES if not any(re.match(each, line) for each in ELSEWHERE)]
EXPERIMENTS = [
    path.read_text().splitlines()[1].removeprefix("# ")
    for path in sorted((conf_dir() / "experiment").glob("*.yaml"))
]
PACKAGE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, inputs):
        return self.layers(inputs)


def batches(split, node_index, seed):
    draws = torch.Generator().manual_seed(1000 * seed + 2 * node_index + (split == "eval"))
    while True:
        inputs = torch.randn(8, 4, generator=draws)
        yield inputs, (inputs.sum(1) > 0).long()
"""


def small(words: list[str]) -> list[str]:
    """The words, and what makes their run small where they do not choose it themselves."""
    given = {word.partition("=")[0] for word in words}
    extra = {name: value for name, value in SMALL.items() if name not in given}
    return [*words, *(f"{name}={value}" for name, value in extra.items())]


def words_of(line: str) -> list[str]:
    program, *words = shlex.split(line)
    assert program == "ray-diloco", f"{line}: nobody runs it"
    return words


def test_every_line_is_run_somewhere():
    assert {words_of(line)[0] for line in HERE if "-m" in line} == {"-m"}
    for where in ELSEWHERE.values():
        for path in re.findall(r"tests/[\w/]+\.py|\.ci/run", where):
            assert (ROOT / path).is_file()
        for name in re.findall(r"\btest_\w+(?=$)", where):
            assert name in globals()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to be in, but for a package of one's own."""
    (tmp_path / "my_package.py").write_text(PACKAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in HERE if " -m " not in line])
def test_a_run_of_the_readme_trains(line, folder):
    result = ray_diloco.run(small([*words_of(line), "engine=inproc"]), folder=folder / "run")
    assert (result.status, result.numbers["range_sum"] in ("ok", None)) == ("done", True)
    assert result.numbers["tokens"] > 0


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("line", [line for line in HERE if " -m " in line])
def test_a_sweep_of_the_readme_trains(line, folder):
    few = ["search.trials=3", "run.max_seconds=2"] if "optuna" in line else []
    words = [*small(words_of(line)[1:]), *few]
    found = ray_diloco.sweep(words, folder=folder / "sweep")
    assert {row.status.value for row in found.rows} <= {"done", "pruned"}
    assert len(found.rows) == 3 if few else len(found.rows) > 1


@pytest.mark.slow
@pytest.mark.parametrize("line", [each for each in EXPERIMENTS if " -m " not in each])
def test_an_experiment_trains(line, folder):
    result = ray_diloco.run(small([*words_of(line), "engine=inproc"]), folder=folder / "run")
    assert result.status == "done"


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_and_what_it_left(folder):
    """The sweep, the same again with nothing left to do, and the question about it."""
    first, again = (words_of(line) for line in LINES if "hydra.sweep.dir=study" in line)
    for words in (first, again):
        module = "ray_diloco.experiment.main"
        with program(module, *small(words), folder=folder, PYTHONPATH="") as swept:
            assert swept.end() == 0, swept.output
    (ask,) = (shlex.split(line)[1:] for line in LINES if line.startswith("ray-diloco-results"))
    with program("ray_diloco.experiment.sweep.results_main", *ask, folder=folder) as asked:
        assert asked.end() == 0, asked.output
    assert len((folder / "study.csv").read_text().splitlines()) == 1 + 2 * 3
    assert len((folder / "study" / "results.jsonl").read_text().splitlines()) == 2 * 2 * 3


@pytest.mark.slow
def test_three_shells(folder):
    """A hub, who leads, and a node that joins by the block that is shown."""
    hub_words, _, lead, join = (shlex.split(line.split(" #")[0]) for line in shells())
    (block,) = re.findall(r"```yaml\n(distributed: .*?)```", README, flags=re.DOTALL)
    (folder / "node.yaml").write_text(block)
    served = (hub_words[1], "0", *hub_words[3:])
    with program("ray_diloco.hub.embedded.main", *served, folder=folder / "hub") as hub:
        hub.until(lambda: "HF_TOKEN" in hub.output)
        token = (folder / "hub" / "hub.token").read_text().strip()
        there = {"HF_ENDPOINT": hub.output.split()[0].partition("=")[2], "HF_TOKEN": token}
        led = (*lead[1:], *SHORT, f"hydra.run.dir={folder / 'lead' / 'run'}")
        with program("ray_diloco.experiment.main", *led, folder=folder / "lead", **there) as leader:
            leader.until(lambda: leader.events("opened"))
            joined = (*join[1:], *SHORT, f"distributed_yaml={folder}/node.yaml")
            module, place = "ray_diloco.experiment.node_main", folder / "n1"
            with program(module, *joined, folder=place, **there) as node:
                assert node.end() == 0, node.output
            assert leader.end() == 0, leader.output
            assert leader.result["status"] == "done"
            assert leader.result["range_sum"] == "ok"


def shells() -> list[str]:
    (block,) = (each for each in BLOCKS if "ray-diloco-hub --port" in each)
    return block.splitlines()


@pytest.mark.slow
@pytest.mark.ray
def test_the_program_of_the_readme_runs(folder):
    (code,) = (
        each for each in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
        if "load_results" in each
    )  # fmt: skip
    names: dict = {}
    before, loads = re.split(r"(?=ray_diloco\.load_results)", code)
    exec(before, names)
    assert names["result"].status == "done"
    there = str(names["result"].folder)
    exec(re.sub(r'"outputs/[^"]+"', repr(there), loads), names)
