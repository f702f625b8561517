"""Which run this is, when it ends, and what its participants report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
"""One line of events.jsonl: `event`, `participant`, `at` (the run's time in microseconds), and
fields.
"""

Recorder = Callable[..., None]
"""``record(event, **fields)``: keeps one event with the participant's id and the run's time.
JSON values only.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What all participants of a run share. ``config_hash``: of the settings that must not
    change on resume.
    """

    run_id: str
    config_hash: str
    seed: int
    since: int = 0
    """The run's time at which it goes on, in microseconds; 0 for one that begins."""
    published: bool = False
    """A global of it is out, which its repository must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The first to come ends the run; None: no limit."""

    max_steps: int | None = None
    """Local steps of each node."""
    max_seconds: float | None = None
    """Of the run's time."""
    max_tokens: int | None = None
    """Of all nodes together, as the master has merged them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What a node says of itself while it runs. ``base_outer_step`` is -1 before its first
    global.
    """

    node_id: str
    nonce: str = ""
    """Of the incarnation that goes on."""
    state: str = "starting"
    """starting, waiting for its name, waiting, training, stopping, restarting, done or failed."""
    local_step: int = 0
    tokens: int = 0
    loss: float | None = None
    """Mean training loss since the last boundary, nats per token."""
    base_outer_step: int = -1
    deltas_rejected: int = 0
    """By the master, as far as this node has heard."""
    now: int = 0
    """The run's time of this node, in microseconds."""
    training_since: int | None = None
    """When its first step of this session began, the same way."""
    steps_before: int = 0
    """Local steps before that: the node went on from a checkpoint."""
    tokens_before: int = 0
    """Tokens likewise."""
    bytes_up: int = 0
    """What this process exchanged with the repository: payload bytes, requests, commits."""
    bytes_down: int = 0
    requests: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterStatus:
    """What the master says of itself while it runs."""

    state: str = "starting"
    """starting, waiting, merging, publishing, closing, restarting, done or failed."""
    outer_step: int = -1
    deltas_merged: int = 0
    deltas_rejected: int = 0
    eval_loss: float | None = None
    """Of the newest global that was evaluated, nats per token."""
    evaluated_outer_step: int = -1
    tokens_total: int = 0
    staleness: float | None = None
    """Mean of the deltas that were merged last, outer steps."""
    bytes_up: int = 0
    """What this process exchanged with the repository: payload bytes, requests, commits."""
    bytes_down: int = 0
    requests: int = 0
    commits: int = 0
    missing: tuple[str, ...] = ()
    """Nodes that are waited for and have never come."""
    now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node leaves behind; ranges of local steps as text ("1-20,25-40", "" for none)."""

    node_id: str
    nonce: str
    local_steps: int
    """Completed by this incarnation."""
    tokens: int
    train_loss: float | None
    """Mean over the last boundary's steps, nats per token."""
    stop_reason: str
    overflows: int
    compute_seconds: float
    """The run's time spent in local steps."""
    total_seconds: float
    """The run's time from the first step to the last."""
    manifest: str
    """sha256 of the data that it trained on."""
    data_note: str | None
    """What a reader should know of the data stream, such as that it was fast-forwarded."""
    first_step: int = 0
    fragments: int = 1
    """Into how many the model is cut: every step is accounted for once for each of them."""
    """The last local step that was used under this id before; this incarnation counts on from
    it.
    """
    dropped: str = ""
    """Steps whose effect was given up: `install=replace`, or a recovery from a state that was not
    finite.
    """
    lost: str = ""
    """Steps of a state that is gone: each is in a delta that was sent, or lost; the master's
    account says which.
    """
    unsent: str = ""
    """Steps that were not handed over when the time to stop was up."""
    unresolved: str = ""
    """Steps of a delta whose fate was not known when the time to stop was up."""
    rejected: dict[str, str] = field(default_factory=dict[str, str])
    """What the master refused: ranges of local steps -> reason."""
    awaiting: dict[str, str] = field(default_factory=dict[str, str])
    """Deltas that landed but were in no global that this node saw: local step -> ranges."""
    skipped_boundaries: int = 0
    installs: int = 0
    mismatched_entries: int = 0
    deltas_landed: int = 0
    deltas_refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0
    commits: int = 0
    initial_eval_loss: float | None = None
    """Role single only: held-out loss before training, nats per token."""
    eval_loss: float | None = None
    """Role single only: held-out loss of the final model."""
    model_file: str | None = None
    """Role single only: local path of the final model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The held-out loss of one global, in nats per token."""

    outer_step: int
    loss: float
    tokens_total: int
    at: int
    """The run's time when this global was published, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterReport:
    """What the master leaves behind."""

    outer_steps: int
    deltas_merged: int
    accounts: dict[str, dict[str, dict[str, Any]]]
    """By node id and nonce ("" for a plain peer): merged, rejected (ranges as text), tokens,
    deltas.
    """
    staleness: dict[int, int]
    """How many deltas were merged at each staleness."""
    rejected: list[dict[str, Any]]
    """Each refused delta: node, local_step, path, reason."""
    evaluations: list[Evaluation]
    tokens_total: int
    stop_reason: str
    model_file: str
    """Local path of the final global model."""
    model_sha256: str
    bytes_up: int
    bytes_down: int
    requests: int
    commits: int
    conflicts: int
    """Publications that had to be tried again because the branch had moved."""
    fallback_rounds: int = 0
    """Rounds that had too few deltas for the aggregation that was asked for, and took the mean."""
