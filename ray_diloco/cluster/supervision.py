"""Who is started again after its process died, when, and how often. Pure."""

from dataclasses import dataclass, field

from ray_diloco.protocol.clock import Micros, micros

FIRST_WAIT = micros(1)
LONGEST_WAIT = micros(60)
NO_PATIENCE = Micros(0)


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """``most``: how often each participant is started again. ``patience``: for how long a machine
    is waited for when none that lives can take one.
    """

    most: int
    patience: Micros = NO_PATIENCE
    reasons: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By participant, of what it died each time that it was to be started again."""
    _due: dict[str, Micros] = field(default_factory=dict[str, Micros])
    _homeless: dict[str, tuple[Micros, int]] = field(default_factory=dict[str, tuple[Micros, int]])
    """Since when there is no machine for somebody, and how often one was looked for."""

    def died(self, name: str, reason: str, *, now: Micros) -> Micros | None:
        """When it is to be started again: after 1 s, and twice as long with each death, at most
        60 s; None when it has died too often.
        """
        self._homeless.pop(name, None)
        told = self.reasons.setdefault(name, [])
        if len(told) >= self.most:
            return None
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** len(told))
        told.append(reason)
        self._due[name] = Micros(now + wait)
        return self._due[name]

    def waits(self, name: str, *, now: Micros) -> Micros | None:
        """When one that was due and found no machine is due again: after the same pauses, which
        count as no death; None when ``patience`` is over.
        """
        since, looks = self._homeless.get(name, (now, 0))
        if now - since >= self.patience:
            return None
        self._homeless[name] = since, looks + 1
        self._due[name] = Micros(now + min(LONGEST_WAIT, FIRST_WAIT * 2**looks))
        return self._due[name]

    def hasten(self, now: Micros) -> None:
        """Whoever is to be started again is due at once."""
        self._due = dict.fromkeys(self._due, now)

    @property
    def waiting(self) -> bool:
        """Somebody is to be started again."""
        return bool(self._due)

    def take_due(self, now: Micros) -> list[str]:
        """Those whose time has come, each once."""
        found = [name for name, at in self._due.items() if at <= now]
        for name in found:
            del self._due[name]
        return found

    def restarts(self) -> dict[str, list[str]]:
        """The reasons of those that died at all."""
        return {name: list(told) for name, told in sorted(self.reasons.items()) if told}
