"""Memory that grows: content stays, new memory is zero, and a refusal changes nothing."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from hetero.kernels import region as region_module
from hetero.kernels.region import FixedRegion, Region
from hetero.records import U64

PAGE = mmap.PAGESIZE
HUGE = 1 << 21


def view(region: Region, count: int) -> U64:
    """The region's first uint64, read where a kernel would: by its address."""
    pointer = ctypes.cast(region.address, ctypes.POINTER(ctypes.c_uint64))
    return np.ctypeslib.as_array(pointer, (count,))


@pytest.fixture(params=[True, False], ids=["in place", "by copying"])
def can_grow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param and not region_module._CAN_GROW:
        pytest.skip("this system cannot extend a map")
    monkeypatch.setattr(region_module, "_CAN_GROW", request.param)
    return bool(request.param)


def test_growing_keeps_what_was_there_and_adds_zeros(can_grow: bool) -> None:
    """From less than a page over several sizes into those that stand on huge pages."""
    region, filled = Region(1), 0
    for size in (1, PAGE // 2, PAGE, PAGE + 1, 5 * PAGE, 3 * HUGE, 3 * HUGE + 1, 8 * HUGE):
        region.grow(size)
        assert region.size >= size
        words = region.size // 8
        memory = view(region, words)
        np.testing.assert_array_equal(memory[:filled], np.arange(filled, dtype=np.uint64) ** 2)
        assert not memory[filled:].any()
        memory[:] = np.arange(words, dtype=np.uint64) ** 2
        filled = words


def test_growing_to_less_changes_nothing(can_grow: bool) -> None:
    region = Region(3 * PAGE)
    before = (region.size, region.address)
    region.grow(1)
    region.grow(3 * PAGE)
    assert (region.size, region.address) == before


@pytest.mark.parametrize("size", [1, 2 * PAGE, 3 * HUGE])
def test_clearing_gives_zeros(can_grow: bool, size: int) -> None:
    region = Region(2 * PAGE)
    view(region, 2)[:] = 7
    region.clear(size)
    assert region.size >= size
    assert not view(region, region.size // 8).any()


def test_large_regions_stand_on_whole_huge_pages() -> None:
    """A move of an unaligned region, or one that ends inside a huge page, would leave it on small pages for good."""
    if not region_module._CAN_GROW:
        pytest.skip("this system cannot extend a map")
    region = Region(PAGE)
    for size in range(HUGE, 40 * HUGE, 3 * HUGE + 17 * PAGE):
        region.grow(size)
        if size >= 2 * HUGE:
            assert region.size % HUGE == 0
            assert region.size - size < HUGE


@pytest.mark.parametrize("larger", [3 * PAGE, 3 * HUGE])
def test_a_refusal_leaves_a_region_as_it_was(can_grow: bool, monkeypatch: pytest.MonkeyPatch, larger: int) -> None:
    region = Region(PAGE)
    view(region, 4)[:] = [1, 2, 3, 4]
    before = (region.size, region.address)

    def refuse(*_: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(region_module, "_mapped", refuse)
    with pytest.raises(OSError, match="Cannot allocate"):
        region.clear(larger)
    if not can_grow or larger > HUGE:
        with pytest.raises(OSError, match="Cannot allocate"):
            region.grow(larger)
    assert (region.size, region.address) == before
    assert view(region, 4).tolist() == [1, 2, 3, 4]


def test_more_memory_than_there_can_be_is_refused_by_the_system() -> None:
    region = Region(5 * HUGE)
    view(region, 2)[:] = [5, 6]
    with pytest.raises((OSError, OverflowError)):
        region.grow(1 << 60)
    assert view(region, 2).tolist() == [5, 6]


def test_memory_of_a_fixed_size_begins_at_a_huge_page_and_takes_no_more() -> None:
    for size in (1, 5000, HUGE - 1, HUGE, (5 << 20) + 1):
        region = FixedRegion(size)
        assert size <= region.size < size + PAGE
        assert region.address % (HUGE if region.size >= HUGE else PAGE) == 0
        words = np.ctypeslib.as_array((ctypes.c_uint8 * region.size).from_address(region.address))
        assert not words.any()
        words[:] = 7
        assert words.sum(dtype=np.int64) == 7 * region.size
