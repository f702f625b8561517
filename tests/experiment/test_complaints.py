import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from ray_diloco.errors import ContentError, ForeignRunError, PermanentHubError
from ray_diloco.experiment.complaints import complaint, report
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("diloco.inner_step=3", "diloco.inner_step: no such setting; did you mean diloco.inner_"),
        ("clust=uniform", "clust: no such setting; did you mean cluster?"),
        ("outr=adam", "outr: no such setting; did you mean outer?"),
        ("experimet=quickstart", "experimet: no such setting; did you mean experiment?"),
        ("hydra/sweper=optuna", "did you mean hydra/sweeper?"),
        ("hydra.launcher.retris=2", "did you mean hydra.launcher.retries?"),
        ("+diloco.outr_lr=2", "did you mean diloco.outer_lr?"),
        ("~diloco.outr_lr", "diloco.outr_lr: no such setting; did you mean diloco.outer_lr?"),
        ("cluster=unifrm", "cluster=unifrm: expected one of"),
        ("cluster=unifrm", "did you mean uniform?"),
        (
            "hub.token=hf_abcdefghijklmnopqrstuvwx",
            "hub.token: a token is never part of a configuration",
        ),
        ("run.max_steps=[1", "run.max_steps=[1: cannot be read; expected brackets that close"),
        ("run.name=ü", "run.name=ü: cannot be read; expected brackets that close, and a value"),
        ("what", "'what': expected group=file"),
        ("quickstart", "or a flag; did you mean experiment=quickstart?"),
        ("diloco.nothing.like=it", "diloco.nothing.like: no such setting"),
    ],
)
def test_a_wrong_override_gets_one_line_that_names_it(override, line):
    with (
        initialize_config_dir(str(conf_dir()), version_base="1.3"),
        pytest.raises(Exception) as caught,  # noqa: PT011 - Hydra's own, of several kinds
    ):
        read_config(compose("config", [override]))
    told = complaint(caught.value)
    assert told is not None
    assert line in told[0]
    assert "\n" not in told[0]
    assert told[1] == 2


def test_trouble_with_the_hub_says_so_without_tokens():
    assert complaint(PermanentHubError("401 for hf_abcdefghijklmnopqrstuvwx")) == (
        "hub: 401 for hf_***",
        2,
    )


def test_wrong_use_and_wrong_content_have_different_codes():
    assert complaint(ForeignRunError("holds another run")) == ("holds another run", 2)
    assert complaint(ContentError("bad\nfile")) == ("bad file", 1)


def test_our_own_faults_are_no_complaints():
    assert complaint(ZeroDivisionError()) is None


def test_a_word_of_the_commands_own_is_proposed(capsys):
    error = ConfigCompositionException("Could not override 'node_di'.")
    assert report(error, program="ray-diloco-node", debug=False, own=("node_id",)) == 2
    told = "ray-diloco-node: node_di: no such setting; did you mean node_id?\n"
    assert capsys.readouterr().err == told
