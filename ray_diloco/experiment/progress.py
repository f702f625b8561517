"""How a run shows itself: a live table on a terminal, plain lines elsewhere."""

from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ray_diloco.cluster.engine import View
from ray_diloco.experiment.pace import Speed, elapsed_seconds, seconds_left, tokens_per_second
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.protocol.clock import Clock, Micros, micros
from ray_diloco.protocol.run import MasterStatus, NodeStatus, RunLimits

PLAIN_INTERVAL = micros(10.0)
"""Between two plain lines when no outer step comes in between."""
MOST_NODES_BY_NAME = 6
"""In a plain line; more are told together."""
MOST_ROWS = 24
"""In the live table; more nodes are told together."""
_STYLES = {
    "training": "green",
    "waiting": "yellow",
    "waiting for its name": "bold yellow",
    "stopping": "yellow",
    "failed": "bold red",
}


class Progress(Protocol):
    """Shows a run while it goes on."""

    def show(self, view: View) -> None: ...

    def note(self, text: str) -> None:
        """One line that stays."""
        ...

    def close(self) -> None: ...


def open_progress(
    kind: ProgressKind,
    console: Console,
    *,
    limits: RunLimits,
    clock: Clock,
    virtual: bool = False,
) -> Progress:
    """As chosen; ``auto``: live on a terminal, plain elsewhere. ``clock``: real time, which spaces
    plain lines. ``virtual``: the run's time is another one.
    """
    speed = Speed(clock) if virtual else None
    match kind:
        case ProgressKind.none:
            return NoProgress()
        case ProgressKind.live:
            return LiveProgress(console, limits, speed)
        case ProgressKind.auto if console.is_terminal:
            return LiveProgress(console, limits, speed)
        case _:
            return PlainProgress(console, limits, clock, speed)


class NoProgress:
    """Shows nothing."""

    def show(self, view: View) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class LiveProgress:
    """A table that renews itself."""

    def __init__(self, console: Console, limits: RunLimits, speed: Speed | None = None) -> None:
        """``speed``: in virtual time."""
        self._console = console
        self._limits = limits
        self._speed = speed
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, view: View) -> None:
        speed = self._speed.at(view) if self._speed is not None else None
        self._live.update(live_table(view, self._limits, speed), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class PlainProgress:
    """One line for each outer step, and one now and then."""

    def __init__(
        self, console: Console, limits: RunLimits, clock: Clock, speed: Speed | None = None
    ) -> None:
        """``speed``: in virtual time."""
        self._console = console
        self._speed = speed
        self._limits = limits
        self._clock = clock
        self._shown: tuple[int, int] | None = None
        self._next = Micros(0)

    def show(self, view: View) -> None:
        speed = self._speed.at(view) if self._speed is not None else None
        master = view.master
        state = (master.outer_step, master.evaluated_outer_step) if master else (-1, -1)
        if state == self._shown and self._clock.now() < self._next:
            return
        self._shown = state
        self._next = Micros(self._clock.now() + PLAIN_INTERVAL)
        self.note(plain_line(view, self._limits, speed))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None: ...


def live_table(view: View, limits: RunLimits, speed: float | None = None) -> Group:
    """A line a node, one for the master, one for the time. ``speed``: virtual seconds in a real
    one, 0 when not known yet; None in real time.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "step", "loss", "tokens/s", "base outer step", "state"):
        table.add_column(name, justify="left" if name in ("node", "state") else "right")
    for node in view.nodes[:MOST_ROWS]:
        table.add_row(
            node.node_id,
            _step(node, limits) or "-",
            _number(node.loss, ".3f"),
            _number(tokens_per_second(node), ",.0f"),
            str(node.base_outer_step) if node.base_outer_step >= 0 else "-",
            Text(_state(node), style=_STYLES.get(node.state, "")),
        )
    lines: list[Table | Text] = [table]
    if len(view.nodes) > MOST_ROWS:
        lines.append(Text(f"and {_together(view, MOST_ROWS, limits)}"))
    if view.master is not None:
        state = Text(view.master.state, style=_STYLES.get(view.master.state, ""))
        lines.append(Text.assemble(("master ", "bold"), _master(view), ", ", state))
    return Group(*lines, Text(_time(view, limits, speed), style="dim"))


def plain_line(view: View, limits: RunLimits, speed: float | None = None) -> str:
    """Everything in one line. ``speed``: see `live_table`."""
    if len(view.nodes) > MOST_NODES_BY_NAME:
        parts = [_together(view, 0, limits)]
    else:
        parts = [
            f"{node.node_id} {_spaced(_step(node, limits))}"
            f"{_state(node) if node.loss is None else format(node.loss, '.3f')}"
            f"{_rejected(node) if node.loss is not None else ''}"
            for node in view.nodes
        ]
    if view.master is not None:
        parts.append(_master(view))
    return f"[{_time(view, limits, speed)}] {' | '.join(parts)}"


def _step(node: NodeStatus, limits: RunLimits) -> str:
    """Nothing before it is known: a node that goes on has not read its checkpoint yet."""
    return "" if node.state == "starting" else _of(node.local_step, limits.max_steps)


def _spaced(text: str) -> str:
    return f"{text} " if text else ""


def _state(node: NodeStatus) -> str:
    return f"{node.state}{_rejected(node)}"


def _rejected(node: NodeStatus) -> str:
    return f" ({node.deltas_rejected} rejected)" if node.deltas_rejected else ""


def _master(view: View) -> str:
    """What the master has come to, and whom elsewhere it still waits for."""
    master = view.master or MasterStatus()
    text = f"outer step {max(master.outer_step, 0)}, {master.deltas_merged} merged"
    if master.deltas_rejected:
        text += f", {master.deltas_rejected} rejected"
    if master.eval_loss is not None:
        text += f", eval loss {master.eval_loss:.4f} at {master.evaluated_outer_step}"
    text += f", {master.commits + sum(node.commits for node in view.nodes)} commits"
    elsewhere = sorted(set(master.missing) - {node.node_id for node in view.nodes})
    return text + (f", waits for {', '.join(elsewhere)} to come" if elsewhere else "")


def _together(view: View, first: int, limits: RunLimits) -> str:
    """The nodes from ``first`` on, in a few numbers."""
    nodes = view.nodes[first:]
    steps = [node.local_step for node in nodes]
    losses = [node.loss for node in nodes if node.loss is not None]
    mean = sum(losses) / len(losses) if losses else None
    span = f"{min(steps)}-{_of(max(steps), limits.max_steps)}"
    return f"{len(nodes)} nodes at steps {span}, mean loss {_number(mean, '.3f')}"


def _time(view: View, limits: RunLimits, speed: float | None) -> str:
    left = seconds_left(view, limits)
    text = _clock_text(elapsed_seconds(view))
    if speed is not None:
        pace = f", {speed:.3g} times as fast as real time" if speed else ""
        text, left = f"virtual {text}{pace}", left / speed if left is not None and speed else None
    return text if left is None else f"{text}, about {_clock_text(left)} left"


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _of(value: int, most: int | None) -> str:
    return str(value) if most is None else f"{value}/{most}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
