"""The thread pool: every chunk runs exactly once, whoever calls, and a fork gets workers of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from _cffi_backend import FFI

from retarget.errors import UserError
from retarget.runtime import pool as pool_module
from retarget.runtime.objects import LoadedObject, load_object
from retarget.runtime.pool import FutexPool, Pool, PortablePool, thread_pool, usable_cores

ffi = FFI()
LINUX = sys.platform == "linux"
POOLS = [FutexPool, PortablePool] if LINUX else [PortablePool]

# count: out[i] += 1 for each chunk.  meet: spins until variables[0] chunks have begun, or adds 1000.
KERNELS = """
define void @count(ptr %buffers, ptr %variables, i64 %begin, i64 %end) {
entry:
  %out = load ptr, ptr %buffers
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i8, ptr %out, i64 %i
  %old = load i8, ptr %at
  %new = add i8 %old, 1
  store i8 %new, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @meet(ptr %buffers, ptr %variables, i64 %begin, i64 %end) {
entry:
  %begun = load ptr, ptr %buffers
  %wanted = load i64, ptr %variables
  %chunks = sub i64 %end, %begin
  %before = atomicrmw add ptr %begun, i64 %chunks seq_cst
  br label %loop
loop:
  %turn = phi i64 [ 0, %entry ], [ %next, %loop ]
  %now = load atomic i64, ptr %begun seq_cst, align 8
  %met = icmp sge i64 %now, %wanted
  %next = add i64 %turn, 1
  %late = icmp sgt i64 %next, 2000000000
  %leave = or i1 %met, %late
  br i1 %leave, label %done, label %loop
done:
  br i1 %met, label %exit, label %alone
alone:
  %mark = atomicrmw add ptr %begun, i64 1000 seq_cst
  br label %exit
exit:
  ret void
}
"""


@pytest.fixture(scope="module")
def kernels() -> LoadedObject:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return load_object(machine.emit_object(binding.parse_assembly(KERNELS)))


class Job:
    """Arguments of a kernel over `chunks` counters of one byte."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.out = ffi.new("uint8_t[]", chunks)
        self.pointers = ffi.new("uintptr_t[1]", [int(ffi.cast("uintptr_t", self.out))])
        self.variables = ffi.new("int64_t[1]")
        self.addresses = [int(ffi.cast("uintptr_t", x)) for x in (self.pointers, self.variables)]

    def run(self, pool: Pool, function: int) -> None:
        pool.run(function, *self.addresses, self.chunks)

    def counts(self) -> bytes:
        return bytes(ffi.buffer(self.out))


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_runs_once(kind: type[Pool], threads: int, kernels: LoadedObject) -> None:
    pool = kind(threads)
    for chunks in (1, 2, 3, 7, 64, 1000, 100_003):
        job = Job(chunks)
        for _ in range(3):
            job.run(pool, kernels.symbol("count"))
        assert job.counts() == b"\3" * chunks


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("pause", [0, 0.0002, 0.002])
def test_repeated_jobs(kind: type[Pool], pause: float, kernels: LoadedObject) -> None:
    """Back to back, while the workers spin, and after they went to sleep."""
    pool, job = kind(4), Job(5)
    repeats = 100 if pause else 5000
    for _ in range(repeats):
        job.run(pool, kernels.symbol("count"))
        if pause:
            time.sleep(pause)
    assert job.counts() == bytes([repeats % 256]) * 5


def test_a_job_starts_within_microseconds(kernels: LoadedObject) -> None:
    """The best of many: about 1 microsecond on a quiet machine, against 50 of a pool of Python threads."""
    pool, job = FutexPool(2), Job(2)
    best = 1.0
    for _ in range(3000):
        start = time.perf_counter()
        job.run(pool, kernels.symbol("count"))
        best = min(best, time.perf_counter() - start)
    assert best < 20e-6


@pytest.mark.parametrize("kind", POOLS)
def test_chunks_run_at_the_same_time(kind: type[Pool], kernels: LoadedObject) -> None:
    """Each chunk waits for the other to begin, which only happens with two threads at work."""
    pool = kind(2)
    begun, wanted = ffi.new("int64_t[1]"), ffi.new("int64_t[1]", [2])
    pointers = ffi.new("uintptr_t[1]", [int(ffi.cast("uintptr_t", begun))])
    pool.run(kernels.symbol("meet"), *[int(ffi.cast("uintptr_t", x)) for x in (pointers, wanted)], 2)
    assert begun[0] == 2, "a chunk waited in vain for the other"


@pytest.mark.parametrize("kind", POOLS)
def test_concurrent_callers(kind: type[Pool], kernels: LoadedObject) -> None:
    pool = kind(3)
    jobs = [Job(100 + i) for i in range(6)]

    def call(job: Job) -> None:
        for _ in range(200):
            job.run(pool, kernels.symbol("count"))

    callers = [threading.Thread(target=call, args=(job,)) for job in jobs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [job.counts() for job in jobs] == [bytes([200]) * job.chunks for job in jobs]


@pytest.mark.parametrize("kind", POOLS)
def test_workers_end_with_their_pool(kind: type[Pool], kernels: LoadedObject) -> None:
    def workers() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("retarget-worker")}

    before = workers()
    pool = kind(3)
    Job(9).run(pool, kernels.symbol("count"))
    mine = workers() - before
    assert len(mine) == 2
    del pool
    gc.collect()
    for worker in mine:
        worker.join(timeout=5)
    assert not any(worker.is_alive() for worker in mine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_makes_new_workers(kind: type[Pool], kernels: LoadedObject) -> None:
    pool, job = kind(2), Job(50)
    job.run(pool, kernels.symbol("count"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(20):
                job.run(pool, kernels.symbol("count"))
            made = sum(t.name.startswith("retarget-worker") for t in threading.enumerate())
            status = 0 if job.counts() == bytes([21]) * 50 and made == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    job.run(pool, kernels.symbol("count"))
    assert job.counts() == bytes([2]) * 50


@pytest.mark.skipif(not LINUX, reason="the futex pool")
def test_warm_process_does_not_import_llvmlite(tmp_path: Path) -> None:
    code = (
        "import sys; from retarget.runtime.pool import thread_pool; p = thread_pool();"
        "print(type(p).__name__, p.threads, 'llvmlite' in sys.modules, 'pycparser' in sys.modules)"
    )
    environment = {**os.environ, "RETARGET_CACHE_DIR": str(tmp_path / "cache"), "RETARGET_THREADS": "3"}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert [r.stdout.strip() for r in runs] == ["FutexPool 3 True False", "FutexPool 3 False False"]


def test_process_exits_while_workers_spin_or_sleep() -> None:
    code = """
import time, sys
from retarget.runtime.pool import FutexPool, PortablePool
pools = [PortablePool(3)] + ([FutexPool(3)] if sys.platform == "linux" else [])
for pool in pools: pool._start()
time.sleep(float(sys.argv[1]))
"""
    for pause in ("0", "0.05"):
        subprocess.run([sys.executable, "-c", code, pause], check=True, timeout=60)


def test_portable_pool_where_llvmlite_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_pool", None)
    monkeypatch.setattr(pool_module.importlib.util, "find_spec", lambda name: None)
    pool_module._pool_code.cache_clear()
    assert isinstance(thread_pool(), PortablePool)
    pool_module._pool_code.cache_clear()


def test_threads_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_pool", None)
    monkeypatch.setenv("RETARGET_THREADS", "5")
    assert thread_pool().threads == 5
    assert thread_pool() is thread_pool()


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5"])
def test_bad_threads_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(pool_module, "_pool", None)
    monkeypatch.setenv("RETARGET_THREADS", text)
    with pytest.raises(UserError, match="RETARGET_THREADS"):
        thread_pool()


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "350000 100000"}, 3),
        ("0::/\n", {"cpu.max": "20000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 2),
        ("4:memory:/\n3:cpu,cpuacct:/x\n",
         {"cpu/x/cpu.cfs_quota_us": "200000", "cpu/x/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu,cpuacct:/x\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("0::/\n", {}, 8),
    ],
)  # fmt: skip
def test_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    assert usable_cores(tmp_path, tmp_path / "membership") == cores
    assert usable_cores(tmp_path, tmp_path / "none") == 8
