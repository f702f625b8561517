import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.settings import CODEC_NAMES, DilocoSettings
from ray_diloco.tensors.codec import CODECS


def test_the_settings_know_the_codecs_that_exist():
    assert set(CODEC_NAMES) == set(CODECS)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_every_codec_can_be_chosen_but_a_plain_peer_reads_only_fp32(name):
    DilocoSettings(codec=name).check()
    compatible = DilocoSettings(codec=name, compat=True)
    if name == "fp32":
        compatible.check()
        return
    with pytest.raises(ConfigError, match=r"diloco\.codec='\w+': expected fp32 .*compat=true"):
        compatible.check()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (DilocoSettings(codec="zip"), "diloco.codec"),
        (DilocoSettings(codec="int4", codec_decay=1.1), "diloco.codec_decay"),
        (DilocoSettings(codec="int4", codec_decay=-0.1), "diloco.codec_decay"),
        (DilocoSettings(codec_decay=0.5), "diloco.codec_decay"),
    ],
)
def test_a_codec_that_cannot_be_used_is_named(settings, named):
    with pytest.raises(ConfigError) as caught:
        settings.check()
    assert caught.value.setting == named
