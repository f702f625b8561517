"""A node whose model is cut into fragments: when each is sent, and what of a global it takes."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ray_diloco.errors import ConfigError, GlobalError
from ray_diloco.node.actions import InstallGlobal, Job, StartPoll, StartUpload
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.standing import Standing
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.fragments import STRIDE
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.settings import DilocoSettings

START = Micros(0)


# -- the coordinator -------------------------------------------------------------------------------


def node(**settings) -> Coordinator:
    chosen = {"inner_steps": 4, "fragments": 2, "reset_inner_optimizer": False, **settings}
    return Coordinator(DilocoSettings(**chosen), node_id="n1", nonce="abc")


def version(outer_step: int, *changed_at: int) -> GlobalCard:
    return GlobalCard(outer_step=outer_step, publication_id="p", fragment_steps=changed_at)


def ready(**settings) -> Coordinator:
    """One that has the first global."""
    coordinator = node(**settings)
    coordinator.settle(now=START)
    coordinator.fetched(version(0, 0, 0))
    coordinator.settle(now=START)
    return coordinator


def train(coordinator: Coordinator, steps: int) -> list:
    actions = []
    for _ in range(steps):
        actions += coordinator.stepped(now=START, tokens=5, loss=1.0)
    return actions


def job_of(actions: list) -> Job:
    (found,) = [action.job for action in actions if isinstance(action, StartUpload)]
    return found


def installed(actions: list) -> InstallGlobal:
    (found,) = [action for action in actions if isinstance(action, InstallGlobal)]
    return found


def land(coordinator: Coordinator) -> None:
    coordinator.encoded(coordinator.local_step)
    coordinator.landed()


def test_each_boundary_sends_the_next_fragment_with_all_that_is_unsent_of_it():
    coordinator = ready()
    found = []
    for _ in range(4):
        job = job_of(train(coordinator, 2))
        found.append((job.fragment, str(job.work.steps), job.work.tokens))
        land(coordinator)
    assert found == [(1, "1-2", 4), (0, "1-4", 12), (1, "3-6", 8), (0, "5-8", 12)]


def test_a_boundary_that_finds_an_upload_under_way_leaves_its_fragment_for_the_next_turn():
    coordinator = ready()
    train(coordinator, 4)  # the one at step 4, of fragment 0, is skipped
    assert coordinator.tally.skipped_boundaries == 1
    land(coordinator)
    assert job_of(train(coordinator, 2)).fragment == 1
    land(coordinator)
    job = job_of(train(coordinator, 2))
    assert (job.fragment, str(job.work.steps)) == (0, "1-8")


def test_at_the_end_every_fragment_sends_its_rest():
    coordinator = ready()
    train(coordinator, 3)
    land(coordinator)
    rest = []
    while actions := coordinator.finish():
        job = job_of(actions)
        rest.append((job.fragment, str(job.work.steps), job.final))
        coordinator.encoded(10 + len(rest))
        coordinator.landed()
    assert rest == [(0, "1-3", True), (1, "3-3", True)]
    assert not coordinator.unsent


def test_a_last_delta_that_is_all_zero_is_not_tried_again():
    coordinator = ready()
    train(coordinator, 1)
    assert job_of(coordinator.finish()).fragment == 0
    coordinator.spoiled("zero")
    assert job_of(coordinator.finish()).fragment == 1
    land(coordinator)
    assert coordinator.finish() == []
    assert str(coordinator.unsent.steps) == "1-1"


def test_the_first_global_is_taken_whole_and_as_it_is():
    coordinator = node()
    coordinator.settle(now=START)
    coordinator.fetched(version(3, 3, 2))
    assert installed(coordinator.settle(now=START)).fragments is None


def test_of_a_later_global_only_what_changed_is_taken():
    coordinator = ready()
    coordinator.fetched(version(2, 0, 2))
    assert installed(coordinator.settle(now=START)).fragments == (1,)
    coordinator.fetched(version(5, 4, 5))
    assert installed(coordinator.settle(now=START)).fragments == (0, 1)
    coordinator.fetched(replace(version(5, 4, 5), master_epoch=1))
    assert installed(coordinator.settle(now=START)).fragments == ()


def test_after_weights_went_bad_everything_is_taken():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.spoiled("not finite")
    coordinator.fetched(version(2, 0, 2))
    action = installed(coordinator.settle(now=START))
    assert (action.policy, action.fragments) == ("replace", None)
    dropped = StepRanges(((1, 2), (STRIDE + 1, STRIDE + 2)))
    assert coordinator.tally.dropped == dropped


def test_a_part_of_a_global_repairs_no_weights_that_went_bad():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.spoiled("not finite")
    coordinator.fetched(version(2, 0, 2), whole=False)
    actions = coordinator.settle(now=START)
    assert [type(action) for action in actions] == [StartPoll]
    assert actions[0].anew
    coordinator.fetched(version(2, 0, 2))
    assert installed(coordinator.settle(now=START)).fragments is None


def test_nor_does_one_that_lay_ready_when_they_did():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.fetched(version(2, 0, 2), whole=False)
    coordinator.spoiled("not finite")
    assert coordinator.known == (0, 0)
    assert [type(action) for action in coordinator.settle(now=START)] == [StartPoll]


def test_what_is_unsent_of_each_fragment_survives_a_restart():
    coordinator = ready()
    train(coordinator, 3)
    coordinator.encoded(2)
    standing = Standing.from_plain(coordinator.standing().to_plain())
    again = node()
    again.resume(standing, now=START)
    assert again.standing() == coordinator.standing()
    assert again.job is not None
    assert (again.job.fragment, again.unsent.steps) == (1, coordinator.unsent.steps)


def test_behind_what_was_sent_every_fragment_loses_its_unsent_steps():
    coordinator = ready()
    train(coordinator, 2)
    land(coordinator)
    train(coordinator, 1)
    standing = coordinator.standing()
    again = node()
    again.resume_behind(standing, sent_up_to=5)
    assert again.local_step == 5
    assert again.tally.lost == StepRanges(((1, 5), (STRIDE + 3, STRIDE + 5)))


def test_a_checkpoint_of_another_number_of_fragments_is_refused():
    standing = ready().standing()
    with pytest.raises(ConfigError, match=r"diloco.fragments=4.*expected 2"):
        node(fragments=4).resume(standing, now=START)


# -- the tensors, by hand --------------------------------------------------------------------------


class Pair(nn.Module):
    """Two layers of one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
        self.set(10.0, 20.0)

    def set(self, first: float, second: float) -> None:
        with torch.no_grad():
            for layer, value in zip(self.layers, (first, second), strict=True):
                layer.weight.fill_(value)

    @property
    def numbers(self) -> list[float]:
        return [layer.weight.item() for layer in self.layers]


def incoming(first: float, second: float) -> dict[str, torch.Tensor]:
    model = Pair()
    model.set(first, second)
    return {name: value.clone() for name, value in model.state_dict().items()}


def sent(weights: Weights, path, fragment: int) -> dict[str, float]:
    weights.take_snapshot()
    weights.write(path, {"fragment": f"{fragment}/2"})
    return {name: value.item() for name, value in load_file(path).items()}


@pytest.mark.parametrize(
    ("alpha", "mixed", "later"), [(0.0, 19.0, -1.0), (0.5, 20.5, -2.5), (1.0, 22.0, -4.0)]
)
def test_a_fragment_goes_and_comes_back_as_computed_by_hand(tmp_path, alpha, mixed, later):
    """Fragment 1 is sent at 21 from 20, trained on to 22, and comes back as 18: the step since
    counts in full (18 + 1), and alpha of what it is (22) is kept of it.
    """
    model = Pair()
    weights = Weights(model, codec="fp32", mismatch="error", fragments=2, alpha=alpha)
    model.set(11.0, 21.0)
    assert sent(weights, tmp_path / "one", 1) == {"layers.1.weight": -1.0}
    model.set(12.0, 22.0)
    weights.advance(tmp_path / "one")
    weights.install(incoming(8.0, 18.0), "rebase", [1])
    assert model.numbers == [12.0, mixed]
    assert sent(weights, tmp_path / "two", 1) == {"layers.1.weight": later}
    assert sent(weights, tmp_path / "three", 0) == {"layers.0.weight": -2.0}


def test_a_global_over_a_fragment_on_its_way_counts_it_once(tmp_path):
    model = Pair()
    weights = Weights(model, codec="fp32", mismatch="error", fragments=2, alpha=0.0)
    model.set(11.0, 21.0)
    sent(weights, tmp_path / "one", 1)
    weights.install(incoming(9.0, 18.0), "rebase", [0, 1])  # has it not
    assert model.numbers == [10.0, 19.0]
    weights.advance(tmp_path / "one")
    weights.install(incoming(9.0, 17.0), "rebase", [1])  # has it
    assert model.numbers == [10.0, 17.0]


def test_a_file_with_one_fragment_is_held_against_its_part_of_the_model(tmp_path):
    weights = Weights(Pair(), codec="fp32", mismatch="error", fragments=2)
    save_file({"layers.1.weight": torch.tensor([[7.0]])}, tmp_path / "part")
    found = weights.check(tmp_path / "part", 1)
    assert {name: value.item() for name, value in found.items()} == {"layers.1.weight": 7.0}
    for fragment in (0, None):
        with pytest.raises(GlobalError, match=r"layers.0.weight is missing"):
            weights.check(tmp_path / "part", fragment)


def test_the_first_global_is_not_mixed_with_what_the_model_began_with():
    model = Pair()
    weights = Weights(model, codec="fp32", mismatch="error", fragments=2, alpha=0.5)
    weights.install(incoming(1.0, 2.0), "rebase")
    assert model.numbers == [1.0, 2.0]
