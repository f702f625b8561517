import subprocess
import sys

import pytest
import torch

from ray_diloco.workload.eager import EagerAdamW
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings

ALONE = """
import sys
import torch
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.settings import InnerSettings

layer = torch.nn.Linear(3, 3)
optimizer = build_optimizer(layer, InnerSettings())
for _ in range(2):
    layer(torch.ones(2, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("fused", [True, False])
def test_it_is_torchs_adamw_to_the_last_bit(fused):
    models = [build_model(ModelSettings(name="mlp"), seed=0) for _ in range(2)]
    optimizers = [
        kind(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        for kind, model in zip((torch.optim.AdamW, EagerAdamW), models, strict=True)
    ]
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_scheduler_and_step_hooks_of_torch_work_with_it():
    layer = torch.nn.Linear(2, 2)
    optimizer = EagerAdamW(layer.parameters(), lr=1.0)
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    assert seen == [1]


@pytest.mark.slow
def test_a_process_that_trains_does_not_load_the_compiler():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
