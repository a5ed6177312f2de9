"""Host memory, reused: `allocate(nbytes)` returns an address, `free(address)` keeps the block.

Fresh pages cost more than most kernels (the system zeroes each one at its first touch), so freed blocks are
kept, up to a limit.  Blocks are aligned to 64 bytes, from 64 KiB on to pages, from 2 MiB on to huge pages,
which the system is asked for.  Sizes are rounded up to eight classes per power of two; a large block serves
any request that leaves less than an eighth of it unused.

Safe for threads, for forks, and for finalizers that free while this thread is inside `allocate`.
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


class MemoryStatistics(NamedTuple):
    """Bytes in use, bytes kept for reuse, the most that were in use, and the limit (None: no limit)."""

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
        As above; may be changed at any time, and holds from the next allocation on.
    """

    def __init__(self, limit: int | None = None, cache_limit: int | None = None) -> None:
        self.limit = limit
        self.cache_limit = _default_cache_limit() if cache_limit is None else cache_limit
        self._lock = threading.Lock()
        self._used = self._cached = self._peak = 0
        self._sizes: dict[int, int] = {}  # of every block in use
        self._small: dict[int, list[int]] = {}  # kept blocks by size class
        self._large: list[tuple[int, int]] = []  # kept mappings: (size, address), sorted
        self._mappings: dict[int, mmap.mmap] = {}  # address of a large block -> its mapping
        self._deferred: collections.deque[int] = collections.deque()  # freed while the lock was taken
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
        shift = max(6, (nbytes - 1).bit_length() - 4)
        size = ((nbytes - 1 >> shift) + 1) << shift
        with self._lock:
            if self._deferred:
                self._free_deferred()
            if size < _LARGE and (kept := self._small.get(size)):
                address = kept.pop()
                self._cached -= size
            else:
                size, address = self._allocate_slowly(nbytes, size)
            self._sizes[address] = size
            self._used += size
            if self._used > self._peak:
                self._peak = self._used
            return address

    def free(self, address: int) -> None:
        """Take back a block.

        Raises
        ------
        DeviceError
            If no block in use starts at the address (freed twice, or never allocated here).
        """
        # Without waiting: a finalizer may run at any point, also inside `allocate` of this thread, and must
        # not wait for a lock that its own thread holds.
        if not self._lock.acquire(blocking=False):
            if address not in self._sizes or address in self._deferred:
                raise _not_in_use(address)
            self._deferred.append(address)
            return
        try:
            self._free(address)
            if self._deferred:
                self._free_deferred()
        finally:
            self._lock.release()

    def size(self, address: int) -> int | None:
        """Return the bytes of the block in use at the address, or None if there is none."""
        return self._sizes.get(address)

    def release(self) -> int:
        """Return all kept blocks to the system; return how many bytes that were."""
        with self._lock:
            self._free_deferred()
            return self._release()

    def statistics(self) -> MemoryStatistics:
        """Return what is used, kept and was used at most, in bytes."""
        with self._lock:
            self._free_deferred()
            return MemoryStatistics(self._used, self._cached, self._peak, self.limit)

    # What follows runs with the lock held.

    def _allocate_slowly(self, nbytes: int, size: int) -> tuple[int, int]:
        if size >= _LARGE:
            size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            at = bisect.bisect_left(self._large, (size, 0))
            if at < len(self._large) and self._large[at][0] - size < size // 8:
                found = self._large.pop(at)
                self._cached -= found[0]
                return found
        address = self._obtain(size)
        if address is None:
            used, cached = self._used, self._release()
            address = self._obtain(size)
            if address is None:
                limit = "the system has no more" if self.limit is None else f"the limit is {self.limit}"
                raise OutOfMemoryError(
                    f"no room for {nbytes} bytes of host memory: {used} bytes are in use, {limit}; "
                    f"{cached} kept bytes were released, which was not enough"
                )
        return size, address

    def _obtain(self, size: int) -> int | None:
        if size > _MAX_BYTES or (self.limit is not None and self._used + self._cached + size > self.limit):
            return None
        if size < _LARGE:
            return _aligned_malloc(mmap.PAGESIZE if size >= 1 << 16 else 64, size)
        # Address space for alignment to huge pages; what is not touched takes no memory.
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
        self._mappings[address] = mapping
        return address

    def _free(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is None:
            raise _not_in_use(address)
        self._used -= size
        if self._cached + size > self.cache_limit:
            self._release()
            if size > self.cache_limit:
                self._return(address)
                return
        self._cached += size
        if size >= _LARGE:
            bisect.insort(self._large, (size, address))
        elif (kept := self._small.get(size)) is not None:
            kept.append(address)
        else:
            self._small[size] = [address]

    def _free_deferred(self) -> None:
        while self._deferred:
            self._free(self._deferred.popleft())

    def _release(self) -> int:
        released = self._cached
        small, large = self._small, self._large
        self._small, self._large, self._cached = {}, [], 0
        for kept in small.values():
            for address in kept:
                _aligned_free(address)
        for _, address in large:
            self._return(address)
        return released

    def _return(self, address: int) -> None:
        mapping = self._mappings.pop(address, None)
        if mapping is None:
            _aligned_free(address)
        else:
            mapping.close()


def _not_in_use(address: int) -> DeviceError:
    return DeviceError(f"no block in use starts at {address:#x}: it was freed twice, or not allocated here")


# ----------------------------------------------------------------------------------------------------
# Aligned memory of the C library

if sys.platform == "win32":
    _ucrt = ctypes.CDLL("ucrtbase")
    _ucrt._aligned_malloc.restype = ctypes.c_void_p
    _ucrt._aligned_malloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    _ucrt._aligned_free.argtypes = [ctypes.c_void_p]

    def _aligned_malloc(alignment: int, size: int) -> int | None:
        address: int | None = _ucrt._aligned_malloc(size, alignment)
        return address

    def _aligned_free(address: int) -> None:
        _ucrt._aligned_free(address)

else:
    _libc = ctypes.CDLL(None)
    _libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    _libc.free.argtypes = [ctypes.c_void_p]
    _libc.free.restype = None

    def _aligned_malloc(alignment: int, size: int) -> int | None:
        address = ctypes.c_void_p()
        failed = _libc.posix_memalign(ctypes.addressof(address), alignment, size)
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
