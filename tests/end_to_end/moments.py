"""What real participants did, as the moments of `reference.play`."""

from scene import Part

from ray_diloco.protocol.run import Event


def moments_of(nodes: dict[str, Part], master: Part) -> list[tuple]:
    """A run as a list of moments: each participant's in order, nothing before what it needs."""
    waiting = {node_id: node_moments(part) for node_id, part in nodes.items()}
    waiting["m"] = master_moments(master.events)
    done: list[tuple] = []
    while any(waiting.values()):
        before = len(done)
        for queue in waiting.values():
            while queue and _may_come(queue[0], done):
                done.append(queue.pop(0))
        assert len(done) > before, f"these wait for each other: {waiting}"
    return done


def node_moments(part: Part) -> list[tuple]:
    moments: list[tuple] = []
    stepped, node_id = 0, part.name
    for event in part.events:
        at = event.get("local_step", stepped)
        match event["event"]:
            case "upload_started":
                found: list[tuple] = [("send", node_id, at)]
            case "delta_landed":
                at, found = stepped, [("land", node_id)]
            case "install":
                found = [("install", node_id, event["outer_step"])]
            case _:
                continue
        moments += [("step", node_id)] * (at - stepped) + found
        stepped = at
    return moments + [("step", node_id)] * (part.report.local_steps - stepped)


def master_moments(events: list[Event]) -> list[tuple]:
    return [
        ("merge", tuple((d["node"], d["local_step"], d["base_outer_step"]) for d in each["deltas"]))
        for each in events
        if each["event"] == "publication" and each["deltas"]
    ]


def _may_come(moment: tuple, done: list[tuple]) -> bool:
    match moment:
        case ("merge", deltas):
            return all(("send", node, step) in done for node, step, _ in deltas)
        case ("install", _, outer_step):
            return sum(each[0] == "merge" for each in done) >= outer_step
        case _:
            return True
