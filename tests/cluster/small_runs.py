"""Runs so small that they take a second or two, through the real nodes, master and hub."""

from hydra import compose, initialize_config_dir

from ray_diloco.experiment.build import complete
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run

SMALL = (
    "experiment=quickstart",
    "data=synthetic",
    "data.synthetic_bytes=40000",
    "data.sequence_length=16",
    "data.batch_size=1",
    "data.eval_batches=1",
    "model.width=4",
    "model.hidden=8",
    "model.window=2",
    "engine=inproc",
    "hub=memory",
    "run.progress=none",
    "cluster.profiles=[{seconds_per_step: 0.1},{seconds_per_step: 0.2},{seconds_per_step: 0.3}]",
)
UNEQUAL = (
    "cluster.nodes=3",
    "run.max_steps=30",
    "+cluster.overrides.n1={jitter: lognormal, jitter_parameter: 0.3, up_mbps: 0.5}",
    "+cluster.overrides.n2={crash_at: 3.05, recover_after: 1.5, latency_ms: 40}",
    "cluster.hub_up_mbps=1.0",
)
"""Three nodes with jitter, thin links and a crash, beside a link that they share."""


def configured(*overrides):
    """The configuration of a run, as complete as it starts."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return complete(read_config(compose("config", [*SMALL, *overrides])))


def play(folder, *overrides, stage=None):
    """The numbers of a run and its events, each kind by time."""
    config = configured(*overrides)
    result = run(config, folder, **({} if stage is None else {"stage": stage}))
    assert result.status == "done", result.numbers
    return result.numbers, list(read_events(folder / "events.jsonl"))


def moments(events, name, participant):
    return [
        event["at"]
        for event in events
        if event["event"] == name and event["participant"] == participant
    ]
