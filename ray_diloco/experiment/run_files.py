"""The files of a run folder, in the order in which they are written.

starting           until the records begin: what lies here then is of no use without them
config.yaml        the resolved configuration, at the start
tracked_as         what the run is called at the service that gets its curves (group tracking)
sessions.jsonl     a line each time that the run starts: it may be resumed
status.json        what ray-diloco-status shows, every second
status.N.json      what it said last of session N, which was killed
events.jsonl       every event as it comes
tensorboard/       curves as they come
metrics.parquet    the numbers of all events, at the end
timeline.json      who did what when, for Perfetto, at the end
model.safetensors  the final global, at the end
result.json        the result: stands for a whole run, all its sessions; absent while one goes on
result.N.json      what result.json was after N sessions, once the run was resumed
report.html        all of it to look at, last of all

hub/               what the embedded hub of the run serves
state/             what its participants resume from (diloco.state_dir)
alone/             the run of the fastest node alone (run.alone)
stop               somebody wishes the run to end (ray-diloco-stop)
console.log        what a run in the background prints (ray.detach)
"""

from pathlib import Path

CONFIG = "config.yaml"
TRACKED_AS = "tracked_as"
SESSIONS = "sessions.jsonl"
EVENTS = "events.jsonl"
METRICS = "metrics.parquet"
TIMELINE = "timeline.json"
MODEL = "model.safetensors"
RESULT = "result.json"
REPORT = "report.html"
STATUS = "status.json"
STOP = "stop"
STARTING = "starting"
HUB = "hub"
STATE = "state"
ALONE = "alone"
CONSOLE = "console.log"


def write_atomically(path: Path, text: str) -> None:
    """The whole text or the file as it was."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
