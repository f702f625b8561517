"""What Prometheus reads of a run on Ray."""

import socket
import urllib.error
import urllib.request

import pytest
from end_to_end.programs import SMALL, ray_diloco
from prometheus_client.parser import text_string_to_metric_families

from ray_diloco.protocol.metrics import MASTER_METRICS, NODE_METRICS

pytestmark = pytest.mark.ray

QUICKLY = {"RAY_metrics_report_interval_ms": "500"}
HOSTILE = ("+cluster.overrides.n1.delta_factor=1e6", "diloco.max_delta_norm=1e3")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Values by name and participant; none before anything answers there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return {}
    return {
        (sample.name, sample.labels["participant"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("run")
    }


def test_prometheus_reads_every_metric_of_a_run_that_goes_on(tmp_path):
    port = free_port()
    words = (*SMALL, *HOSTILE, "engine=ray", "time=wall", "run.max_steps=100000")
    expected = {(each.shown_as, "n0") for each in NODE_METRICS}
    expected |= {(each.shown_as, "n0/master") for each in MASTER_METRICS}
    found: dict[tuple[str, str], float] = {}

    def all_are_there() -> bool:
        found.update(scraped(port))
        return expected <= set(found)

    with ray_diloco(*words, f"ray.metrics_port={port}", folder=tmp_path, **QUICKLY) as run:
        run.until(all_are_there)
        run.press_ctrl_c()
        assert run.end() == 130, run.output
        node, master = run.result["nodes"]["n0"], run.result
    assert 0 < found["ray_diloco_local_steps_total", "n0"] <= node["local_steps"]
    assert 0 < found["ray_diloco_tokens_total", "n0"] <= node["tokens"]
    assert 0 < found["ray_diloco_bytes_up_total", "n0"] <= node["bytes_up"]
    assert 0 < found["ray_diloco_deltas_merged_total", "n0/master"] <= master["deltas_merged"]
    assert 0 < found["ray_diloco_deltas_rejected_total", "n0/master"] <= master["rejected_deltas"]
    assert found["ray_diloco_outer_step", "n0/master"] <= master["outer_steps"]


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        words = (*SMALL, "engine=ray", f"ray.metrics_port={port}")
        with ray_diloco(*words, folder=tmp_path) as run:
            assert run.end() == 2, run.output
    assert f"ray.metrics_port={port}: expected a free port, or null for any" in run.output
