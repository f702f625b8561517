"""Asynchronous DiLoCo training with nothing between the nodes but a Hugging Face repository.

The whole of the public interface, all of it optional beside the command line:

    result = ray_diloco.run(["experiment=quickstart", "engine=inproc"])
    result.eval_loss, result.numbers["tokens"], result.frame("evaluation")
    ray_diloco.sweep(["experiment=quickstart", "diloco.outer_lr=0.3,0.7"]).frame()
    ray_diloco.load_results("outputs/2026-11-29/22-47-39")

    with ray_diloco.join(model, optimizer, repo_id="me/run", node_id="laptop") as node:
        ...  # a training loop of one's own; `lead` is the master's side

`configure` gives the typed configuration that overrides lead to, `Config` is its class, and every
error that is raised on purpose is a `RayDilocoError`. Importing this package imports nothing else.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_diloco.cluster.joining import JoinedNode, join
    from ray_diloco.cluster.leading import Leader, lead
    from ray_diloco.errors import ConfigError, RayDilocoError
    from ray_diloco.experiment.api import configure, load_results, run
    from ray_diloco.experiment.result import Result
    from ray_diloco.experiment.schema import Config
    from ray_diloco.experiment.sweeping import Sweep, load_sweep, sweep
    from ray_diloco.hub.settings import HubSettings

__all__ = [
    "Config",
    "ConfigError",
    "HubSettings",
    "JoinedNode",
    "Leader",
    "RayDilocoError",
    "Result",
    "Sweep",
    "configure",
    "join",
    "lead",
    "load_results",
    "load_sweep",
    "run",
    "sweep",
]

_HOMES = {
    "Config": "ray_diloco.experiment.schema",
    "ConfigError": "ray_diloco.errors",
    "HubSettings": "ray_diloco.hub.settings",
    "JoinedNode": "ray_diloco.cluster.joining",
    "Leader": "ray_diloco.cluster.leading",
    "RayDilocoError": "ray_diloco.errors",
    "Result": "ray_diloco.experiment.result",
    "Sweep": "ray_diloco.experiment.sweeping",
    "configure": "ray_diloco.experiment.api",
    "join": "ray_diloco.cluster.joining",
    "lead": "ray_diloco.cluster.leading",
    "load_results": "ray_diloco.experiment.api",
    "load_sweep": "ray_diloco.experiment.sweeping",
    "run": "ray_diloco.experiment.api",
    "sweep": "ray_diloco.experiment.sweeping",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name == "__version__":
        return version("ray-diloco")
    if name not in _HOMES:
        raise AttributeError(f"module 'ray_diloco' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
