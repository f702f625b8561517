"""The files of deploy/. KubeRay's CRD is not at hand: the RayJob is held to its form by hand."""

import json
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import yaml
from jsonschema import validate

from ray_diloco.cluster.settings import node_ids
from ray_diloco.hub.settings import HubKind

ROOT = Path(__file__).parents[2]
CLUSTER = yaml.safe_load((ROOT / "deploy/ray-cluster.yaml").read_text())
JOB = yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text())
GROUPS = JOB["spec"]["rayClusterSpec"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def pods() -> list[dict]:
    groups = [GROUPS["headGroupSpec"], *GROUPS["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_ray_up_takes_the_cluster_file():
    folder = Path(find_spec("ray").submodule_search_locations[0])
    validate(CLUSTER, json.loads((folder / "autoscaler/ray-schema.json").read_text()))


def test_the_cluster_installs_the_wheel_of_this_version():
    (wheel,) = CLUSTER["file_mounts"]
    assert wheel.endswith(f"/ray_diloco-{VERSION}-py3-none-any.whl")
    assert any(wheel in command for command in CLUSTER["setup_commands"])


def test_the_job_has_the_form_of_a_rayjob():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    for group in GROUPS["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for pod in pods():
        assert [each["image"].rsplit(":")[-1] for each in pod["containers"]] == [VERSION]


def test_the_job_runs_a_command_that_the_program_takes(configure):
    command, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert command == "ray-diloco"
    config = configure(*(word for word in words if not word.startswith("hydra.")))
    assert (config.ray.address, config.hub.kind) == ("auto", HubKind.huggingface)
    workers = sum(group["replicas"] for group in GROUPS["workerGroupSpecs"])
    assert len(node_ids(config.cluster)) == workers


def test_each_node_of_the_job_fills_a_worker_and_none_fits_on_the_head(configure):
    words = shlex.split(JOB["spec"]["entrypoint"])[1:]
    config = configure(*(word for word in words if not word.startswith("hydra.")))
    (profile,) = config.cluster.profiles
    head, *workers = (float(pod["containers"][0]["resources"]["limits"]["cpu"]) for pod in pods())
    assert {profile.num_cpus} == set(workers)
    assert head < profile.num_cpus


def test_the_token_is_a_file_that_only_the_head_mounts():
    head, *workers = pods()
    (container,) = head["containers"]
    (variable,) = container["env"]
    (mount,) = container["volumeMounts"]
    assert variable["name"] == "HF_TOKEN_PATH"
    assert variable["value"].startswith(mount["mountPath"])
    assert not any("env" in each for pod in workers for each in pod["containers"])
