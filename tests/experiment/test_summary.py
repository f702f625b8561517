import io

from rich.console import Console
from scripted import ScriptedEngine, ScriptedStage

from ray_diloco.experiment.run import run
from ray_diloco.experiment.summary import print_summary


def summary_of(config, folder, engine=None) -> str:
    result = run(config, folder, stage=ScriptedStage(engine or ScriptedEngine()))
    screen = Console(file=io.StringIO(), width=200)
    print_summary(result, screen)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_start_is_told_apart_from_the_training(small, tmp_path):
    told = summary_of(small(), tmp_path)
    assert "2,400 tokens in " in told
    assert " s to start" in told
    assert "sessions" not in told
    assert "virtual" not in told


def test_a_simulation_tells_its_own_time_and_that_of_the_clock(small, tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    result = run(small("time=virtual", "engine=inproc"), tmp_path)
    print_summary(result, screen)
    assert isinstance(screen.file, io.StringIO)
    simulated = f" tokens in {result.numbers['run_seconds']:.1f} s of virtual time, computed in "
    assert simulated in screen.file.getvalue()


def test_a_run_that_diverged_says_so(small, tmp_path):
    engine = ScriptedEngine(node={"train_loss": float("nan")})
    assert "diverged: a loss is not finite" in summary_of(small(), tmp_path, engine)


def test_a_worker_is_told_without_what_only_its_master_knows(small, tmp_path):
    config = small(
        "run.role=worker", "hub.repo_id=team/run", "hub.endpoint=http://h", "hub=embedded"
    )
    told = summary_of(config, tmp_path)
    assert "None" not in told
    assert "outer steps, 0 rejected" in told


def test_the_start_says_what_is_awaited(small, tmp_path):
    class Lines:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def show(self, view) -> None: ...

        def note(self, text: str) -> None:
            self.lines.append(text)

        def close(self) -> None: ...

    notes = Lines()
    config = small("hub=embedded", "engine=ray")
    run(config, tmp_path, stage=ScriptedStage(ScriptedEngine()), progress=notes)
    awaited = [line for line in notes.lines if line.endswith("...")]
    assert awaited == ["starting Ray ...", "starting 2 node actors and the master actor ..."]
