import dataclasses

import pytest
from omegaconf import OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.workload.fitting import check_vocabulary, check_workload
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings

_INNER = {"schedule_steps": 100}


@pytest.mark.parametrize("settings", [ModelSettings, DataSettings, InnerSettings])
def test_every_group_serves_as_a_structured_configuration(settings):
    plain = OmegaConf.to_container(OmegaConf.structured(settings))
    assert settings(**plain) == settings()
    assert plain == dataclasses.asdict(settings())


def test_the_defaults_can_be_used_once_the_length_of_the_schedule_is_known():
    check_workload(ModelSettings(), DataSettings(), InnerSettings(**_INNER))


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        (ModelSettings(name="rnn"), "model.name"),
        (ModelSettings(size="huge"), "model.size"),
        (ModelSettings(dtype="float16"), "model.dtype"),
        (ModelSettings(layers=0), "model.layers"),
        (ModelSettings(name="custom"), "model.custom._target_"),
        (DataSettings(name="internet"), "data.name"),
        (DataSettings(shard="random"), "data.shard"),
        (DataSettings(batch_size=0), "data.batch_size"),
        (DataSettings(name="text"), "data.files"),
        (DataSettings(held_out_fraction=1.0), "data.held_out_fraction"),
        (DataSettings(dirichlet_alpha=0.0), "data.dirichlet_alpha"),
        (DataSettings(name="custom", custom={"width": 3}), "data.custom._target_"),
        (DataSettings(name="hf"), "data.dataset"),
        (DataSettings(name="hf", dataset="d", shard="group"), "data.shard"),
        (ModelSettings(name="hf"), "model.source"),
        (ModelSettings(name="hf", pretrained=True, config={"model_type": "a"}), "model.source"),
        (InnerSettings(), "inner.schedule_steps"),
        (InnerSettings(schedule_steps=20, warmup_steps=20), "inner.schedule_steps"),
        (InnerSettings(learning_rate=float("nan"), **_INNER), "inner.learning_rate"),
        (InnerSettings(beta2=1.0, **_INNER), "inner.beta2"),
        (InnerSettings(clip_norm=0.0, **_INNER), "inner.clip_norm"),
        (InnerSettings(precision="int8", **_INNER), "inner.precision"),
        (InnerSettings(accumulation=0, **_INNER), "inner.accumulation"),
        (InnerSettings(weight_decay=-1.0, **_INNER), "inner.weight_decay"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings, setting):
    with pytest.raises(ConfigError) as caught:
        settings.check()
    assert caught.value.setting == setting


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ConfigError, match=r"data\.sequence_length"):
        check_workload(
            ModelSettings(context=64), DataSettings(sequence_length=65), InnerSettings(**_INNER)
        )


def test_a_vocabulary_smaller_than_a_byte_is_refused_for_text():
    with pytest.raises(ConfigError, match=r"model\.vocabulary"):
        check_workload(ModelSettings(vocabulary=255), DataSettings(), InnerSettings(**_INNER))


@pytest.mark.parametrize(("model", "data"), [("gpt", "digits"), ("cnn", "stdlib"), ("cnn", "hf")])
def test_a_model_of_another_kind_of_data_is_refused(model, data):
    settings = DataSettings(name=data, dataset="d")
    with pytest.raises(ConfigError, match=r"model\.name='\w+': expected \w+ or .* with data="):
        check_workload(ModelSettings(name=model), settings, InnerSettings(**_INNER))


def test_a_tokenizer_of_more_words_than_the_model_has_is_refused():
    with pytest.raises(ConfigError, match="expected at least 1000, the token ids of data=hf"):
        check_vocabulary(ModelSettings(vocabulary=999), 1000, data="hf")
    check_vocabulary(ModelSettings(vocabulary=1000), 1000, data="hf")
    check_vocabulary(ModelSettings(), None, data="custom")
