"""Rounds over files by every outer rule, against whole tensors in float64."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.outer_optimizer import OuterOptimizer, Turn, buffer_names, outer_step
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.round_files import Round, aggregate_and_step, restate, write_first_global
from ray_diloco.master.validation import NormLimits
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema

NUMBERS = 66_000
"""Two pieces."""
STATISTIC = "bn.running_mean"


@dataclass
class Scene:
    """One master's files, round after round, under some settings."""

    folder: Path
    settings: DilocoSettings
    nodes: int = 4
    outer_step: int = 0
    drawn: int = 0
    values: list[torch.Tensor] = field(default_factory=list)
    """Every delta's numbers, in float64."""

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.start = torch.randn(NUMBERS, generator=self.generator)
        state = {"w": self.start, STATISTIC: torch.zeros(2)}
        self.schema = StateSchema.of_state(state, statistics=[STATISTIC])
        self.optimizer = OuterOptimizer.of(self.settings, nodes=self.nodes)
        written = write_first_global(
            state,
            schema=self.schema,
            optimizer=self.optimizer,
            folder=self.folder / "first",
            model_metadata={},
            state_metadata={},
        )
        self.files = GlobalFiles(model=written.model.path, state=written.state.path, outer_step=0)

    def delta(self, *, scale: float = 1.0, age: int = 0, mean: float = 0.0, **fields):
        self.drawn += 1
        values = torch.randn(NUMBERS, generator=self.generator) * scale
        self.values.append(values.double())
        node, step = f"n{self.drawn:03}", 10
        card = DeltaCard(
            node_id=node,
            local_step=step,
            base_outer_step=self.outer_step - age,
            nonce="x",
            **fields,
        )
        file = self.folder / f"{node}.safetensors"
        tensors = {"w": values, STATISTIC: torch.full((2,), -mean)}
        save_file(tensors, file, metadata=card.header())
        return FetchedDelta(path=f"nodes/{node}/delta_{step}.safetensors", file=file, card=card)

    def round(self, *deltas: FetchedDelta) -> Round:
        done = aggregate_and_step(
            deltas,
            previous=self.files,
            schema=self.schema,
            optimizer=self.optimizer,
            limits=NormLimits(),
            folder=self.folder / str(self.outer_step),
            model_metadata={},
            describe_state=lambda _: {},
            settings=self.settings,
            nodes=self.nodes,
        )
        assert done.publication is not None
        self.outer_step += 1
        self.files = GlobalFiles(
            model=done.publication.model.path,
            state=done.publication.state.path,
            outer_step=self.outer_step,
        )
        return done

    @property
    def model(self) -> torch.Tensor:
        return load_file(self.files.model)["w"].double()

    @property
    def moved(self) -> torch.Tensor:
        """By what the round's deltas came to, when the outer step takes it as it is."""
        return self.start.double() - self.model

    @property
    def statistics(self) -> float:
        return load_file(self.files.model)[STATISTIC][0].item()


@pytest.fixture
def scene(tmp_path):
    def make(**settings) -> Scene:
        plain = {"outer": "sgd", "outer_momentum": 0.0, "outer_lr": 1.0}
        chosen = DilocoSettings(**plain | settings)
        chosen.check()
        return Scene(tmp_path, chosen)

    return make


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(((found - wanted).norm() / wanted.norm()) < 1e-6)


def stepped(scene: Scene, gradients, weights=None) -> torch.Tensor:
    """The pure rule over whole tensors in float64."""
    parameter = scene.start.double()
    buffers = {name: torch.zeros_like(parameter) for name in buffer_names(scene.optimizer)}
    turn = Turn()
    for gradient, weight in zip(gradients, weights or [1.0] * len(gradients), strict=True):
        turn = turn.left(scene.optimizer).next(weight)
        outer_step(scene.optimizer, parameter, gradient, buffers, turn)
    return parameter


def test_delayed_nesterov_takes_the_deltas_of_rounds_one_by_one(scene):
    played = scene(
        outer="delayed_nesterov", outer_lr=0.7, outer_momentum=0.9, outer_arrivals=3, outer_c=0.2
    )
    for count in (1, 2, 5, 1):
        played.round(*(played.delta() for _ in range(count)))
    assert close(played.model, stepped(played, played.values))
    played.round(played.delta())
    assert Turn.from_strings(played.files.state_metadata()).count == 1


def test_buffered_collects_over_rounds_and_steps_within_them(scene):
    rule = {"weighting": "tokens", "staleness": "poly", "outer_momentum": 0.9}
    played = scene(outer="buffered", outer_lr=0.7, outer_arrivals=3, **rule)
    shares, tokens = [], []
    for count in (1, 1, 4, 1):
        deltas = []
        for place in range(count):
            age = min(place, played.outer_step)
            tokens.append(10.0 + 7 * len(tokens))
            shares.append(tokens[-1] / math.sqrt(1 + age))
            deltas.append(played.delta(age=age, tokens=int(tokens[-1])))
        played.round(*deltas)
    weighted = [share * each for share, each in zip(shares, played.values, strict=True)]
    assert close(played.model, stepped(played, weighted, tokens))


def test_a_round_that_only_fills_the_buffer_leaves_the_weights(scene):
    played = scene(outer="buffered", outer_arrivals=2)
    played.round(played.delta())
    assert torch.equal(played.model, played.start.double())
    assert played.outer_step == 1


def test_adam_steps_once_a_round_on_the_mean(scene):
    played = scene(outer="adam", outer_lr=0.3, outer_momentum=0.8, outer_beta2=0.95)
    theirs = torch.nn.Parameter(played.start.double())
    adam = torch.optim.Adam([theirs], lr=0.3, betas=(0.8, 0.95), eps=0.1)
    for count in (1, 3, 2):
        played.round(*(played.delta() for _ in range(count)))
        theirs.grad = torch.stack(played.values[-count:]).mean(dim=0)
        adam.step()
    assert close(played.model, theirs.detach())


def test_tokens_weigh_the_mean(scene):
    played = scene(weighting="tokens")
    played.round(*(played.delta(tokens=tokens) for tokens in (10, 20, 50)))
    a, b, c = played.values
    assert close(played.moved, (10 * a + 20 * b + 50 * c) / 80)


def test_stale_deltas_count_less(scene):
    played = scene(staleness="poly", staleness_exponent=1.0)
    played.outer_step = 5
    played.files = GlobalFiles(model=played.files.model, state=played.files.state, outer_step=5)
    played.round(played.delta(), played.delta(age=3))
    a, b = played.values
    assert close(played.moved, (a + b / 4) / 2)


def test_the_sum_divided_by_the_nodes(scene):
    played = scene(divide="nodes")
    played.round(played.delta())
    assert close(played.moved, played.values[0] / 4)


def test_robust_averages_are_divided_by_the_nodes_too(scene):
    played = scene(divide="nodes", aggregation="median")
    played.round(*(played.delta() for _ in range(3)))
    middle = torch.stack(played.values).median(dim=0).values
    assert close(played.moved, middle * 3 / 4)


def robust_round(played: Scene) -> np.ndarray:
    """Five deltas, the last one of them long; gives their numbers."""
    played.round(*(played.delta(scale=5.0 if place == 4 else 1.0) for place in range(5)))
    return torch.stack(played.values).numpy()


def test_a_round_by_its_median(scene):
    played = scene(aggregation="median")
    rows = robust_round(played)
    assert close(played.moved, torch.tensor(np.median(rows, axis=0)))


def test_a_round_by_its_trimmed_mean(scene):
    played = scene(aggregation="trimmed_mean", trim_share=0.4)
    rows = robust_round(played)
    assert close(played.moved, torch.tensor(np.sort(rows, axis=0)[2]))


def test_a_round_by_krum(scene):
    played = scene(aggregation="krum")
    rows = robust_round(played)
    distances = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    scores = np.sort(distances, axis=1)[:, 1:3].sum(axis=1)
    assert close(played.moved, torch.tensor(rows[np.argmin(scores)]))


def test_a_round_by_norm_clip(scene):
    played = scene(aggregation="norm_clip", weighting="tokens")
    rows = robust_round(played)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    wanted = (rows * np.minimum(1, np.median(norms) / norms)).mean(axis=0)
    assert close(played.moved, torch.tensor(wanted))


def test_a_round_by_centered_clip(scene):
    played = scene(aggregation="centered_clip", clip_radius=120.0, clip_iterations=3)
    rows = robust_round(played)
    centre = np.zeros(NUMBERS)
    for _ in range(3):
        away = rows - centre
        lengths = np.linalg.norm(away, axis=1, keepdims=True)
        centre = centre + (away * np.minimum(1, 120 / lengths)).mean(axis=0)
    assert close(played.moved, torch.tensor(centre))


@pytest.mark.parametrize(
    "rule", ["mean", "median", "trimmed_mean", "krum", "centered_clip", "norm_clip"]
)
def test_norms_are_those_of_the_deltas_whatever_the_rule(scene, rule):
    played = scene(aggregation=rule)
    done = played.round(*(played.delta(scale=place + 1.0) for place in range(5)))
    assert done.merge.norms == pytest.approx([float(v.norm()) for v in played.values], rel=1e-6)
    assert done.merge.aggregation == rule


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "centered_clip", "norm_clip"])
def test_of_too_few_deltas_a_round_takes_the_mean_and_says_so(scene, rule):
    played = scene(aggregation=rule)
    done = played.round(played.delta(), played.delta())
    assert done.merge.aggregation == "mean"
    assert close(played.moved, torch.stack(played.values).mean(dim=0))


@pytest.mark.parametrize("rule", ["median", "krum", "centered_clip", "norm_clip"])
def test_a_delta_that_is_not_finite_is_refused_by_every_rule(scene, rule):
    played = scene(aggregation=rule)
    bad = played.delta(scale=math.nan)
    done = played.round(bad, *(played.delta() for _ in range(5)))
    assert [delta.path for delta, _ in done.merge.rejected] == [bad.path]
    assert done.merge.aggregation == rule
    assert torch.isfinite(played.model).all()


@pytest.mark.parametrize(
    ("rule", "value"), [("mean", 13.0), ("median", 2.0), ("trimmed_mean", 5 / 3), ("krum", 0.0)]
)
def test_statistics_follow_the_rule_as_far_as_it_says_anything_of_them(scene, rule, value):
    played = scene(aggregation=rule)
    told = [(1.0, 1.0), (1.0, 2.0), (0.01, 0.0), (1.0, 2.0), (1.0, 60.0)]
    played.round(*(played.delta(scale=scale, mean=mean) for scale, mean in told))
    assert played.statistics == pytest.approx(value)


@pytest.mark.parametrize("outer", ["delayed_nesterov", "buffered", "adam"])
def test_a_state_that_is_written_again_goes_on_counting(scene, outer):
    played = scene(outer=outer, outer_momentum=0.9)
    played.round(played.delta(), played.delta(), played.delta())
    before = Turn.from_strings(played.files.state_metadata())
    written = restate(
        played.files, schema=played.schema, folder=played.folder / "again", metadata={"a": "b"}
    )
    assert before.count == (1 if outer == "adam" else 3)
    again = GlobalFiles(model=played.files.model, state=written.path, outer_step=1)
    assert Turn.from_strings(again.state_metadata()) == before
    assert again.state_metadata()["a"] == "b"
