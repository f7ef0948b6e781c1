"""The parts of a step as one kernel: places, memory, how work is cut and shared out."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pstn.train.fleet.resident import kernel, team
from pstn.train.fleet.resident.index import Index, Place, split, strides
from pstn.train.fleet.resident.products import MOST, WARPS, _cut
from pstn.train.fleet.resident.team import part_of
from pstn.train.fleet.resident.values import Unsupported
from pstn.train.fleet.resident.writer import Scratch, Writer


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_place_in_an_array_and_in_a_row_are_the_same(shape, data):
    writer = Writer()
    total = math.prod(shape)
    parts = split(writer, writer.argument("i", total), shape)
    assert Place(tuple(shape), parts).row() == Index.of("i") if total > 1 else True
    i = data.draw(st.integers(0, total - 1))
    known = {"i": i}
    for line in writer.lines:  # const auto v1 = int(unsigned(i) / 3u);
        name, _, text = line.strip().removeprefix("const auto ").removesuffix(";").partition(" = ")
        known[name] = eval(text.replace("u)", ")").replace("unsigned", "").replace("/", "//"), {"int": int}, known)
    found = [sum(known[name] * factor for name, factor in part.terms) + part.constant for part in parts]
    assert found == [int(n) for n in torch.unravel_index(torch.tensor(i), tuple(shape))]


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 9), st.integers(0, 9)), max_size=12), st.integers(0, 500))
def test_scratch_memory_is_used_again_but_not_at_once(pieces, shared):
    scratch = Scratch()
    for size, a, b in pieces:
        n = scratch.new(size)
        scratch.first[n], scratch.last[n] = min(a, b), max(a, b)
    scratch.open = {n for n in range(len(pieces)) if n % 4 == 3}
    begins, here, there, seen = scratch.laid_out(shared)
    assert here <= shared
    spans = {}
    for n, text in begins.items():
        arena, _, at = text.partition(" + ")
        spans[n] = arena, int(at), int(at) + scratch.sizes[n]
        assert spans[n][2] <= {"H": here, "S": there, "R": seen}[arena]
        assert (arena == "R") is (n in scratch.open)
    for a in spans:
        for b in spans:
            together = scratch.first[a] <= scratch.last[b] and scratch.first[b] <= scratch.last[a]
            together |= a in scratch.open  # others may still look at it
            if a < b and together and spans[a][0] == spans[b][0]:
                assert spans[a][2] <= spans[b][1] or spans[b][2] <= spans[a][1]


@given(st.integers(1, 400), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([1, 4]))
def test_products_are_cut_within_what_a_warp_can_hold(rows, columns, depth, rights):
    down, across, pieces = _cut(rows, columns, depth, rights, 1, 1)
    assert down in (1, 2)
    assert across * rights <= max(MOST, rights)
    assert 1 <= pieces <= (WARPS if rights == 1 else 1)
    assert pieces == 1 or -(-depth // 8) >= 4 * pieces


def test_strides_are_those_of_torch():
    assert strides((2, 3, 4)) == torch.empty(2, 3, 4).stride()


@pytest.mark.parametrize(
    ("major", "hip", "bytes", "numbers"),
    [(9, None, 232_448, 57_344), (8, None, 101_376, 25_088), (7, None, 98_304, 0), (9, "6.0", 65_536, 0)],
)
def test_a_kernel_shares_what_memory_there_is(major, hip, bytes, numbers, monkeypatch):
    """Graphics cards have less of it than servers', older ones other tensor cores."""
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert kernel.shared_memory(torch.device("cuda")) == numbers
    assert 4 * numbers < bytes


def test_parts_of_noise_are_those_of_their_examples():
    """Of two samples of four examples each, which lie behind one another, and of one number an example."""
    whole = torch.arange(16).view(8, 2)
    part = part_of((8, 2), (4, 2), 4, 2)
    assert part.cut(whole, 1)[:, 0].tolist() == [4, 6, 12, 14]
    assert part_of((4, 3), (2, 3), 4, 2).cut(torch.arange(12).view(4, 3), 1)[:, 0].tolist() == [6, 9]
    assert part_of((5, 3), (5, 3), 4, 2) is None
    for wrong in ((3, 3), (1, 3)):
        with pytest.raises(Unsupported):
            part_of((4, 3), wrong, 4, 2)


@pytest.mark.parametrize(
    ("size", "samples", "most", "blocks"),
    [(8, 1, 8, 2), (8, 4, 8, 8), (8, 4, 4, 4), (8, 4, 1, 1), (6, 4, 8, 2), (5, 10, 8, 1), (64, 10, 8, 8), (2, 1, 8, 1)],
)
def test_how_many_blocks_share_a_batch(size, samples, most, blocks):
    assert team.team(size, samples, most) == blocks
