import io

from rich.console import Console
from scripted import status

from ray_diloco.cluster.engine import View
from ray_diloco.experiment.pace import Speed, seconds_left, tokens_per_second
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


def test_a_node_that_went_on_from_a_checkpoint_is_as_fast_as_it_is_now():
    node = status(
        "n0",
        local_step=300,
        steps_before=200,
        tokens=3_000,
        tokens_before=2_000,
        now=micros(60),
        training_since=micros(50),
    )
    assert tokens_per_second(node) == 100.0
    seen = View(nodes=(node,), master=None, events=(), ended=False)
    assert seconds_left(seen, LIMITS) == 10.0


def test_the_table_has_a_line_for_each_node_and_one_for_the_master():
    screen = console()
    screen.print(live_table(view(), LIMITS))
    shown = text_of(screen)
    assert "100/400" in shown
    assert "1,000" in shown
    assert "outer step 3, 7 merged, 1 rejected, eval loss 2.2500 at 2, 11 commits" in shown
    assert "0:10, about 1:10 left" in shown


def test_a_node_shows_that_it_waits_for_its_name_and_what_was_rejected():
    waits = status("n0", state="waiting for its name")
    told = status("n1", state="training", loss=2.5, deltas_rejected=3)
    seen = View(nodes=(waits, told), master=None, events=(), ended=False)
    line = plain_line(seen, RunLimits())
    assert "n0 0 waiting for its name" in line
    assert "n1 0 2.500 (3 rejected)" in line
    screen = console()
    screen.print(live_table(seen, RunLimits()))
    assert "training (3 rejected)" in text_of(screen)


def test_a_node_whose_steps_are_not_known_yet_shows_none_and_all_commits_count():
    seen = View(
        nodes=(status("n0", commits=2), status("n1", state="training", local_step=60, commits=3)),
        master=MasterStatus(commits=4),
        events=(),
        ended=False,
    )
    line = plain_line(seen, LIMITS)
    assert "n0 starting | n1 60/400 training" in line
    assert line.endswith("9 commits")


def test_the_master_says_whom_elsewhere_it_waits_for():
    master = MasterStatus(missing=("n0", "n1", "laptop"))
    seen = View(nodes=(status("n0"),), master=master, events=(), ended=False)
    assert plain_line(seen, RunLimits()).endswith("0 commits, waits for laptop, n1 to come")


def test_many_nodes_are_told_together():
    assert "7 nodes at steps 14-100/400, mean loss 2.500" in plain_line(view(nodes=7), LIMITS)
    screen = console()
    screen.print(live_table(view(nodes=30), LIMITS))
    assert "and 6 nodes at steps" in text_of(screen)


def test_virtual_time_is_told_with_its_speed_and_what_is_left_in_real_time():
    clock = HandClock()
    speed = Speed(clock)
    assert speed.at(view(now=0.0)) == 0.0
    clock.time = micros(30)  # start-up does not count
    assert speed.at(view(now=1.0)) == 0.0
    clock.time = micros(33)
    assert speed.at(view(now=10.0)) == 3.0
    line = plain_line(view(now=10.0), LIMITS, 3.0)
    assert line.startswith("[virtual 0:10, 3 times as fast as real time, about 0:23 left]")
    screen, later = console(), view(now=10.0)
    PlainProgress(screen, LIMITS, clock, speed).show(later)
    assert "virtual 0:10, 3 times as fast as real time" in text_of(screen)


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
