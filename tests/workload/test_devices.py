import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.devices import resolve_device


def test_auto_is_a_device_of_this_machine():
    torch.zeros(1, device=resolve_device("auto"))


def test_a_named_device_is_taken():
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", "cpu:x", ""])
def test_a_device_that_is_not_there_is_refused_with_its_setting(name):
    with pytest.raises(ConfigError) as caught:
        resolve_device(name, setting="cluster.nodes.a.device")
    assert caught.value.setting == "cluster.nodes.a.device"
