import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.targets import accepted_names, call_target, find_target


def scaled(value, *, factor=1, seed=0):
    return value * factor + seed


def open_ended(seed, **rest):
    return seed, rest


def test_a_target_under_an_allowed_module_is_found():
    assert find_target("model.custom._target_", "torch.nn.Linear", ["torch.nn"]) is torch.nn.Linear


@pytest.mark.parametrize(
    "target", ["torch.load", "os.system", "torch.nnx.Linear", "subprocess.Popen"]
)
def test_a_target_outside_the_allowed_modules_is_refused_with_the_setting_that_extends_them(target):
    with pytest.raises(ConfigError, match=r"model\.allow_targets"):
        find_target("model.custom._target_", target, ["torch.nn"])


@pytest.mark.parametrize(
    "target", ["torch.nn.modules.module.warnings.warn", "torch.nn.functional.importlib.reload"]
)
def test_nothing_is_reached_through_a_module_that_imports_it(target):
    with pytest.raises(ConfigError):
        find_target("model.custom._target_", target, ["torch.nn"])


def test_a_function_that_an_allowed_module_only_imports_is_refused():
    with pytest.raises(ConfigError, match="not under an allowed module"):
        find_target("data.custom._target_", "textwrap.re.sub", ["textwrap"])


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="has no 'Linar'"):
        find_target("model.custom._target_", "torch.nn.Linar", ["torch.nn"])


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        find_target("model.custom._target_", "nowhere.Linear", ["nowhere"])


def test_a_class_method_can_be_a_target():
    target = find_target(
        "model.custom._target_", "torch.nn.Embedding.from_pretrained", ["torch.nn"]
    )
    assert target == torch.nn.Embedding.from_pretrained


def test_a_target_that_is_a_module_is_refused():
    with pytest.raises(ConfigError, match="class or a function"):
        find_target("model.custom._target_", "torch.nn.functional", ["torch.nn"])


def test_own_arguments_win_over_offered_ones_and_unknown_offers_are_left_out():
    custom = {"_target_": f"{__name__}.scaled", "factor": 3}
    given = call_target("data.custom", custom, [__name__], 2, factor=5, seed=1, nodes=4)
    assert given == 2 * 3 + 1


def test_arguments_that_do_not_fit_are_refused_before_the_call():
    custom = {"_target_": f"{__name__}.scaled", "factr": 3}
    with pytest.raises(ConfigError, match="factr"):
        call_target("data.custom", custom, [__name__], 2)


def test_open_keyword_arguments_take_no_offer():
    assert accepted_names(open_ended, ("seed", "nodes")) == ("seed",)
