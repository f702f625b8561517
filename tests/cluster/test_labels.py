"""Label selectors mean what Ray means by them."""

import pytest

from ray_diloco.cluster.labels import fits_labels, require_conditions
from ray_diloco.errors import ConfigError


@pytest.mark.parametrize(
    ("condition", "fitting"),
    [
        ("a", {"a"}),
        ("!a", {"b", None}),
        ("in(a,b)", {"a", "b"}),
        ("in(a, c)", {"a"}),
        ("!in(a,b)", {None}),
    ],
)
def test_a_machine_without_the_label_has_no_value_of_it(condition, fitting):
    for value in ("a", "b", None):
        labels = {} if value is None else {"kind": value}
        assert fits_labels({"kind": condition}, labels) is (value in fitting)


def test_all_conditions_must_hold():
    assert fits_labels({}, {})
    assert fits_labels({"x": "1", "y": "!2"}, {"x": "1"})
    assert not fits_labels({"x": "1", "y": "!2"}, {"x": "1", "y": "2"})


@pytest.mark.parametrize("condition", ["", "!", "in()", "in(,)", "in(a", "a b", "not(a)", "!!a"])
def test_what_is_no_condition_is_refused(condition):
    with pytest.raises(ConfigError, match=r"label_selector=.*expected a value, !value"):
        require_conditions("cluster.profiles[0].label_selector", {"kind": condition})
