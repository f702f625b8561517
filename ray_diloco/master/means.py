"""What the rounds of a master work with, put together once."""

from dataclasses import dataclass
from pathlib import Path

from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.hub.signature import Signer, Trust
from ray_diloco.master.account import Account
from ray_diloco.master.collecting import Collector
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.publishing import Publisher
from ray_diloco.master.recovery import Recovery
from ray_diloco.master.shelf import Shelf
from ray_diloco.master.squashing import Squasher
from ray_diloco.protocol.clock import Clock, Micros, Port
from ray_diloco.protocol.run import Recorder
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What all rounds of a master work with."""

    settings: DilocoSettings
    schema: StateSchema
    optimizer: OuterOptimizer
    repository: Repository
    retry: Retry
    collector: Collector
    publisher: Publisher
    recovery: Recovery
    squasher: Squasher
    shelf: Shelf
    account: Account
    clock: Clock
    record: Recorder
    merge_time: Micros
    """What the arithmetic of a round takes in virtual time."""

    @classmethod
    def of(
        cls,
        settings: DilocoSettings,
        *,
        schema: StateSchema,
        nodes: int,
        master_id: str,
        repository: Repository,
        retry: Retry,
        port: Port,
        record: Recorder,
        account: Account,
        state_dir: Path,
        commits_per_hour: int | None,
        squash_every: int,
        signer: Signer | None,
        trust: Trust | None,
        merge_time: Micros,
    ) -> "Means":
        """For a master of so many ``nodes``; the other arguments are those of `Master`."""
        optimizer = OuterOptimizer.of(settings, nodes=nodes)
        shelf = Shelf(state_dir / "globals")
        collector = Collector(repository, retry, state_dir / "deltas", trust=trust)
        return cls(
            settings=settings,
            schema=schema,
            optimizer=optimizer,
            repository=repository,
            retry=retry,
            collector=collector,
            publisher=Publisher(
                repository,
                retry,
                port,
                master_id=master_id,
                commits_per_hour=commits_per_hour,
                signer=signer,
            ),
            recovery=Recovery(
                repository,
                retry,
                settings=settings,
                schema=schema,
                optimizer=optimizer,
                shelf=shelf,
                collector=collector,
                trust=trust,
            ),
            squasher=Squasher(repository, retry, every=squash_every),
            shelf=shelf,
            account=account,
            clock=port,
            record=record,
            merge_time=merge_time,
        )
