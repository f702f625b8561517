import itertools

import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.seeds import generator_for
from ray_diloco.workload.stream import TextStream, even_windows

_TEXT = bytes(range(200))


def stream(*, seed=0, text=_TEXT):
    return TextStream(
        text, batch_size=4, sequence_length=9, generator=generator_for(seed, "data", 0)
    )


def take(batches, count):
    return list(itertools.islice(batches, count))


def test_batches_are_sequences_of_the_shard_with_one_token_more():
    for batch in take(stream(), 20):
        assert (batch.shape, batch.dtype) == ((4, 10), torch.int64)
        assert torch.equal(batch[:, 1:], batch[:, :-1] + 1)


def test_windows_reach_from_the_first_byte_to_the_last():
    seen = torch.cat(take(stream(), 300))
    assert (seen.min(), seen.max()) == (0, 199)


def test_a_stream_depends_on_its_seed_alone():
    one, same, other = (torch.cat(take(stream(seed=seed), 5)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_stream_goes_on_exactly_where_it_was_saved():
    first = stream()
    batches = iter(first)
    take(batches, 3)
    state = first.state_dict()
    following = torch.cat(take(batches, 5))
    resumed = stream(seed=7)
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat(take(resumed, 5)), following)


def test_a_position_in_another_shard_is_refused():
    with pytest.raises(ConfigError, match=r"data\.shard"):
        stream(text=_TEXT[:100]).load_state_dict(stream().state_dict())


def test_a_shard_of_one_sequence_gives_that_sequence():
    batch = next(iter(stream(text=_TEXT[:10])))
    assert batch.tolist() == [list(range(10))] * 4


def test_even_windows_start_with_the_first_byte_and_end_with_the_last():
    windows = even_windows(_TEXT, batches=3, batch_size=2, sequence_length=9)
    assert [batch.shape for batch in windows] == [(2, 10)] * 3
    assert (windows[0][0, 0], windows[-1][-1, -1]) == (0, 199)
