"""A step whose gradients overflowed is none for the exchange either."""

from collections import Counter
from dataclasses import replace

from node_scene import INNER, Stream, begin, repository_with

from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import parse_delta_path
from ray_diloco.tensors.safetensors_header import parse_header

TOO_LARGE = (2, 5, 6)


class Bursts(Stream):
    """Three of its batches have gradients beyond fp16, whatever the loss scale."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            yield batch * 1e4 if number in TOO_LARGE else batch


def test_boundaries_and_what_deltas_cover_count_completed_steps_alone(tmp_path):
    repository, stream = repository_with(), Bursts()
    inner = replace(INNER, precision="fp16")
    life = begin(repository, tmp_path, stream=stream, inner=inner, steps=8)
    report = life.node.run()
    assert report.overflows >= len(TOO_LARGE)
    assert (report.local_steps, stream.position) == (8, 8 + report.overflows)
    assert report.tokens == 8 * 8
    commit = repository.head_commit()
    cards = []
    for entry in repository.list_files("nodes", commit=commit):
        if parse_delta_path(entry.path) is not None:
            content = repository.read(entry.path, commit=commit, limit=1 << 20)
            metadata = parse_header(content, file_size=len(content)).metadata
            cards.append(DeltaCard.from_header(metadata, path=entry.path))
    assert [(card.local_step, str(card.covers), card.tokens) for card in cards] == [
        (4, "1-4", 32),
        (8, "5-8", 32),
    ]
    assert Counter(step for card in cards for step in card.covers or ()) == Counter(range(1, 9))
