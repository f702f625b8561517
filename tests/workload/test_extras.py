import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.workload.extras import needed


def test_a_package_that_is_not_there_names_the_extra_that_brings_it():
    with pytest.raises(ConfigError) as caught:
        needed("no_such_package", "data.name", "hf", extra="hf")
    assert str(caught.value) == (
        "data.name='hf': needs the package no_such_package: pip install 'ray-diloco[hf]'"
    )


def test_a_package_that_is_there_is_given():
    assert needed("json", "data.name", "hf", extra="hf").dumps(1) == "1"
