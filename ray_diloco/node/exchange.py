"""What a node does at the hub, as lanes: hold its name (`claiming`), upload a delta (`uploading`),
poll for a global (`polling`); all within its share of the commits.

Lanes only read and write files and the repository. What they find goes back to the coordinator.
"""

from collections.abc import Callable
from pathlib import Path

from ray_diloco.errors import (
    QuotaExceeded,
    TransientHubError,
)
from ray_diloco.hub.limits import Share, node_share
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.hub.signature import Signer, Trust
from ray_diloco.node.actions import Job
from ray_diloco.node.checkpoint import Facts
from ray_diloco.node.claiming import Claim, Claimed, Watching
from ray_diloco.node.polling import Polling, Steps
from ray_diloco.node.uploading import Uploading
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Clock, Micros, micros


class Exchange:
    """A node's side of the repository. ``run_id`` "" takes that of the run it finds."""

    def __init__(
        self,
        *,
        node_id: str,
        nonce: str,
        run_id: str,
        inner_steps: int,
        repository: Repository,
        weights: Weights,
        retry: Retry,
        clock: Clock,
        state_dir: Path,
        node_timeout: float = 600.0,
        commits_per_hour: int | None = None,
        signer: Signer | None = None,
        trust: Trust | None = None,
        shard_tokens: int | None = None,
    ) -> None:
        """``node_timeout``: seconds after which a silent process under our name counts as gone.
        ``commits_per_hour``: of all participants; None: nobody counts. ``signer``: of deltas.
        ``trust``: whose globals are taken; None: everybody's. ``shard_tokens``: what deltas say of
        the size of the data; None: nothing.
        """
        self._node_id = node_id
        self._nonce = nonce
        self._retry = retry
        self._clock = clock
        self._share = Share(clock, commits_per_hour, node_share)
        self._beat_after = micros(node_timeout / 2)
        self._last_sign = clock.now()
        self._beats = 0
        self._used = 0
        self.state_dir = state_dir
        outgoing, incoming = state_dir / "outgoing", state_dir / "incoming"
        self._polling = Polling(
            run_id=run_id,
            repository=repository,
            weights=weights,
            retry=retry,
            clock=clock,
            incoming=incoming,
            trust=trust,
            heed=self._share.heed,
        )
        self._uploading = Uploading(
            node_id=node_id,
            nonce=nonce,
            inner_steps=inner_steps,
            repository=repository,
            weights=weights,
            retry=retry,
            clock=clock,
            outgoing=outgoing,
            polling=self._polling,
            signer=signer,
            shard_tokens=shard_tokens,
            landed=self._landed,
        )
        self._claim = Claim(
            node_id=node_id,
            repository=repository,
            retry=retry,
            clock=clock,
            state_dir=state_dir,
            node_timeout=node_timeout,
            gap=inner_steps,
        )
        for folder in (outgoing, incoming):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def peer_led(self) -> bool:
        """The globals of this run come from a plain peer."""
        return self._polling.peer_led

    @property
    def run_id(self) -> str:
        """Of the run that this node is part of; "" while that is not known."""
        return self._polling.run_id

    def may_send(self) -> bool:
        """Whether this node's share of the commit budget has room for a delta now."""
        return not self._share.wait()

    def conclude(self) -> None:
        """Say what trouble with the hub was waited out."""
        self._retry.conclude()

    # -- the name ----------------------------------------------------------------------------------

    def claim(
        self, *, takeover: bool, kept: Facts | None = None, watching: Watching | None = None
    ) -> Steps:
        """Take the name; gives `Claimed`. ``kept``: our checkpoint, whose nonce goes on if nobody
        else had the name since.

        NodeInUseError when another process holds it and ``takeover`` is false.
        """
        self._share.spend()
        claimed: Claimed = yield from self._claim.take(
            self._nonce,
            run_id=self.run_id,
            kept=None if kept is None else kept.nonce,
            takeover=takeover,
            watching=watching,
        )
        self._nonce = self._uploading.nonce = claimed.nonce
        self._used, self._last_sign = claimed.used, self._clock.now()
        if kept is not None and claimed.continues:
            self._uploading.last_number = max(kept.last_number, claimed.own)
            self._polling.follow(peer_led=kept.peer_led)
            self._polling.run_id = self.run_id or kept.run_id
        return claimed

    @property
    def beat_due(self) -> Micros:
        """When the node should show that it lives, unless it has sent something by then: early
        enough that nobody takes it for gone.
        """
        return Micros(self._last_sign + self._beat_after)

    def beat(self) -> Steps:
        """Show that this node lives. Trouble on the way is no matter: the next one is due soon."""
        self._beats += 1
        self._last_sign = self._clock.now()
        try:
            yield from self._claim.beat(
                self._nonce,
                run_id=self.run_id,
                last_local_step=max(self._used, self.last_number),
                number=self._beats,
            )
            self._share.spend()
        except (QuotaExceeded, TransientHubError) as error:
            self._retry.note(error)

    def depart(self, *, last_local_step: int) -> Steps:
        """Say that this node is done."""
        self._share.spend()
        yield from self._claim.give_back(
            self._nonce, run_id=self.run_id, last_local_step=last_local_step
        )

    # -- an upload job -----------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The highest number that a delta of this nonce was ever encoded under."""
        return self._uploading.last_number

    @property
    def delta_file(self) -> Path:
        """The file of the last upload job, once it is encoded."""
        return self._uploading.delta_file

    def upload(
        self, job: Job, encoded: Callable[[], None], keep: Callable[[], None] | None = None
    ) -> Steps:
        """See `Uploading.upload`."""
        return self._uploading.upload(job, encoded, keep)

    def take_back(self, kept: Path, number: int) -> None:
        """See `Uploading.take_back`."""
        self._uploading.take_back(kept, number)

    def resend(self, number: int) -> Steps:
        """See `Uploading.resend`."""
        return self._uploading.resend(number)

    def _landed(self) -> None:
        """A delta is there: it cost a commit, and shows that the node lives."""
        self._share.spend()
        self._last_sign = self._clock.now()

    # -- a poll ------------------------------------------------------------------------------------

    def poll(self, *, seen: tuple[int, int], anew: bool, have: int = -1) -> Steps:
        """See `Polling.poll`."""
        return self._polling.poll(seen=seen, anew=anew, have=have)

    def poll_until_new(self, *, seen: tuple[int, int], every: Micros, have: int = -1) -> Steps:
        """See `Polling.poll_until_new`."""
        return self._polling.poll_until_new(seen=seen, every=every, have=have)
