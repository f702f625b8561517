"""A master from its first global to its last, over a repository in memory."""

from master_scene import claim, delta, deltas_listed, lead, merged_of, published, send

from ray_diloco.hub.memory import MemoryRepository


def test_deltas_that_lie_there_are_merged_in_one_round(tmp_path):
    repository = MemoryRepository()
    send(repository, claim("a", "done"), claim("b", "done"), delta("a", 10), delta("b", 10))
    report = lead(repository, tmp_path, expected=("a", "b"))
    assert merged_of(report) == {"a": "1-10", "b": "1-10"}
    assert report.outer_steps == 1
    assert deltas_listed(repository) == []
    card = published(repository)
    assert (card.outer_step, card.closed, card.stop) == (1, True, "every node is done")
