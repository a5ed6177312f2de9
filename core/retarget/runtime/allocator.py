"""Host memory, reused: `allocate(nbytes)` returns an address, `free(address)` keeps the block.

Fresh pages cost more than most kernels (the system zeroes each one at its first touch), so freed blocks are
kept, up to a limit.  Blocks are aligned to 64 bytes, from 64 KiB on to pages, from 2 MiB on to huge pages,
which the system is asked for.  Small sizes are rounded up to eight classes per power of two; a large block
serves any request that leaves less than an eighth of it unused.

Safe for threads, for forks, and for finalizers that free while this thread is inside `allocate`.  Small
blocks change hands without a lock: by one `pop` or `append` of a list, which is atomic.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import weakref
from typing import NamedTuple

from ..errors import DeviceError, OutOfMemoryError, UserError
from .diskcache import parse_size

__all__ = ["Allocator", "MemoryStatistics", "host_allocator"]

_LARGE = 1 << 20
"""Bytes from which a block is a mapping of its own; smaller ones come from the C library."""
_HUGE_PAGE = 2 << 20
_MAX_BYTES = 1 << 62
_CACHE_FRACTION = 4
"""By default, blocks are kept up to a quarter of the machine's memory."""
_SMALL_FRACTION, _SMALL_CLASSES = 8, 128
"""Small blocks may take an eighth of what is kept, shared evenly by their classes (there are 120)."""


class MemoryStatistics(NamedTuple):
    """What an allocator has, in bytes.

    Attributes
    ----------
    used
        In blocks that are in use.
    cached
        In blocks that are kept for reuse.
    peak
        The most that was taken from the system at once, used and kept together.
    limit
        The most that may be; None: no limit.
    """

    used: int
    cached: int
    peak: int
    limit: int | None


class Allocator:
    """A caching allocator of host memory.

    Parameters
    ----------
    limit
        The most bytes that blocks in use and kept blocks may take together; None: what the system gives.
    cache_limit
        The most bytes to keep for reuse; None: `RETARGET_CACHE_MEMORY`, or a quarter of the machine's memory.

    Attributes
    ----------
    limit
        As above; may be changed at any time, and holds for what is taken from the system from then on.
    """

    def __init__(self, limit: int | None = None, cache_limit: int | None = None) -> None:
        self.limit = limit
        self.cache_limit = _default_cache_limit() if cache_limit is None else cache_limit
        small_limit = self.cache_limit // _SMALL_FRACTION
        self._class_limit = small_limit // _SMALL_CLASSES
        self._large_limit = self.cache_limit - small_limit
        self._sizes: dict[int, int] = {}  # of every block in use
        self._small: dict[int, list[int]] = {}  # kept blocks by size class; the lists stay once made
        # The rest is touched with the lock held.
        self._lock = threading.Lock()
        self._large: list[tuple[int, int]] = []  # kept mappings: (size, address), sorted
        self._large_bytes = 0
        self._mappings: dict[int, mmap.mmap] = {}  # address of a large block -> its mapping
        self._held = self._peak = 0  # bytes taken from the system
        self._deferred: collections.deque[tuple[int, int]] = collections.deque()  # to free: (size, address)
        _allocators.add(self)

    def allocate(self, nbytes: int) -> int:
        """Return the address of at least `nbytes` bytes with arbitrary content.

        Raises
        ------
        OutOfMemoryError
            If the limit or the system does not allow it, even after all kept blocks were released.
        """
        if nbytes < 1:
            if nbytes < 0:
                raise UserError(f"cannot allocate {nbytes} bytes")
            nbytes = 1  # an empty array has an address too, and one of its own
        shift = (nbytes - 1).bit_length() - 4
        if shift < 6:
            shift = 6
        size = ((nbytes - 1 >> shift) + 1) << shift
        try:
            address = self._small[size].pop()
        except (KeyError, IndexError):  # no such block is kept, or it is a large one
            return self._allocate_slowly(nbytes, size)
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Take back a block.

        Raises
        ------
        DeviceError
            If no block in use starts at the address (freed twice, or never allocated here).
        """
        try:
            size = self._sizes.pop(address)
        except KeyError:
            raise DeviceError(
                f"no block in use starts at {address:#x}: it was freed twice, or not allocated here"
            ) from None
        kept = self._small.get(size)
        if kept is not None and len(kept) * size < self._class_limit:
            kept.append(address)
        # Without waiting: a finalizer may run at any point, also inside `allocate` of this thread, and must
        # not wait for a lock that its own thread holds.
        elif self._lock.acquire(blocking=False):
            try:
                self._free_slowly(size, address)
                self._free_deferred()
            finally:
                self._lock.release()
        else:
            self._deferred.append((size, address))

    def size(self, address: int) -> int | None:
        """Return the bytes of the block in use at the address, or None if there is none."""
        return self._sizes.get(address)

    def release(self) -> int:
        """Return all kept blocks to the system; return how many bytes that were."""
        with self._lock:
            self._free_deferred()
            return self._release()

    def statistics(self) -> MemoryStatistics:
        """Return how much is used, kept, and was taken at most."""
        with self._lock:
            self._free_deferred()
            used = sum(tuple(self._sizes.values()))
            return MemoryStatistics(used, self._held - used, self._peak, self.limit)

    def _allocate_slowly(self, nbytes: int, size: int) -> int:
        with self._lock:
            self._free_deferred()
            if size < _LARGE:
                self._small.setdefault(size, [])
            else:
                size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
                at = bisect.bisect_left(self._large, (size, 0))
                if at < len(self._large) and self._large[at][0] - size < size // 8:
                    size, address = self._large.pop(at)
                    self._large_bytes -= size
                    self._sizes[address] = size
                    return address
            found, released = self._obtain(size), 0
            if found is None:
                released = self._release()
                found = self._obtain(size)
            if found is None:
                limit = "the system has no more" if self.limit is None else f"the limit is {self.limit}"
                raise OutOfMemoryError(
                    f"no room for {nbytes} bytes of host memory: {self._held} bytes are in use, {limit}; "
                    f"{released} kept bytes were released, which was not enough"
                )
            self._sizes[found] = size
            return found

    # What follows runs with the lock held.

    def _obtain(self, size: int) -> int | None:
        """Take a block from the system, or return None."""
        if size > _MAX_BYTES or (self.limit is not None and self._held + size > self.limit):
            return None
        address = _map_aligned(size, self._mappings) if size >= _LARGE else _aligned_malloc(size)
        if address is not None:
            self._held += size
            self._peak = max(self._peak, self._held)
        return address

    def _free_slowly(self, size: int, address: int) -> None:
        if size < _LARGE or size > self._large_limit:
            self._return(size, address)
            return
        if (
            self._large_bytes + size > self._large_limit
        ):  # what has gathered is of other sizes than now needed
            self._release_large()
        bisect.insort(self._large, (size, address))
        self._large_bytes += size

    def _free_deferred(self) -> None:
        while self._deferred:
            self._free_slowly(*self._deferred.popleft())

    def _release(self) -> int:
        before = self._held
        for size, kept in list(self._small.items()):
            while kept:
                self._return(size, kept.pop())
        self._release_large()
        return before - self._held

    def _release_large(self) -> None:
        while self._large:
            size, address = self._large.pop()
            self._large_bytes -= size
            self._return(size, address)

    def _return(self, size: int, address: int) -> None:
        """Give a block back to the system."""
        self._held -= size
        if size >= _LARGE:
            self._mappings.pop(address).close()
        else:
            _aligned_free(address)


# ----------------------------------------------------------------------------------------------------
# Memory of the system


def _map_aligned(size: int, mappings: dict[int, mmap.mmap]) -> int | None:
    """Map pages, huge ones where they fit; note the mapping under the address, or return None."""
    # Address space for the alignment to huge pages; what is not touched takes no memory.
    huge = size >= _HUGE_PAGE
    length = size + _HUGE_PAGE if huge else size
    try:
        if sys.platform == "win32":
            mapping = mmap.mmap(-1, length)
        else:
            mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError):
        return None
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if huge:
        address = -(-address // _HUGE_PAGE) * _HUGE_PAGE
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary ones do
                mapping.madvise(mmap.MADV_HUGEPAGE)
    mappings[address] = mapping
    return address


def _alignment(size: int) -> int:
    return mmap.PAGESIZE if size >= 1 << 16 else 64


if sys.platform == "win32":
    _ucrt = ctypes.CDLL("ucrtbase")
    _ucrt._aligned_malloc.restype = ctypes.c_void_p
    _ucrt._aligned_malloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    _ucrt._aligned_free.argtypes = [ctypes.c_void_p]

    def _aligned_malloc(size: int) -> int | None:
        address: int | None = _ucrt._aligned_malloc(size, _alignment(size))
        return address

    def _aligned_free(address: int) -> None:
        _ucrt._aligned_free(address)

else:
    _libc = ctypes.CDLL(None)
    _libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    _libc.free.argtypes = [ctypes.c_void_p]
    _libc.free.restype = None

    def _aligned_malloc(size: int) -> int | None:
        address = ctypes.c_void_p()
        failed = _libc.posix_memalign(ctypes.addressof(address), _alignment(size), size)
        return None if failed else address.value

    def _aligned_free(address: int) -> None:
        _libc.free(address)


def _default_cache_limit() -> int:
    text = os.environ.get("RETARGET_CACHE_MEMORY", "").strip()
    if text:
        return parse_size(text, "RETARGET_CACHE_MEMORY")
    return host_memory() // _CACHE_FRACTION


def host_memory() -> int:
    """Return the bytes of physical memory; 4 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30


# ----------------------------------------------------------------------------------------------------
# The process's allocator, and forks: a child must not inherit a lock that another thread holds, nor what
# that thread was changing, so all locks are taken around a fork.

_allocators: weakref.WeakSet[Allocator] = weakref.WeakSet()
_locked: list[Allocator] = []
_process_allocator: Allocator | None = None
_process_lock = threading.Lock()


def host_allocator() -> Allocator:
    """Return the allocator that the CPU devices of this process share."""
    global _process_allocator
    with _process_lock:
        if _process_allocator is None:
            _process_allocator = Allocator()
        return _process_allocator


def _before_fork() -> None:
    _process_lock.acquire()
    for allocator in list(_allocators):
        allocator._lock.acquire()
        _locked.append(allocator)


def _after_fork() -> None:
    while _locked:
        _locked.pop()._lock.release()
    _process_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
