import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.torch import load_file

from ray_diloco.errors import DeltaError, UsageError
from ray_diloco.tensors import codec_block, codec_topk
from ray_diloco.tensors.codec import CODECS, codec_named, delta_layout
from ray_diloco.tensors.delta_file import DeltaReader, write_delta
from ray_diloco.tensors.dtypes import PIECE
from ray_diloco.tensors.schema import StateSchema

LOSSY = sorted(set(CODECS) - {"fp32"})
NUMBERS = arrays.arrays(
    np.float32, st.integers(1, 300), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def through(name: str, piece: torch.Tensor) -> torch.Tensor:
    """What a receiver sees of a piece."""
    codec = CODECS[name]
    encoded = dict(zip([part.suffix for part in codec.parts], codec.encode(piece), strict=True))
    for part in codec.parts:
        assert encoded[part.suffix].numel() == part.count(piece.numel())
    return decoded(name, encoded, piece.numel())


def decoded(name: str, encoded: dict[str, torch.Tensor], numbers: int) -> torch.Tensor:
    def read(suffix: str, into: torch.Tensor) -> None:
        assert encoded[suffix].dtype == into.dtype
        into.copy_(encoded[suffix])

    piece = torch.full((numbers,), torch.nan)
    CODECS[name].decode(read, piece)
    return piece


def normal(numbers: int) -> torch.Tensor:
    return torch.randn(numbers, generator=torch.Generator().manual_seed(numbers))


def largest_of_blocks(piece: torch.Tensor) -> torch.Tensor:
    """For each number, the largest magnitude of its block."""
    blocks = [block.abs().max().expand_as(block) for block in piece.split(codec_block.BLOCK)]
    return torch.cat(blocks)


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_eight_and_four_bit_levels_are_off_by_at_most_half_a_step(array):
    piece = torch.from_numpy(array.copy())
    largest = largest_of_blocks(piece)
    for name, levels in (("int8", 127), ("int4", 7)):
        error = (through(name, piece) - piece).abs()
        assert bool((error <= largest * (0.5 / levels + 1e-6) + 1e-44).all())


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_an_exponent_alone_is_off_by_at_most_half_the_gap_between_the_levels_around(array):
    piece = torch.from_numpy(array.copy())
    largest = largest_of_blocks(piece)
    levels = codec_block.E3M0 * largest[:, None]
    nearest = (levels - piece.abs()[:, None]).abs().amin(dim=1)
    error = (through("fp4_e3m0", piece) - piece).abs()
    assert bool((error <= nearest + 1e-6 * largest + 1e-44).all())


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_halves_are_off_by_half_a_unit_in_the_last_place(array):
    piece = torch.from_numpy(array.copy())
    assert bool(((through("bf16", piece) - piece).abs() <= piece.abs() * 2**-8 + 1e-40).all())
    within = piece.clamp(-65504, 65504)
    error = (through("fp16", within) - within).abs()
    assert bool((error <= (within.abs() * 2**-11).clamp(min=2**-25)).all())


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_never_hidden(name, value):
    piece = normal(300)
    piece[150] = value
    found = through(name, piece)
    assert not bool(found[128:256].isfinite().all())
    rest = found[:128] if name in ("int8", "int4", "fp4_e3m0") else found[:0]
    assert bool(rest.isfinite().all())


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("numbers", [1, 127, 128, 129, 4095, 4097, PIECE])
def test_zeros_stay_zeros_and_the_largest_number_of_all_survives(name, numbers):
    assert not through(name, torch.zeros(numbers)).any()
    piece = normal(numbers)
    place = int(piece.abs().argmax())
    assert through(name, piece)[place] == pytest.approx(float(piece[place]), rel=2**-8)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("size", [1e-42, 3e38])
def test_the_ends_of_the_range_of_numbers_stay_finite(name, size):
    found = through(name, torch.tensor([size, -size, size / 2]))
    assert bool(found.isfinite().all())
    assert bool((found.abs() <= size * 1.01).all())


@pytest.mark.parametrize(("name", "one_in"), [("topk_8", 8), ("topk", 32), ("topk_128", 128)])
def test_topk_keeps_the_largest_of_each_block_as_bf16_and_drops_the_rest(name, one_in):
    piece = normal(3 * codec_topk.BLOCK + 100)
    found = through(name, piece)
    blocks = zip(piece.split(codec_topk.BLOCK), found.split(codec_topk.BLOCK), strict=True)
    for block, kept in blocks:
        count = -(-block.numel() // one_in)
        chosen = block.abs().topk(count).indices
        expected = torch.zeros_like(block)
        expected[chosen] = block[chosen].bfloat16().float()
        assert torch.equal(kept, expected)


@pytest.mark.parametrize("places", [[3, 2], [1, 1], [-1, 4], [5, 64]])
def test_places_that_a_block_does_not_have_make_it_not_finite(places):
    encoded = {
        codec_topk.PLACES: torch.tensor(places, dtype=torch.int16),
        codec_topk.VALUES: torch.ones(2, dtype=torch.bfloat16),
    }
    assert bool(decoded("topk", encoded, 64).isnan().all())


@pytest.mark.parametrize("name", LOSSY)
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 200))
def test_error_feedback_keeps_the_sum(name, seed, numbers):
    """All that was sent plus what is not sent yet is all that was to be sent."""
    generator = torch.Generator().manual_seed(seed)
    unsent = torch.zeros(numbers)
    wanted, sent = torch.zeros(numbers, dtype=torch.float64), torch.zeros(numbers).double()
    for _ in range(6):
        step = torch.randn(numbers, generator=generator)
        wanted += step
        unsent += step
        delta = through(name, unsent)
        sent += delta
        unsent -= delta
    assert torch.allclose(sent + unsent, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "int4", "fp4_e3m0", "topk_8"])
def test_without_new_steps_error_feedback_brings_all_of_it_in_the_end(name):
    wanted = normal(200)
    unsent = wanted.clone()
    for _ in range(12):
        unsent -= through(name, unsent)
    assert float(unsent.abs().max()) < 1e-2 * float(wanted.abs().max())


def states():
    module = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    baseline = {name: value.detach().clone() for name, value in module.state_dict().items()}
    baseline["2.turn"] = torch.randn(3, 5, dtype=torch.complex64)
    statistics = [name for name in baseline if "running" in name]
    schema = StateSchema.of_state(baseline, statistics=statistics)
    current = {
        name: value - normal(value.numel()).view(value.shape)
        if value.is_floating_point()
        else value
        for name, value in baseline.items()
    }
    current["2.turn"] = baseline["2.turn"] + 1j
    return baseline, current, schema


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_file_in_every_codec_is_plain_safetensors_with_the_planned_layout(tmp_path, name):
    baseline, current, schema = states()
    written = write_delta(
        tmp_path / "d",
        baseline=baseline,
        current=current,
        schema=schema,
        header={"codec": name},
        codec=name,
    )
    stored = load_file(tmp_path / "d")
    layout = delta_layout(schema, CODECS[name])
    assert {key: (each.dtype, tuple(each.shape)) for key, each in stored.items()} == layout
    with safe_open(tmp_path / "d", "pt") as opened:
        assert opened.metadata() == {"codec": name, "sha256": written.file.payload_sha256}
    with DeltaReader(tmp_path / "d", schema=schema, codec=name, path="p") as reader:
        for entry in schema.floating:
            whole = torch.empty(entry.numbers)
            for start in range(0, entry.numbers, PIECE):
                reader.read_piece(entry, start, whole[start : start + PIECE])
            difference = torch.empty(entry.numbers)
            wide = (baseline[entry.name] - current[entry.name]).contiguous()
            difference.copy_(
                torch.view_as_real(wide).view(-1) if wide.is_complex() else wide.view(-1)
            )
            if entry.statistics:
                assert torch.equal(whole, difference)
            pieces = [through(name, each) for each in difference.split(PIECE)]
            assert entry.statistics or torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp16", 16),
        ("int8", 8.25),
        ("int4", 4.25),
        ("fp4_e3m0", 4.25),
        ("topk_8", 4),
        ("topk", 1),
        ("topk_128", 0.25),
    ],
)
def test_each_codec_takes_the_bits_that_it_says(name, bits):
    schema = StateSchema.of_state({"w": torch.empty(1024, 1024)})
    layout = delta_layout(schema, CODECS[name]).values()
    size = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in layout)
    assert size * 8 == bits * 1024 * 1024


def test_two_entries_that_want_one_key_are_refused():
    state = {"w": torch.ones(3), "w:scale": torch.ones(3)}
    schema = StateSchema.of_state(state, statistics=["w:scale"])
    delta_layout(schema, CODECS["fp32"])
    with pytest.raises(UsageError, match="w:scale for two entries"):
        delta_layout(schema, CODECS["int8"])


def test_an_unknown_codec_is_refused_and_names_the_known_ones():
    with pytest.raises(DeltaError, match="unknown codec 'gzip'; known are bf16, fp16"):
        codec_named("gzip", path="p")
