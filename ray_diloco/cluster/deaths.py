"""What Ray says of a process that died, in one line."""

from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError

_PRESSED = ("low on memory", "memory pressure")
_GONE = "node has died"


def cause_of(error: RayError) -> str:
    """Of what a participant died, or why it must be taken for dead: a machine that has just gone is
    for Ray one that does not answer.
    """
    if is_of_memory(error):
        return f"its machine was out of memory, so Ray killed its process: {_first_line(error)}"
    if _GONE in str(error):
        return f"its machine has gone: {_first_line(error)}"
    if isinstance(error, ActorUnavailableError):
        return f"its process died or is out of reach: {_first_line(error)}"
    return f"its process died: {_first_line(error)}"


def is_of_memory(error: BaseException) -> bool:
    """Ray killed the process to save memory."""
    return isinstance(error, OutOfMemoryError) or any(each in str(error) for each in _PRESSED)


def _first_line(error: RayError) -> str:
    return str(error).strip().splitlines()[0]
