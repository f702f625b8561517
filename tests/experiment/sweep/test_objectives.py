import json

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.run import run
from ray_diloco.experiment.sweep.objectives import NUMBERS, OTHER_NAMES, objective_of


def test_every_number_of_a_result_but_its_seed_can_be_an_objective(small, tmp_path):
    run(small("run.max_steps=4", "diloco.inner_steps=2", "run.report=false"), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    numbers = {name for name, value in result.items() if type(value) in (int, float)}
    assert numbers - {"seed"} == set(NUMBERS)
    assert set(OTHER_NAMES.values()) <= set(NUMBERS)


def test_the_seconds_of_the_run_have_a_second_name():
    assert objective_of("search.objectives", "virtual_seconds") == "run_seconds"
    assert objective_of("sweep.objective", "loss") == "eval_loss"
    assert objective_of("sweep.objective", "bytes_up") == "bytes_up"


@pytest.mark.parametrize(
    ("name", "told"),
    [("virtul_seconds", "did you mean virtual_seconds?"), ("beauty", "one of eval_loss, ")],
)
def test_what_results_do_not_have_is_refused_with_what_they_have(name, told):
    with pytest.raises(ConfigError, match=r"search\.objectives=") as caught:
        objective_of("search.objectives", name)
    assert told in str(caught.value)
