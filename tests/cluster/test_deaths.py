"""What is said of a participant that died on Ray, without one."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, OutOfMemoryError

from ray_diloco.cluster.deaths import cause_of, is_of_memory

LOW = "Task was killed due to the node running low on memory.\nMemory on the node was 0.99"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OutOfMemoryError(LOW), "its machine was out of memory, so Ray killed its process"),
        (NodeDiedError("It died because its node has died.\nNode Id: 1"), "its machine has gone"),
        (ActorUnavailableError("no answer", None), "its process died or is out of reach"),
        (ActorDiedError(), "its process died"),
    ],
)
def test_the_cause_is_told_in_one_line_with_what_ray_says(error, cause):
    told = cause_of(error)
    assert told.startswith(f"{cause}: {str(error).splitlines()[0][:20]}")
    assert "\n" not in told
    assert is_of_memory(error) == ("memory" in cause)
