"""Scripted absences that last longer than a run waits for a silent node."""

import math

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.timing.profile import NodeProfile

MOST_NAMES = 4
"""Nodes that the line names; further ones are counted."""


def long_absences(config: Config) -> list[str]:
    """A line, with numbers, when nodes come back after ``diloco.node_timeout``."""
    if config.run.role is Role.single or config.time.kind is not TimeKind.virtual:
        return []
    timeout = config.diloco.node_timeout
    found = [
        f"{node_id} {told}"
        for node_id, profile in node_profiles(config.cluster)
        for seconds, told in _absences(profile)
        if timeout < seconds < math.inf
    ]
    if not found:
        return []
    more = f"; and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return [
        f"a node that is silent for longer than diloco.node_timeout={timeout:g} s counts as gone, "
        "and the run ends without it when the others are done before it is back: "
        f"{'; '.join(found[:MOST_NAMES])}{more}"
    ]


def _absences(profile: NodeProfile) -> list[tuple[float, str]]:
    """How long each lasts, in seconds, and how it is written in the profile."""
    absences = [(profile.join_at, f"joins after {profile.join_at:g} s (join_at)")]
    if profile.recover_after is not None:
        back = profile.recover_after
        absences.append((back, f"is back {back:g} s after its crash (recover_after)"))
    absences += [
        (until - since, f"is gone for {until - since:g} s from second {since:g} (away)")
        for since, until in profile.away
    ]
    return absences
