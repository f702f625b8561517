import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.settings import DilocoSettings

INFINITE = float("inf")
NOT_A_NUMBER = float("nan")


def test_the_defaults_are_those_of_the_plain_protocol():
    settings = DilocoSettings()
    settings.check()
    assert (settings.inner_steps, settings.outer_lr, settings.outer_momentum) == (500, 0.7, 0.9)
    assert settings.poll_interval == 60.0


@pytest.mark.parametrize(
    "good",
    [
        DilocoSettings(inner_steps=1, max_bad_deltas=1),
        DilocoSettings(outer_momentum=0.0),
        DilocoSettings(install="boundary"),
        DilocoSettings(install="replace", install_mismatch="ignore"),
        DilocoSettings(max_delta_norm=1e-9, max_relative_norm=INFINITE),
        DilocoSettings(max_staleness=0, keep_merged=0, max_deltas_per_round=1, outer_state_every=1),
        DilocoSettings(poll_interval=10.0, lease_seconds=30.0),
    ],
)
def test_settings_at_their_limits_are_accepted(good: DilocoSettings):
    good.check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inner_steps", 0),
        ("inner_steps", -5),
        ("max_bad_deltas", 0),
        ("max_deltas_per_round", 0),
        ("outer_state_every", 0),
        ("max_staleness", -1),
        ("keep_merged", -1),
        *[("lease_seconds", value) for value in (0.0, 179.0, INFINITE, NOT_A_NUMBER)],
        *[
            (name, value)
            for name in ("poll_interval", "bootstrap_timeout", "stop_timeout", "node_timeout")
            for value in (0.0, -1.0, INFINITE, NOT_A_NUMBER)
        ],
        *[("outer_lr", value) for value in (0.0, -0.7, INFINITE, NOT_A_NUMBER)],
        *[("outer_momentum", value) for value in (-0.1, 1.0, NOT_A_NUMBER)],
        ("install", "merge"),
        ("install_mismatch", "guess"),
        *[("max_delta_norm", value) for value in (0.0, -1.0, NOT_A_NUMBER)],
        *[("max_relative_norm", value) for value in (0.0, -1.0, NOT_A_NUMBER)],
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(name: str, value: object):
    settings = DilocoSettings(**{name: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError) as caught:
        settings.check()
    assert caught.value.setting == f"diloco.{name}"
    assert f"diloco.{name}={value!r}: expected" in str(caught.value)
