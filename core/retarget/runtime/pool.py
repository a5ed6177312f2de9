"""The thread pool for the chunks of CPU kernels: `thread_pool().run(function, buffers, variables, chunks)`.

The pool itself is `pool.ll`: claiming, completion and sleeping happen in machine code without the GIL.  Its
workers are Python daemon threads that spend their lives inside one call, so that no C compiler and no
thread library of our own are needed.  The code is compiled once by llvmlite and kept in the disk cache.
Where futexes or llvmlite are missing, `PortablePool` does the same with Python threads, about 20 times
slower to start.

One job at a time: a concurrent or nested call runs its chunks on its own thread, so cores are never
oversubscribed.  After a fork the child makes its own workers.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import platform
import queue
import struct
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _cffi_backend import (
    FFI,
)  # the compiled half of cffi; `cffi.FFI` would import a C parser that is not needed

from ..errors import UserError
from .diskcache import digest, disk_cache
from .objects import LoadedObject, ObjectError, load_object

__all__ = ["MAX_CHUNKS", "FutexPool", "Pool", "PortablePool", "thread_pool", "usable_cores"]

MAX_CHUNKS = 2**31 - 1
"""The most chunks that one run can have; ranges are kept as two 32-bit halves of a word."""

_ffi = FFI()
_KERNEL_TYPE = _ffi.typeof("void(*)(uintptr_t, uintptr_t, int64_t, int64_t)")

_SPIN = 2000
"""Turns of a waiting thread before it sleeps: about 50 us, more than Python needs between launches."""

# What pool.ll leaves to the target: the number of the futex system call, and the hint for spin loops.
_TARGETS = {
    "x86_64": """
@futex_number = internal constant i64 202
declare void @llvm.x86.sse2.pause()
define internal void @relax() {
  call void @llvm.x86.sse2.pause()
  ret void
}""",
    "aarch64": """
@futex_number = internal constant i64 98
declare void @llvm.aarch64.isb(i32)
define internal void @relax() {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}""",
}


class Pool(ABC):
    """A fixed number of threads, the caller of `run` included.

    Attributes
    ----------
    threads
        How many threads a run may use.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise UserError(f"a pool needs at least one thread, not {threads}")
        self.threads = threads
        self._running = False
        self._starting = threading.Lock()
        _pools.add(self)

    @abstractmethod
    def run(self, function: int, buffers: int, variables: int, chunks: int) -> None:
        """Call the kernel at address `function` for every chunk in [0, chunks), and return when all are done.

        Parameters
        ----------
        function
            Address of `void kernel(void **buffers, int64_t *variables, int64_t begin, int64_t end)`.
        buffers, variables
            Addresses that are passed on.
        chunks
            At most `MAX_CHUNKS`.  A call gets one or more neighbouring chunks; each chunk runs exactly once.
        """

    @abstractmethod
    def _workers(self) -> list[Callable[[], object]]:
        """Prepare the pool for its first job, and return what each worker runs."""

    def _start(self) -> None:
        with self._starting:
            if self._running:
                return
            for number, body in enumerate(self._workers(), 1):
                try:
                    threading.Thread(target=body, name=f"retarget-worker-{number}", daemon=True).start()
                except RuntimeError:  # the system has no more threads: the others take over the chunks
                    break
            self._running = True

    def _forget_workers(self) -> None:
        """Called in the child of a fork, where no worker exists: the next run makes new ones."""
        self._running = False
        self._starting = threading.Lock()


class FutexPool(Pool):
    """The pool of `pool.ll`; Linux only."""

    def __init__(self, threads: int) -> None:
        code = _pool_code()
        super().__init__(threads)
        self._code = code
        self._memory = mmap.mmap(-1, 256 + 64 * threads, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._state = int(_ffi.cast("uintptr_t", _ffi.from_buffer(self._memory)))
        self._run = _ffi.cast(
            "void(*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t)", code.symbol("pool_run")
        )
        stop = _ffi.cast("void(*)(uintptr_t)", code.symbol("pool_stop"))
        # Not at exit: the process may end with workers asleep.
        weakref.finalize(self, _stop, stop, self._state, code, self._memory).atexit = False

    def run(self, function: int, buffers: int, variables: int, chunks: int) -> None:
        if not self._running:
            self._start()
        self._run(self._state, function, buffers, variables, chunks)

    def _workers(self) -> list[Callable[[], object]]:
        self._memory[:] = bytes(len(self._memory))
        self._memory[32:48] = struct.pack("<QQ", self.threads, _SPIN)
        work = _ffi.cast("void(*)(uintptr_t, int64_t)", self._code.symbol("pool_work"))
        # A worker keeps code and memory alive, not the pool: a pool that nobody refers to stops its workers.
        keep = (self._code, self._memory)
        return [functools.partial(_work, work, self._state, n, keep) for n in range(1, self.threads)]


def _work(work: Any, state: int, number: int, keep: object) -> None:
    work(state, number)


def _stop(stop: Any, state: int, code: LoadedObject, memory: mmap.mmap) -> None:
    stop(state)


class PortablePool(Pool):
    """The same in Python: for systems without futexes, and where llvmlite is missing."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._reset()

    def _reset(self) -> None:
        self._busy = threading.Lock()
        self._claiming = threading.Lock()
        self._wakes: list[queue.SimpleQueue[None]] = [queue.SimpleQueue() for _ in range(self.threads - 1)]
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ranges = [(0, 0)] * self.threads
        self._left = 0
        self._job: Callable[[int, int], None] | None = None

    def run(self, function: int, buffers: int, variables: int, chunks: int) -> None:
        if not self._running:
            self._start()
        kernel = _ffi.cast(_KERNEL_TYPE, function)
        if chunks < 1:
            return
        if not self._busy.acquire(blocking=False):
            kernel(buffers, variables, 0, chunks)
            return
        try:
            with self._claiming:
                self._job = functools.partial(kernel, buffers, variables)
                self._left = chunks
                ends = [chunks * (n + 1) // self.threads for n in range(self.threads)]
                self._ranges = list(zip([0, *ends[:-1]], ends, strict=True))
            for wake in self._wakes[: chunks - 1]:
                wake.put(None)
            self._work(0)
            self._finished.get()
        finally:
            self._busy.release()

    def _workers(self) -> list[Callable[[], object]]:
        return [
            functools.partial(_portable_worker, weakref.ref(self), n + 1, w)
            for n, w in enumerate(self._wakes)
        ]

    def _work(self, me: int) -> None:
        done = 0
        while True:
            with self._claiming:
                self._left -= done
                if done and not self._left:
                    self._finished.put(None)
                owners = [*range(me, self.threads), *range(me)]
                owner = next((n for n in owners if self._ranges[n][0] < self._ranges[n][1]), None)
                job = self._job
                if owner is None or job is None:
                    return
                begin, end = self._ranges[owner]
                done = max(1, (end - begin) // 4)
                self._ranges[owner] = (begin + done, end)
            job(begin, begin + done)

    def _forget_workers(self) -> None:
        super()._forget_workers()
        self._reset()

    def __del__(self) -> None:
        for wake in getattr(self, "_wakes", ()):
            wake.put(None)


def _portable_worker(pool: weakref.ref[PortablePool], number: int, wake: queue.SimpleQueue[None]) -> None:
    while True:
        wake.get()
        alive = pool()
        if alive is None:
            return
        alive._work(number)
        del alive


@functools.cache
def _pool_code() -> LoadedObject:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _TARGETS:
        raise ObjectError(f"the futex pool does not exist on {sys.platform} {machine}")
    text = Path(__file__).with_name("pool.ll").read_text() + _TARGETS[machine]
    cache, key = disk_cache(), digest("pool", text, _llvmlite_version(), machine, sys.platform)
    if found := cache.get(key, "object"):
        return load_object(found[1])
    data = _compile(text)
    cache.put(key, "object", {"what": "thread pool"}, data)
    return load_object(data)


def _llvmlite_version() -> bytes:
    """Return what identifies the installed llvmlite, without the cost of importlib.metadata (40 ms)."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ObjectError("the futex pool needs llvmlite (pip install llvmlite)")
    try:
        return Path(spec.origin).with_name("_version.py").read_bytes()
    except OSError as error:
        raise ObjectError(f"the installed llvmlite does not say its version: {error}") from error


def _compile(text: str) -> bytes:
    """Compile IR for any processor of this machine's kind, so that the result may move with the cache."""
    try:
        from llvmlite import binding
    except (ImportError, OSError) as error:
        raise ObjectError(f"the futex pool needs llvmlite, which does not import: {error}") from error
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(text)
    module.verify()
    target = binding.Target.from_default_triple()
    data: bytes = target.create_target_machine(opt=2, reloc="pic", codemodel="small").emit_object(module)
    return data


# ----------------------------------------------------------------------------------------------------
# The process's pool

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_pool: Pool | None = None
_pool_lock = threading.Lock()


def thread_pool() -> Pool:
    """Return this process's pool, made on first use: `RETARGET_THREADS` threads, or one per usable core.

    Raises
    ------
    UserError
        If `RETARGET_THREADS` is not a positive number.
    """
    global _pool
    if (pool := _pool) is not None:
        return pool
    with _pool_lock:
        if _pool is None:
            threads = wanted_threads()
            try:
                _pool = FutexPool(threads)
            except ObjectError:
                _pool = PortablePool(threads)
        return _pool


def wanted_threads() -> int:
    """Return `RETARGET_THREADS` (`UserError` if malformed), or how many cores this process may use."""
    text = os.environ.get("RETARGET_THREADS", "").strip()
    if not text:
        return usable_cores()
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"RETARGET_THREADS is {text!r}; it must be a positive whole number of threads")
    return int(text)


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many cores this process may use, by its affinity mask and its control groups' quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _cgroup_quota(cgroups, membership)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _cgroup_quota(cgroups: Path, membership: Path) -> float | None:
    """Return the smallest quota in cores of the process's group and those around it; None without any."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names: tuple[str, ...]
        if controllers == "":
            root, names = cgroups, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            root, names = cgroups / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        parts = Path(path).parts[1:]
        for depth in range(len(parts) + 1):
            folder = root.joinpath(*parts[:depth])
            try:
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                quotas.append(int(quota) / int(period))
            except (OSError, ValueError):  # no such file, or "max": no quota at this level
                continue
    return min((q for q in quotas if q > 0), default=None)


def _after_fork_in_child() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()
    for pool in _pools:
        pool._forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
