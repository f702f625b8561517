import io

from rich.console import Console
from scripted import status

from ray_diloco.cluster.engine import View
from ray_diloco.experiment.pace import seconds_left, tokens_per_second
from ray_diloco.experiment.progress import (
    LiveProgress,
    NoProgress,
    PlainProgress,
    live_table,
    open_progress,
    plain_line,
)
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.run import MasterStatus, RunLimits

LIMITS = RunLimits(max_steps=400)


class HandClock:
    """Shows the time that it is set to."""

    def __init__(self) -> None:
        self.time = Micros(0)

    def now(self) -> Micros:
        return self.time

    def utc(self) -> str:
        return "1970-01-01T00:00:00+00:00"


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def view(*, outer_step: int = 3, nodes: int = 2, now: float = 10.0) -> View:
    return View(
        nodes=tuple(
            status(
                f"n{index}",
                state="training",
                local_step=100 // (index + 1),
                tokens=10_000,
                loss=2.5,
                base_outer_step=outer_step - 1,
                now=micros(now),
                training_since=0,
            )
            for index in range(nodes)
        ),
        master=MasterStatus(
            state="waiting",
            outer_step=outer_step,
            deltas_merged=7,
            deltas_rejected=1,
            eval_loss=2.25,
            evaluated_outer_step=2,
            commits=11,
            now=micros(now),
        ),
        events=(),
        ended=False,
    )


def test_the_time_left_is_that_of_the_slowest_node():
    assert seconds_left(view(), LIMITS) == 70.0  # 350 steps at 5 a second
    assert seconds_left(view(), RunLimits(max_steps=400, max_seconds=30)) == 20.0
    assert seconds_left(view(), RunLimits()) is None


def test_the_time_left_by_tokens_follows_what_was_merged():
    seen = view()
    merged = View(
        nodes=seen.nodes,
        master=MasterStatus(tokens_total=5_000, now=micros(10)),
        events=(),
        ended=False,
    )
    assert seconds_left(merged, RunLimits(max_tokens=20_000)) == 30.0
    assert seconds_left(view(), RunLimits(max_tokens=20_000)) is None


def test_speed_counts_from_the_first_step():
    assert tokens_per_second(status(tokens=100, now=micros(4), training_since=micros(2))) == 50.0
    assert tokens_per_second(status(now=micros(4))) is None


def test_the_table_has_a_line_for_each_node_and_one_for_the_master():
    screen = console()
    screen.print(live_table(view(), LIMITS))
    shown = text_of(screen)
    assert "100/400" in shown
    assert "1,000" in shown
    assert "outer step 3, 7 merged, 1 rejected, eval loss 2.2500 at 2, 11 commits" in shown
    assert "0:10, about 1:10 left" in shown


def test_many_nodes_are_told_together():
    assert "7 nodes at steps 14-100/400, mean loss 2.500" in plain_line(view(nodes=7), LIMITS)
    screen = console()
    screen.print(live_table(view(nodes=30), LIMITS))
    assert "and 6 nodes at steps" in text_of(screen)


def test_plain_lines_come_with_each_outer_step_and_now_and_then():
    screen, clock = console(), HandClock()
    progress = PlainProgress(screen, LIMITS, clock)
    for outer_step, seconds in ((1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 14)):
        clock.time = micros(seconds)
        progress.show(view(outer_step=outer_step))
    assert len(text_of(screen).splitlines()) == 3


def test_ids_are_shown_as_they_are():
    screen = console()
    PlainProgress(screen, LIMITS, HandClock()).note("node [red]x[/]")
    LiveProgress(screen, LIMITS).note("node [red]x[/]")
    assert text_of(screen).count("[red]x[/]") == 2


def test_what_is_no_terminal_gets_lines():
    def opened(kind: ProgressKind, *, terminal: bool):
        screen = Console(file=io.StringIO(), force_terminal=terminal)
        return open_progress(kind, screen, limits=LIMITS, clock=HandClock())

    assert isinstance(opened(ProgressKind.auto, terminal=False), PlainProgress)
    live = opened(ProgressKind.auto, terminal=True)
    assert isinstance(live, LiveProgress)
    live.show(view())
    live.close()
    assert isinstance(opened(ProgressKind.none, terminal=True), NoProgress)
