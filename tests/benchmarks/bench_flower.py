"""Rounds per second of Flower's simulation (flwr 1.42.0), to set beside `bench_virtual.py rounds`:
the same gpt, 10 local steps of AdamW on one sequence of 16 bytes, all clients in each round, their
mean as the new global. By hand; Flower gets an environment of its own, which borrows torch:

python tests/benchmarks/bench_flower.py --environment flower-environment --nodes 8
python tests/benchmarks/bench_flower.py --environment flower-environment --nodes 64 --rounds 6
"""

import argparse
import itertools
import json
import os
import subprocess
import sysconfig
import time
import venv
from pathlib import Path

VERSION = "1.42.0"
STEPS, TOKENS = 10, 16


def environment(folder):
    """The interpreter of an environment that has Flower, made unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        flower = f"flwr[simulation]=={VERSION}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", flower], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    here = Path(__file__).resolve().parents[2]
    borrowed = [sysconfig.get_paths()["purelib"], str(here)]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python


def new_model():
    """That of bench_virtual.py."""
    from ray_diloco.workload.models import build_model
    from ray_diloco.workload.settings import ModelSettings

    settings = ModelSettings(layers=2, width=64, heads=4, kv_heads=4, hidden=256)
    return build_model(settings, seed=0)


def client_app():
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch.nn import functional

    app = ClientApp()

    @app.train()
    def train(message, _context):
        torch.set_num_threads(1)
        model = new_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for _ in range(STEPS):
            text = torch.randint(256, (1, TOKENS + 1))
            logits = model(text[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        told = MetricRecord({"num-examples": STEPS})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told})
        return Message(content=content, reply_to=message)

    return app


def simulate(nodes, rounds):
    """The seconds that each round took; the first one starts the clients' processes."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    app, ended = ServerApp(), []

    @app.main()
    def main(grid, _context):
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)

        def note(_round, _arrays):
            ended.append(time.perf_counter())
            return MetricRecord({"seen": 1})

        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(new_model().state_dict()),
            num_rounds=rounds,
            evaluate_fn=note,
        )

    run_simulation(server_app=app, client_app=client_app(), num_supernodes=nodes)
    return [after - before for before, after in itertools.pairwise(ended)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    if given.environment is not None:
        python = environment(given.environment)
        numbers = [f"--nodes={given.nodes}", f"--rounds={given.rounds}"]
        quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
        subprocess.run([str(python), __file__, *numbers], check=True, env=quiet)
        return
    first, *rest = simulate(given.nodes, given.rounds)
    found = {"rounds_per_second": len(rest) / sum(rest), "first_round_seconds": first}
    told = {"flwr": VERSION, "nodes": given.nodes, "rounds": given.rounds}
    print(json.dumps(told | found | {"load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
