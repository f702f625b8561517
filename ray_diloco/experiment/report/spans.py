"""Who did what when: stretches of the run's time, from the events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.timeline import is_master
from ray_diloco.protocol.run import Event
from ray_diloco.timing.churn import outages

COMPUTE, WAITING, UPLOAD, DOWNLOAD, AWAY = "compute", "waiting", "upload", "download", "crashed"
KINDS = (COMPUTE, WAITING, UPLOAD, DOWNLOAD, AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From ``start`` to ``end``, in microseconds, a node did ``kind``."""

    node: str
    kind: str
    start: int
    end: int
    text: str


def node_spans(run: RunRecords) -> dict[str, list[Span]]:
    """By node, in the order of their names' lengths and names (n2 before n10)."""
    by_node: dict[str, list[Event]] = {}
    for event in run.events:
        if not is_master(event["participant"]):
            by_node.setdefault(event["participant"], []).append(event)
    names = sorted(by_node, key=lambda name: (len(name), name))
    dead, last = _deaths(run), last_moment(run)
    return {
        name: list(
            _spans(name, by_node[name], last if run.result else None, deaths=dead.get(name, ()))
        )
        for name in names
    }


def _deaths(run: RunRecords) -> dict[str, tuple[int, ...]]:
    """When each simulated node dies by its scenario; nobody writes an event of it."""
    if not run.virtual:
        return {}
    try:
        cluster = read_config(run.config).cluster
    except ConfigError:
        return {}
    return {
        name: tuple(outage.at for outage in outages(profile))
        for name, profile in node_profiles(cluster)
    }


def last_moment(run: RunRecords) -> int:
    """The latest time that is known, in microseconds."""
    return max((event["at"] for event in run.events), default=0)


def _spans(
    node: str, events: list[Event], last: int | None, *, deaths: Sequence[int]
) -> Iterator[Span]:
    """Each incarnation has its own; what lies between two of them is the time it was away.
    ``last``: the end of the run, None while it goes on.
    """
    lives = _lives(events)
    for life, following in zip(lives, [*lives[1:], None], strict=True):
        until = following[0]["at"] if following else last
        ended = any(event["event"] == "node_stopping" for event in life)
        sign = life[-1]["at"]
        cut = None
        if not ended and until is not None and sign < until:
            cut = next((at for at in deaths if sign <= at <= until), sign)
            yield _span(node, AWAY, cut, until, "away")
        yield from _work(node, life, cut)
        yield from _transfers(node, life)


def _lives(events: list[Event]) -> list[list[Event]]:
    """A node that starts again tells first what it resumes, then that it started."""
    lives: list[list[Event]] = []
    started = True
    for event in events:
        begins = event["event"] in ("node_started", "upload_resumed")
        if not lives or (begins and started):
            lives.append([])
            started = False
        lives[-1].append(event)
        started = started or event["event"] == "node_started"
    return lives


def _work(node: str, life: list[Event], cut: int | None) -> Iterator[Span]:
    """Compute from one boundary to the next, without the waits. ``cut``: when it died."""
    start: int | None = None
    for event in life:
        at: int = event["at"]
        match event:
            case {"event": "node_started"}:
                start = at
            case {"event": "waited", "began": int(began)}:
                if start is not None and began > start:
                    yield _span(node, COMPUTE, start, began, "trains")
                yield _span(node, WAITING, began, at, "waits")
                start = at
            case {"event": "upload_started" | "node_stopping", "local_step": step}:
                if start is not None and at > start:
                    yield _span(node, COMPUTE, start, at, f"trains until step {step}")
                start = at
            case _:
                pass
    if cut is not None and start is not None and cut > start:
        yield _span(node, COMPUTE, start, cut, "trains until it dies")


def _transfers(node: str, life: list[Event]) -> Iterator[Span]:
    sent: Event | None = None
    for event in life:
        match event:
            case {"event": "upload_started" | "upload_resumed"}:
                sent = event
            case {"event": "delta_landed" | "delta_refused", "at": int(at)} if sent is not None:
                verdict = "landed" if event["event"] == "delta_landed" else "was refused"
                text = f"delta of steps {sent['covers']} {verdict}"
                yield _span(node, UPLOAD, sent["at"], at, text)
                sent = None
            case {"event": "global_fetched", "began": int(began), "at": int(at)}:
                yield _span(node, DOWNLOAD, began, at, f"global {event['outer_step']}")
            case _:
                pass


def _span(node: str, kind: str, start: int, end: int, text: str) -> Span:
    return Span(node=node, kind=kind, start=start, end=end, text=text)


def utilisation(spans: list[Span], last: int) -> dict[str, float]:
    """What part of a node's time, from its first span to ``last``, went to what (0 to 1); beside
    compute, waiting and being away only what is none of them: idle.
    """
    own = [span for span in spans if span.kind in (COMPUTE, WAITING, AWAY)]
    begin = min((span.start for span in spans), default=last)
    whole = max(last - begin, 1)
    shares: dict[str, float] = dict.fromkeys((COMPUTE, WAITING, AWAY), 0.0)
    for span in own:
        shares[span.kind] += (span.end - span.start) / whole
    return {**shares, "done or idle": max(0.0, 1 - sum(shares.values()))}
