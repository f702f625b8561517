import math

import pytest
import torch
from torch import nn

from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings


class Constant(nn.Module):
    """Returns its only sample as the loss."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(x).sum()


def test_an_untrained_model_is_about_as_wrong_as_a_guess():
    batches = [torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))]
    loss = evaluate(build_model(ModelSettings(), seed=0), batches)
    assert loss == pytest.approx(math.log(256), rel=0.05)


def test_batches_are_weighted_by_their_tokens():
    batches = [
        (torch.tensor([1.0]), torch.zeros(1, dtype=torch.int64)),
        (torch.tensor([5.0]), torch.zeros(3, dtype=torch.int64)),
    ]
    assert evaluate(Constant(), batches) == (1 * 1 + 5 * 3) / 4


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_put_back(training):
    model = Constant().train(training)
    evaluate(model, [(torch.ones(1), torch.zeros(1, dtype=torch.int64))])
    assert model.training is training
    assert model.dropout.training is training


def test_no_batch_gives_no_number():
    assert math.isnan(evaluate(Constant(), []))
