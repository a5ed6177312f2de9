"""CACHE-01, CACHE-03, CACHE-04, DEV-01, DEV-03, DEV-04, DEV-05: kernels through the disk cache, memory,
threads, forks.

The cache's own behaviour is tested in `tests/unit/test_runtime_diskcache.py`; here real kernels go
through it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget import pipeline
from retarget.errors import DeviceError
from retarget.runtime import realize as realizing
from retarget.runtime.allocator import host_allocator

KERNELS = """
import sys, warnings, numpy as np, retarget as rt
v = np.arange(1, 38, dtype="f4")
x = rt.asarray(v, device=sys.argv[1])
print("started", flush=True)
for k in range(int(sys.argv[2])):
    for extra in (0.0, 0.5):
        found = rt.sum(x * float(k) + extra).numpy()
        assert found == np.sum(v.astype("f8") * k + extra), (k, extra, found)
print("retarget_llvm" in sys.modules and "llvmlite" in sys.modules, flush=True)
"""


def start(
    folder: Path | str, device: str = "llvm", kernels: int = 8, **environment: str | None
) -> subprocess.Popen[str]:
    new = {
        **os.environ,
        "RETARGET_CACHE_DIR": str(folder),
        **{k: v for k, v in environment.items() if v is not None},
    }
    for k in [k for k, v in environment.items() if v is None]:
        new.pop(k, None)
    return subprocess.Popen(
        [sys.executable, "-c", KERNELS, device, str(kernels)],
        env=new,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[bool, str]:
    """Return whether a process that was right imported the compiler, and what it wrote to standard error."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.split()[-1] == "True", errors


# -- CACHE-01 --------------------------------------------------------------------------------------------


def test_many_processes_share_an_empty_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    running = [start(folder) for _ in range(6)]
    for victim in random.Random(1).sample(range(6), 2):
        assert running[victim].stdout.readline() == "started\n"  # type: ignore[union-attr]
        time.sleep(0.05)
        running[victim].kill()
        running[victim].communicate()
    for process in running:
        if process.returncode is None:
            assert finish(process)[1] == ""
    compiled, errors = finish(start(folder))
    assert not compiled and not errors  # everything is there
    entries = [p for p in folder.rglob("*") if p.is_file()]
    assert len(entries) >= 32  # a plan and a kernel each
    for n, path in enumerate(sorted(entries)):
        data = path.read_bytes()
        damaged = [
            data[: len(data) // 2],
            b"",
            bytes(len(data)),
            data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        ][n % 4]
        path.write_bytes(damaged)
    compiled, errors = finish(start(folder))
    assert compiled and errors.count("CacheWarning") == 1
    compiled, errors = finish(start(folder))
    assert not compiled and not errors


def test_a_plan_whose_kernel_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    finish(start(folder))
    for path in folder.rglob("*.kernel"):
        path.unlink()
    compiled, errors = finish(start(folder))
    assert compiled and not errors


def test_devices_and_schedules_do_not_mix(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    x = rt.asarray(np.arange(64, dtype="f4"))
    for text in ("", "r0=r0o,r0v/8:v", "r0=r0o,r0v/4:v", "r0=r0o,r0u/4:u"):
        realizing.clear_memory_cache()
        with rt.with_schedule(text):
            assert (x * 3 + 1).numpy().tolist() == [3 * k + 1 for k in range(64)]
    assert len(list((tmp_path / "cache").rglob("*.plan"))) == 4


# -- CACHE-03, CACHE-04 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b/ü測/$x;y", "$(touch owned)", "-o", "'\"", "%s{0}", "x" * 200])
def test_odd_paths(fast_device: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    _, errors = finish(start(folder / "cache", fast_device, 1, TMPDIR=str(folder)))
    assert not errors and any((folder / "cache").rglob("*.kernel"))
    assert not list(tmp_path.rglob("owned")) and not Path("owned").exists()


@pytest.mark.parametrize("home", [None, "/", "/nonexistent/home", "/proc"])
def test_homes_that_hold_no_cache(home: str | None, tmp_path: Path) -> None:
    xdg = (
        "/proc/none" if home in ("/", None) else None
    )  # a test that runs as root could write to / and to root's home
    _, errors = finish(start("", kernels=1, RETARGET_CACHE_DIR=None, XDG_CACHE_HOME=xdg, HOME=home))
    assert errors.count("CacheWarning") <= 1


def test_nothing_planted_is_followed_or_run(tmp_path: Path) -> None:
    mark, real = tmp_path / "ran", tmp_path / "real"
    real.mkdir()
    (real / "x.pkl").write_bytes(b"cposix\nsystem\n(S'touch %s'\ntR." % str(mark).encode())
    link = tmp_path / "link"
    link.symlink_to(real)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (link, shared):
        before = sorted(p.name for p in folder.iterdir())
        _, errors = finish(start(folder, kernels=1))
        assert errors.count("CacheWarning") == 1
        assert sorted(p.name for p in folder.iterdir()) == before and not mark.exists()


# -- DEV-01 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "-1", "0,-1,1"])
def test_no_gpu_is_visible(tmp_path: Path, value: str) -> None:
    assert finish(start(tmp_path / "cache", kernels=1, CUDA_VISIBLE_DEVICES=value))[1] == ""


def test_asking_for_a_device_that_is_not_there() -> None:
    for name in ("cuda", "llvm:7", "nonsense", "llvm:x"):
        with pytest.raises((DeviceError, KeyError), match=name.partition(":")[0]):
            rt.asarray([1.0], device=name)


# -- DEV-03 ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_after_use(fast_device: str) -> None:
    """A child computes with the parent's kernels and with new ones, on threads; the parent goes on."""
    n = 1 << 18
    x = rt.asarray(np.ones(n, "f4"))
    assert (rt.exp(x * 0) + 1).numpy().sum() == 2 * n
    child = os.fork()
    if child == 0:
        code = 1
        try:
            right = (rt.exp(x * 0) + 1).numpy().sum() == 2 * n and (rt.exp(x * 0) * 5).numpy().sum() == 5 * n
            code = 0 if right else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(done[1]) == 0
    assert (rt.exp(x * 0) + 3).numpy().sum() == 4 * n


# -- DEV-04 ----------------------------------------------------------------------------------------------


def test_out_of_memory_inside_an_expression(fast_device: str) -> None:
    allocator = host_allocator()
    allocator.release()
    older = rt.asarray(np.arange(1000, dtype="f4"))
    small = older + 1
    small.realize()
    base = allocator.statistics().used
    size = 64 << 20
    before, allocator.limit = (
        allocator.limit,
        allocator.statistics().used + allocator.statistics().cached + size,
    )
    try:
        half = rt.zeros((size // 8,)) + older[:1]
        half.realize()
        del half
        most = (rt.zeros((size // 5,)) + older[1:2]).realize()
        assert most[-1].item() == 1
        del most
        for _ in range(2):
            with pytest.raises(MemoryError) as caught:
                (rt.zeros((size,)) + older[:1]).realize()
            assert isinstance(caught.value, DeviceError) and "limit" in str(caught.value)
            del caught
        with pytest.raises(MemoryError):
            rt.cumulative_sum(rt.zeros((size // 6,)) + older[:1]).realize()
        assert allocator.statistics().used <= base + 4096
        assert (older * 2).numpy()[-1] == 1998 and small.numpy()[-1] == 1000
    finally:
        allocator.limit = before


# -- DEV-05 ----------------------------------------------------------------------------------------------


def test_threads_that_ask_for_new_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    compiled: list[str] = []
    original = pipeline.binary_of

    def counted(source: Any, tools: Any) -> Any:
        compiled.append(source.text)
        time.sleep(0.05)
        return original(source, tools)

    monkeypatch.setattr(pipeline, "binary_of", counted)
    secret = float(np.random.default_rng().integers(1, 1 << 20))
    values = np.arange(100, dtype="f4")
    x = rt.asarray(values)
    results: dict[int, Any] = {}
    barrier = threading.Barrier(8)

    def ask(number: int, function: Any) -> None:
        barrier.wait()
        try:
            results[number] = function().numpy()
        except BaseException as error:
            results[number] = error

    for functions in ([lambda: x * secret + 1] * 8, [lambda k=k: x * secret - float(k) for k in range(8)]):
        name = rt.device(device).name
        threads = [threading.Thread(target=ask, args=(n, f)) for n, f in enumerate(functions)]
        compiled.clear()
        results.clear()
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert x.device == name and len(results) == 8
        for number, found in results.items():
            scaled = values * np.float32(secret)
            right = scaled + 1 if functions[0] is functions[1] else scaled - np.float32(number)
            assert not isinstance(found, BaseException), found
            np.testing.assert_array_equal(found, right)
        assert len(compiled) == (1 if functions[0] is functions[1] else 8)
