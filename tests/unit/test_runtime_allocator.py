"""The caching allocator of host memory."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retarget.errors import DeviceError, OutOfMemoryError, UserError
from retarget.runtime.allocator import Allocator

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [
        (0, 64),
        (1, 64),
        (65, 64),
        (1000, 64),
        (70_000, 4096),
        (MIB - 1, 4096),
        (MIB, 4096),
        (3 * MIB + 1, 2 * MIB),
    ],
)
def test_alignment_and_room(nbytes: int, alignment: int) -> None:
    allocator = Allocator()
    address = allocator.allocate(nbytes)
    assert address % alignment == 0
    size = allocator.size(address)
    assert size is not None and nbytes <= size <= max(64, nbytes + nbytes // 8 + 4096)
    ctypes.memset(address, 0x5A, size)
    assert ctypes.string_at(address + size - 1, 1) == b"\x5a"
    allocator.free(address)
    assert allocator.statistics().used == 0


def test_empty_blocks_have_addresses_of_their_own() -> None:
    allocator = Allocator()
    assert allocator.allocate(0) != allocator.allocate(0)


@pytest.mark.parametrize("nbytes", [100, 100_000, 5 * MIB])
def test_freed_block_is_reused(nbytes: int) -> None:
    allocator = Allocator()
    address = allocator.allocate(nbytes)
    allocator.free(address)
    assert allocator.statistics().cached >= nbytes
    assert allocator.allocate(nbytes - nbytes // 500) == address
    assert allocator.statistics().cached == 0


def test_limit() -> None:
    """A kept block gives way to a new one; what does not fit raises, and changes nothing."""
    allocator = Allocator(limit=1 << 30)
    allocator.free(allocator.allocate(1 << 29))
    second = allocator.allocate(int(0.8 * (1 << 30)))
    baseline = allocator.statistics()
    assert baseline.cached == 0 and baseline.used <= 1 << 30
    with pytest.raises(
        OutOfMemoryError, match=rf"{2 << 30} bytes.*{baseline.used} bytes are in use.*{1 << 30}"
    ) as error:
        allocator.allocate(2 << 30)
    assert isinstance(error.value, MemoryError)
    assert allocator.statistics().used == baseline.used
    allocator.free(allocator.allocate(100))
    allocator.free(second)
    assert allocator.statistics().used == 0
    assert allocator.allocate(1 << 30)


def test_more_than_the_system_has() -> None:
    allocator = Allocator()
    for nbytes in (1 << 50, 1 << 62, 1 << 64, 1 << 100):
        with pytest.raises(OutOfMemoryError, match=str(nbytes)):
            allocator.allocate(nbytes)
    assert allocator.statistics()[:2] == (0, 0)


def test_negative_size() -> None:
    with pytest.raises(UserError, match="-1"):
        Allocator().allocate(-1)


def test_freeing_twice_is_an_error() -> None:
    allocator = Allocator()
    address = allocator.allocate(10)
    allocator.free(address)
    with pytest.raises(DeviceError, match="freed twice"):
        allocator.free(address)


def test_cache_limit() -> None:
    allocator = Allocator(cache_limit=3 * MIB)
    blocks = [allocator.allocate(2 * MIB) for _ in range(4)] + [allocator.allocate(8 * MIB)]
    for block in blocks:
        allocator.free(block)
        assert allocator.statistics().cached <= 3 * MIB
    assert allocator.statistics().used == 0


@pytest.mark.parametrize(("text", "limit"), [("1000", 1000), ("2M", 2 * MIB), ("0", 0)])
def test_cache_limit_variable(monkeypatch: pytest.MonkeyPatch, text: str, limit: int) -> None:
    monkeypatch.setenv("RETARGET_CACHE_MEMORY", text)
    assert Allocator().cache_limit == limit


def test_statistics_and_release() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(1024), allocator.allocate(4 * MIB)
    used = allocator.statistics().used
    assert used == 1024 + 4 * MIB
    allocator.free(first)
    allocator.free(second)
    assert allocator.statistics() == (0, used, used, None)
    assert allocator.release() == used
    assert allocator.statistics() == (0, 0, used, None)


def test_free_inside_allocate_of_the_same_thread() -> None:
    """A finalizer that runs while the lock is held must not wait for it."""
    allocator = Allocator()
    address, other = allocator.allocate(2 * MIB), allocator.allocate(64)
    with allocator._lock:
        allocator.free(address)
        with pytest.raises(DeviceError):
            allocator.free(address)
        with pytest.raises(DeviceError):
            allocator.free(12345)
    assert allocator.statistics().used == 64
    allocator.free(other)
    assert allocator.statistics().used == 0


def test_threads() -> None:
    """No block is handed out twice: each thread finds what it wrote."""
    allocator = Allocator(cache_limit=8 * MIB)
    wrong: list[tuple[int, bytes]] = []

    def work(mark: int) -> None:
        for i in range(400):
            nbytes = (64, 700, 9000, 2 * MIB)[i % 4]
            blocks = [allocator.allocate(nbytes) for _ in range(3)]
            for block in blocks:
                ctypes.memset(block, mark, 64)
            for block in blocks:
                if (seen := ctypes.string_at(block, 64)) != bytes([mark]) * 64:
                    wrong.append((mark, seen))
                allocator.free(block)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert allocator.statistics().used == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_while_other_threads_allocate() -> None:
    allocator, stop = Allocator(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            allocator.free(allocator.allocate(5000))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for _ in range(10):
                        allocator.free(allocator.allocate(5000))
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_has_memory_of_its_own() -> None:
    allocator = Allocator()
    address = allocator.allocate(4 * MIB)
    ctypes.memset(address, 1, 4 * MIB)
    child = os.fork()
    if child == 0:
        ctypes.memset(address, 2, 4 * MIB)
        os._exit(0)
    os.waitpid(child, 0)
    assert ctypes.string_at(address, 1) == b"\1"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 * MIB), st.booleans()), max_size=40))
def test_blocks_never_overlap(steps: list[tuple[int, bool]]) -> None:
    allocator = Allocator(cache_limit=6 * MIB)
    live: dict[int, int] = {}
    for nbytes, drop in steps:
        address = allocator.allocate(nbytes)
        size = allocator.size(address)
        assert size is not None
        assert all(address + size <= a or a + s <= address for a, s in live.items())
        live[address] = size
        if drop:
            oldest = next(iter(live))
            del live[oldest]
            allocator.free(oldest)
        assert allocator.statistics().used == sum(live.values())
    for address in live:
        allocator.free(address)
    assert allocator.statistics().used == 0
