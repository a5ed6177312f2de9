"""What the core says about CPUs: this machine's, and the generic ones that targets name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retarget.errors import UnknownNameError
from retarget.runtime import cpu
from retarget.runtime.pool import wanted_threads

LEVEL_3 = {"avx2", "f16c"}
LEVEL_4 = {*LEVEL_3, "avx512f", "avx512vl", "avx512bw", "avx512dq"}
TARGETS = ("any/native", "any/x86-64-v2", "any/x86-64-v3")


@pytest.mark.parametrize(
    ("architecture", "features", "generic"),
    [
        ("x86_64", {"sse4_2"}, "x86-64-v2"),
        ("x86_64", LEVEL_3, "x86-64-v3"),
        ("x86_64", LEVEL_4, "x86-64-v4"),
        ("aarch64", {"asimd"}, "aarch64"),
    ],
)
def test_features_of_a_level_give_the_generic_cpu(
    architecture: str, features: set[str], generic: str
) -> None:
    assert cpu.from_features(architecture, features) == cpu.GENERIC[generic]


@pytest.mark.parametrize("missing", sorted(LEVEL_4 - LEVEL_3))
def test_some_avx512_is_not_enough(missing: str) -> None:
    found = cpu.from_features("x86_64", LEVEL_4 - {missing})
    assert (found.vector_bits, found.vector_registers) == (256, 16)


def test_an_unknown_architecture_has_no_half() -> None:
    assert cpu.from_features("riscv64", frozenset()) == cpu.CPU("riscv64", 128, 16, False)


def test_targets() -> None:
    assert cpu.target_cpu("any/native", TARGETS) == cpu.host()
    assert cpu.target_cpu("any/x86-64-v3", TARGETS) == cpu.GENERIC["x86-64-v3"]
    for target in (
        "any/x86-64-v4",
        "other/native",
        "any",
        "",
    ):  # the first is generic, but not this backend's
        with pytest.raises(UnknownNameError, match="any/x86-64-v2"):
            cpu.target_cpu(target, TARGETS)


def test_cpuinfo_is_the_first_processors() -> None:
    text = "processor\t: 0\nmodel name\t: A: fast\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: B\n"
    assert cpu.parse_cpuinfo(text) == {"processor": "0", "model name": "A: fast", "flags": "fpu avx2"}
    assert cpu.parse_cpuinfo("") == {}


def _cache(folder: Path, index: int, level: int, kind: str, size: str, shared: str) -> None:
    entry = folder / f"index{index}"
    entry.mkdir()
    for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (entry / name).write_text(text + "\n")


def test_caches_are_a_cores_part(tmp_path: Path) -> None:
    """Two threads to a core have its first caches together; eight cores share the last one."""
    _cache(tmp_path, 0, 1, "Data", "48K", "0,8")
    _cache(tmp_path, 1, 1, "Instruction", "32K", "0,8")
    _cache(tmp_path, 2, 2, "Unified", "2048K", "0,8")
    _cache(tmp_path, 3, 3, "Unified", "32768K", "0-15")
    assert cpu.read_caches(tmp_path) == (48 << 10, 2048 << 10, 4096 << 10)


def test_cache_entries_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    _cache(tmp_path, 0, 1, "Data", "32K", "0")
    _cache(tmp_path, 1, 2, "Unified", "", "0")
    (tmp_path / "index2").mkdir()
    assert cpu.read_caches(tmp_path) == (32 << 10,)
    assert cpu.read_caches(tmp_path / "absent") == ()


def test_this_machine() -> None:
    sizes = cpu.caches()
    assert sizes and all(size > 0 for size in sizes)
    assert cpu.host().architecture == cpu.architecture()
    assert cpu.memory_bytes() > 1 << 20 or sys.platform == "win32"
    assert cpu.name() and cpu.name() in cpu.description()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_features_are_the_kernels() -> None:
    words = set(Path("/proc/cpuinfo").read_text().split())
    assert cpu.features() and cpu.features() <= words


@pytest.mark.parametrize(("threads", "words"), [("1", "1 core"), ("3", "3 cores")])
def test_description_counts_threads(monkeypatch: pytest.MonkeyPatch, threads: str, words: str) -> None:
    monkeypatch.setenv("RETARGET_THREADS", threads)
    assert wanted_threads() == int(threads)
    assert cpu.description() == f"{cpu.name()}, {words}"


def test_identity_is_stable_and_needs_no_compiler() -> None:
    program = (
        "import sys; from retarget.runtime import cpu; print(cpu.identity(), "
        "[m for m in sys.modules if m.startswith(('llvmlite', 'numpy', 'subprocess'))])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=True,
    )
    assert done.stdout.strip() == f"{cpu.identity()} []"


def test_identity_tells_cpus_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(info: dict[str, str]) -> str:
        monkeypatch.setattr(cpu, "_cpuinfo", lambda: info)
        return cpu.identity.__wrapped__()

    plain = {"vendor_id": "V", "model": "1", "flags": "fpu avx2", "cpu MHz": "2000"}
    changed = [{**plain, "flags": "fpu"}, {**plain, "model": "2"}, {**plain, "vendor_id": "W"}, {}]
    assert len({identity(info) for info in (plain, *changed)}) == 5
    assert identity({**plain, "cpu MHz": "3000"}) == identity(plain)
