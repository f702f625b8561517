import dataclasses
from pathlib import Path

import pytest

from ray_diloco.experiment.reference import (
    BEGIN,
    END,
    field_docs,
    reference,
    replace_between_markers,
)
from ray_diloco.experiment.schema import Config
from ray_diloco.timing.profile import NodeProfile

README = Path(__file__).parents[2] / "README.md"
GROUPS = [(field.name, field.default_factory) for field in dataclasses.fields(Config)]


@pytest.fixture(scope="module")
def text():
    return reference()


@pytest.mark.parametrize(("group", "settings"), GROUPS, ids=[name for name, _ in GROUPS])
def test_every_setting_is_in_the_reference_with_its_meaning(text, group, settings):
    for name, meaning in field_docs(settings).items():
        assert f"`{group}.{name}`" in text
        assert meaning, f"{group}.{name} has no docstring"


def test_every_setting_of_a_profile_is_in_the_reference(text):
    assert all(f"`cluster.profiles[i].{name}`" in text for name in field_docs(NodeProfile))


def test_the_readme_holds_the_present_reference(text):
    readme = README.read_text()
    assert readme == replace_between_markers(readme, text), (
        "write it anew: python -m ray_diloco.experiment.reference --write README.md"
    )


def test_the_text_around_the_markers_stays():
    old = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_between_markers(old, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="settings"):
        replace_between_markers("no markers", "new")
