"""What the master takes when `security.trusted_keys` names who may send."""

from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from torch import nn

from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.signature import Signer, Trust, read_trust
from ray_diloco.master.collecting import Collector
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.validation import Acceptance
from ray_diloco.protocol.clock import Access, Lane, Micros, micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.paths import delta_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.seeds import seeded
from ray_diloco.tensors.delta_file import write_delta
from ray_diloco.tensors.schema import StateSchema

POLICY = RetryPolicy(
    first=micros(1), longest=micros(1), deadline=micros(1), quota_longest=micros(1)
)
MODEL = nn.Linear(3, 2)
SCHEMA = StateSchema.of(MODEL)


class StillClock:
    def now(self) -> Micros:
        return Micros(0)

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


def finish(lane: Lane) -> Any:
    result: Any = None
    while True:
        try:
            effect = lane.send(result)
        except StopIteration as end:
            return end.value
        result = effect.call() if isinstance(effect, Access) else None


def key() -> tuple[Signer, str]:
    private = ed25519.Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Signer(private), public.decode()


def send(repository: MemoryRepository, node_id: str, signer: Signer | None, folder: Path) -> None:
    state = {name: value.detach().clone() for name, value in MODEL.state_dict().items()}
    card = DeltaCard(
        node_id=node_id,
        local_step=4,
        base_outer_step=0,
        nonce=f"nonce-{node_id}",
        covers=StepRanges.of(1, 4),
    )
    written = write_delta(
        folder / f"{node_id}.safetensors",
        baseline=state,
        current={name: torch.zeros_like(value) for name, value in state.items()},
        schema=SCHEMA,
        header=card.header(),
        seal=signer.signed_header if signer is not None else None,
    )
    addition = Addition(path=delta_path(node_id, 4), source=written.file.path)
    repository.commit(f"delta of {node_id}", additions=[addition])


def collected(repository: MemoryRepository, folder: Path, trust: Trust | None) -> OuterLoop:
    retry = Retry(POLICY, seeded(0, "m", "retry"), StillClock())
    collector = Collector(repository, retry, folder / "deltas", trust=trust)
    loop = OuterLoop(card=GlobalCard(outer_step=0), ledger=Ledger(), now=Micros(0))
    commit = repository.head_commit()
    look = loop.look(repository.list_files("", commit=commit), now=Micros(0))
    acceptance = Acceptance(schema=SCHEMA, outer_step=0)
    assert finish(collector.collect(look, loop, acceptance, commit=commit))
    return loop


def test_only_what_a_trusted_key_signed_is_merged_and_the_rest_passes_no_mark(
    tmp_path: Path,
) -> None:
    (friend, public), (stranger, _) = key(), key()
    repository = MemoryRepository()
    for node_id, signer in (("a", friend), ("b", stranger), ("c", None)):
        send(repository, node_id, signer, tmp_path)
    loop = collected(repository, tmp_path, read_trust([public], own=None))
    ready = loop.ready()
    assert [candidate.card.node_id for candidate in ready] == ["a"]
    publication = loop.compose(ready, counted=1)
    reasons = {each.entry.path: each.reason for each in publication.refused}
    assert "not among security.trusted_keys" in reasons[delta_path("b", 4)]
    assert reasons[delta_path("c", 4)] == "it is not signed"
    for node_id in ("b", "c"):
        row = publication.ledger.rows[node_id]
        assert (row.nonce, row.tokens) == (None, 0)


def test_without_trusted_keys_signed_and_unsigned_deltas_are_merged_alike(tmp_path: Path) -> None:
    repository = MemoryRepository()
    for node_id, signer in (("a", key()[0]), ("b", None)):
        send(repository, node_id, signer, tmp_path)
    ready = collected(repository, tmp_path, None).ready()
    assert [candidate.card.node_id for candidate in ready] == ["a", "b"]
