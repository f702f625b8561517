"""A node in a training loop of the user's own: no Ray, no configuration files."""

import logging
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ray_diloco.cluster.hub_service import HubAccess, enter_hub
from ray_diloco.errors import ConfigError
from ray_diloco.hub.connect import connect
from ray_diloco.hub.limits import policy_of
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubKind, HubSettings
from ray_diloco.node.account import Origin
from ray_diloco.node.checkpoint import CheckpointShelf, Keeping
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.locking import sole_use
from ray_diloco.node.node import Node
from ray_diloco.node.own_loop import OwnLoop, Stateful
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.kinds import check_kind, check_kinds
from ray_diloco.protocol.paths import NODE_ID_RULE, is_node_id
from ray_diloco.protocol.run import NodeReport, RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.terms import OUT_OF_TURN
from ray_diloco.timing.wall import WallPort

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2


class JoinedNode:
    """A node whose steps are taken by the caller. A context manager: leaving it sends what is
    unsent and says goodbye; an error in it gives the node's name back.
    """

    def __init__(self, node: Node, loop: OwnLoop, life: ExitStack) -> None:
        self._node = node
        self._loop = loop
        self._life = life
        self._hooked: Any = None
        self.report: NodeReport | None = None
        """What the node did; None before it has left."""

    def step(self, loss: float | torch.Tensor | None = None, tokens: int = 0) -> bool:
        """Call after each ``optimizer.step()`` that changed the weights, last of all that belongs
        to the step, the learning-rate schedule included: a checkpoint is taken here, and the
        weights may change. Gives whether to go on training.

        ``loss``: of this step, mean over its tokens, told to the others; ``tokens``: what it saw.
        NodeInUseError when another process has taken over the name; errors of the hub that waiting
        does not mend.
        """
        number = loss.item() if isinstance(loss, torch.Tensor) else loss
        self._loop.note(loss=number, tokens=tokens)
        self._node.after_step(self._node.step())
        return not self.over

    def hooked(self, tokens_per_step: int = 0) -> "JoinedNode":
        """Let every ``optimizer.step()`` be followed by `step`, for a loop that cannot be changed.
        Ask `over` whether to go on. Gives the node itself.
        """

        def after(*_: Any) -> None:
            self.step(tokens=tokens_per_step)

        if self._hooked is None:
            self._hooked = self._loop.optimizer.register_step_post_hook(after)
        return self

    @property
    def over(self) -> bool:
        """The run has ended, or `stop` was called: take no further step."""
        return self._node.reason_to_stop() is not None

    @property
    def local_step(self) -> int:
        """Steps of this training so far; above 0 from the start when a checkpoint was taken up."""
        return self._loop.local_step

    @property
    def outer_step(self) -> int:
        """Of the global that the weights go back to."""
        return self._node.status().base_outer_step

    def stop(self, reason: str = "asked to") -> None:
        """From any thread: `over` becomes true, and `step` gives False."""
        self._node.stop(reason)

    def leave(self) -> NodeReport:
        """Send what is unsent, within ``stop_timeout``, and say goodbye. Leaving twice is
        allowed.
        """
        if self.report is None:
            self._unhook()
            with self._life.pop_all():
                self.report = self._node.end("the loop has ended")
        return self.report

    def __enter__(self) -> "JoinedNode":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._unhook()
        if error is None or isinstance(error, KeyboardInterrupt):
            self.leave()
        elif self.report is None:
            self._life.pop_all().__exit__(kind, error, trace)

    def _unhook(self) -> None:
        if self._hooked is not None:
            self._hooked.remove()
            self._hooked = None


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    repo_id: str,
    node_id: str,
    inner_steps: int = 500,
    parts: Mapping[str, Stateful] | None = None,
    state_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    takeover: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    hub: HubSettings | None = None,
    **diloco: Any,
) -> JoinedNode:
    """Join the run in ``repo_id`` as the node ``node_id``, and wait for its global; gives the node
    with the global in ``model``.

    ``parts``: what else a checkpoint holds besides model and optimizer, by name: a schedule, a
    scaler, a data loader. ``state_dir``: where checkpoints and files under way are
    (``.ray_diloco/<repo_id>/<node_id>`` when None); a checkpoint that is there is gone on from.
    ``checkpoint_every``: local steps between two checkpoints, beside the one at each boundary.
    ``takeover``: train under the name although another process seems to. ``endpoint``: of a hub of
    one's own, such as `ray-diloco-hub` serves; huggingface.co when None. ``token``: HF_TOKEN or the
    Hub's own login when None. ``hub``: its timeouts, branch and budget, such as
    ``HubSettings(commits_per_hour=1000)``. ``diloco``: any other
    setting of that group, such as ``install="boundary"`` or ``poll_interval=30.0``.

    ConfigError for what cannot be used, NodeInUseError for a name that is, PermanentHubError for a
    hub that does not let one in, TrainingError when no global came within ``bootstrap_timeout``.
    """
    require_module(model)
    check_kind("repo_id", repo_id, str)
    check_kind("node_id", node_id, str)
    if not is_node_id(node_id):
        raise ConfigError("node_id", node_id, NODE_ID_RULE)
    check_kind("checkpoint_every", checkpoint_every, int | None)
    settings = exchange_settings(inner_steps=inner_steps, **diloco)
    hub = hub_settings(hub, endpoint)
    loop = OwnLoop(model, optimizer, parts)
    access = enter_hub(hub, repo_id=repo_id, token=Secret(token) if token else None, leads=False)
    folder = own_folder(state_dir, access.repo_id, node_id)
    with ExitStack() as life:
        life.enter_context(sole_use(folder, node_id=node_id))
        node = _build(
            loop,
            node_id=node_id,
            settings=settings,
            hub=hub,
            access=access,
            folder=folder,
            every_steps=checkpoint_every,
            takeover=takeover,
        )
        life.enter_context(node.living())
        node.begin()
        if (reason := node.reason_to_stop()) is not None:
            logger.warning("%s: the run in %s is over: %s", node_id, access.repo_id, reason)
        return JoinedNode(node, loop, life.pop_all())


def exchange_settings(**chosen: Any) -> DilocoSettings:
    """The group ``diloco`` with these settings. ConfigError for an unknown name, which tells the
    nearest, or a value that cannot be used.
    """
    known = [field.name for field in fields(DilocoSettings)]
    for name, value in chosen.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(name, value, f"expected a setting of the group diloco{hint}")
    settings = DilocoSettings(**chosen)
    check_kinds("diloco", settings)
    settings.check()
    return settings


def require_module(model: Any) -> None:
    """ConfigError for anything but a module that was made."""
    if not isinstance(model, nn.Module):
        raise ConfigError("model", repr(model), "expected a torch.nn.Module")


def hub_settings(hub: HubSettings | None, endpoint: str | None) -> HubSettings:
    """huggingface.co (or what HF_ENDPOINT names), whose commits are counted, or a hub of one's own;
    with what else was given. ConfigError for a hub that others cannot reach.
    """
    hub = hub if hub is not None else HubSettings()
    if not isinstance(hub, HubSettings):
        raise ConfigError("hub", hub, "expected HubSettings")
    check_kinds("hub", hub)
    if hub.kind is HubKind.memory:
        raise ConfigError("hub.kind", hub.kind.value, "expected huggingface, or an endpoint")
    endpoint = endpoint or hub.endpoint
    kind = HubKind.huggingface if endpoint is None else hub.kind
    hub = replace(hub, kind=kind, endpoint=endpoint)
    hub.check()
    return hub


def own_folder(chosen: str | Path | None, repo_id: str, participant: str) -> Path:
    """Where a participant without a run folder keeps what it goes on from; it is there then."""
    usual = Path(".ray_diloco") / repo_id.replace("/", "--") / participant
    folder = (Path(chosen).expanduser() if chosen is not None else usual).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError("state_dir", str(folder), f"expected a folder: {error}") from None
    return folder


def _build(
    loop: OwnLoop,
    *,
    node_id: str,
    settings: DilocoSettings,
    hub: HubSettings,
    access: HubAccess,
    folder: Path,
    every_steps: int | None,
    takeover: bool,
) -> Node:
    port = WallPort()
    nonce = secrets.token_hex(8)
    repository = connect(hub, repo_id=access.repo_id, endpoint=access.endpoint, token=access.token)
    weights = Weights(
        loop.model,
        codec=settings.codec,
        codec_decay=settings.codec_decay,
        mismatch=settings.install_mismatch,
        fragments=settings.fragments,
        alpha=settings.fragment_mix,
    )
    shelf = CheckpointShelf(folder / "checkpoints", keep=CHECKPOINTS_KEPT)
    kept = shelf.newest(node_id=node_id, run_id="")
    if kept is not None and kept.facts.schema != weights.schema.fingerprint:
        expected = "expected the model that the checkpoint there was made of, or another folder"
        raise ConfigError("state_dir", str(folder), expected)
    return Node(
        origin=Origin(node_id=node_id, nonce=nonce),
        settings=settings,
        limits=RunLimits(),
        trainer=loop,
        weights=weights,
        exchange=Exchange(
            node_id=node_id,
            nonce=nonce,
            run_id="",
            inner_steps=settings.inner_steps,
            repository=repository,
            weights=weights,
            retry=Retry(policy_of(hub), seeded(0, nonce, "retry"), port, who=node_id),
            clock=port,
            state_dir=folder,
            node_timeout=settings.node_timeout,
            commits_per_hour=hub.budget,
        ),
        repository=repository,
        port=port,
        record=_log(node_id),
        takeover=takeover,
        keeping=Keeping(shelf=shelf, every_steps=every_steps, kept=kept),
        resume=kept is not None,
    )


def _log(node_id: str) -> Any:
    held_back = False

    def record(event: str, **fields: Any) -> None:
        nonlocal held_back
        if not held_back and event == "boundary_skipped" and fields["reason"] == OUT_OF_TURN:
            held_back = True
            logger.warning(
                "%s: the commit budget holds deltas back, whose steps go out with a later one; "
                "take more inner_steps, or on a hub of your own raise commits_per_hour",
                node_id,
            )
        logger.debug("%s: %s %s", node_id, event, fields)

    return record
