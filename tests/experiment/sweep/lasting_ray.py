"""A Ray of machines with so many CPUs; prints its address, and lasts until its input ends."""

import sys
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 78_643_200}


def last(cpus: Sequence[int]) -> None:
    """One machine as a run starts it, or several, each a raylet of this machine."""
    if len(cpus) == 1:
        ray.init(
            address="local", num_cpus=cpus[0], include_dashboard=False, log_to_driver=False, **SMALL
        )
        _wait(ray.get_runtime_context().gcs_address)
        ray.shutdown()
        return
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **SMALL})
    for each in cpus[1:]:
        cluster.add_node(num_cpus=each, **SMALL)
    cluster.wait_for_nodes()
    _wait(cluster.address)
    cluster.shutdown()


def _wait(address: str) -> None:
    print(f"address {address}", flush=True)  # noqa: T201 - who started this reads it
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    last([int(each) for each in sys.argv[1:]])
