"""The ready studies of ``conf/experiment``: what each proposes can be run."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

from ray_diloco.cluster.pool import Channel
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.sweep.composing import Composer
from ray_diloco.experiment.sweep.grid import combinations
from ray_diloco.experiment.sweep.rows import Status
from ray_diloco.experiment.sweep.settings import SweepSettings
from ray_diloco.experiment.sweep.trials import Trial, propose
from ray_diloco.experiment.sweep.work import Task, run_trial

STUDIES = {
    "outer_grid": 24,
    "inner_steps": 10,
    "heterogeneity": 14,
    "scaling": 5,
    "compute_vs_communication": 9,
    "traffic": 4,
}
SMALL = (
    "model=mlp",
    "model.size=tiny",
    "data=synthetic",
    "data.synthetic_bytes=400000",
    "data.sequence_length=16",
    "data.eval_batches=1",
    "inner.warmup_steps=1",
    "hub=memory",
)


def proposals(loader, study: str, *words: str, every: bool = True) -> list:
    """What the study's command proposes, with these words behind it; or only the first and the
    last.
    """
    given = [f"experiment={study}", *words]
    master = loader.load_configuration("config", given, RunMode.MULTIRUN)
    params = OmegaConf.to_container(master.hydra.sweeper.params)
    lists = [f"{name}={values}" for name, values in params.items()]
    jobs = combinations(OverridesParser.create().parse_overrides([*lists, *given]))
    chosen = jobs if every else [jobs[0], jobs[-1]]
    return list(propose(Composer(loader, master), chosen, SweepSettings()))


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_says_its_command_on_its_first_line_and_what_it_asks(study):
    lines = (conf_dir() / "experiment" / f"{study}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# ray-diloco -m experiment={study}"]
    assert lines[2].startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize(("study", "trials"), STUDIES.items())
def test_every_trial_of_a_study_is_another_one_and_can_be_run(loader, study, trials):
    found = proposals(loader, study)
    refused = [each.error for each in found if not isinstance(each, Trial)]
    assert refused == []
    assert len({each.key for each in found}) == trials


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("study", STUDIES)
def test_the_first_and_the_last_trial_of_a_study_train(loader, study, tmp_path):
    limit = ("run.max_steps=12",) if study in ("outer_grid", "inner_steps", "traffic") else ()
    limit = limit or ("run.max_seconds=6",)
    for trial in proposals(loader, study, *SMALL, *limit, every=False):
        assert isinstance(trial, Trial), trial
        task = Task(
            config=trial.config,
            run_dir=tmp_path / trial.folder,
            overrides=trial.words,
            hub=None,
        )
        outcome = run_trial(task, channel=Channel(), gang=None)
        assert outcome.status is Status.done, outcome.error
        assert math.isfinite(outcome.numbers["eval_loss"])
        assert outcome.numbers["tokens"] > 0
        assert outcome.numbers["trace_hash"]
