"""The fastest node alone, for as long as the run took: what all the others must be worth."""

from dataclasses import replace

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import Config, EngineName, Role, TimeKind
from ray_diloco.experiment.tracking.settings import TrackingSettings
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile


def check_alone(config: Config) -> None:
    """ConfigError where there is nothing to compare with."""
    if not config.run.alone:
        return
    if config.run.role is not Role.master:
        raise ConfigError("run.alone", True, f"expected false with run.role={config.run.role}")
    if config.time.kind is not TimeKind.virtual and not config.time.emulate_profile:
        expected = "expected time=virtual or time.emulate_profile=true: else no speed is known"
        raise ConfigError("run.alone", True, expected)


def fastest_alone(config: Config, seconds: float) -> Config:
    """One node without a hub, in virtual time: as fast as the fastest, which is there all the time;
    the data are all its own.
    """
    profiles = [profile for _, profile in node_profiles(config.cluster)]
    fastest = min(profiles, key=lambda profile: profile.seconds_per_step)
    always = NodeProfile(
        seconds_per_step=fastest.seconds_per_step,
        jitter=fastest.jitter,
        jitter_parameter=fastest.jitter_parameter,
    )
    cluster = replace(
        config.cluster, nodes=1, node_ids=[], profiles=[always], overrides={}, availability=None
    )
    limits = {"max_steps": None, "max_tokens": None, "max_seconds": seconds}
    return replace(
        config,
        run=replace(config.run, role=Role.single, resume=None, alone=False, report=False, **limits),
        cluster=cluster,
        diloco=DilocoSettings(inner_steps=config.diloco.inner_steps),
        engine=replace(config.engine, name=EngineName.inproc),
        time=replace(config.time, kind=TimeKind.virtual, emulate_profile=False),
        tracking=TrackingSettings(),
    )
