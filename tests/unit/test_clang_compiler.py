"""Finding and calling C compilers: order, odd paths, errors, identity, threads."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retarget.errors import CompileError, UnknownNameError
from retarget.registry.backend import Launch, Source
from retarget.runtime.objects import parse_object
from retarget_clang import compiler as module
from retarget_clang.backend import ClangBackend
from retarget_clang.compiler import ClangCompiler, candidates, describe, find_compiler

TARGET = "clang/native"
EMPTY = "void kernel(void) {}\n"


def source(text: str = EMPTY) -> Source:
    return Source(text, "kernel", TARGET, (), Launch())


Script = Callable[..., Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Make an executable shell script."""

    def make(name: str, text: str = 'echo "fake clang version 7.1.0"') -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture
def no_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Leave an empty folder as PATH, and no ziglang."""
    monkeypatch.delenv("RETARGET_CC", raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(module, "_ziglang", lambda: None)
    return folder


def test_order_is_as_documented(no_compilers: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gcc", "clang-9", "clang-19", "clang-format-19", "cc", "zig"):
        script(f"bin/{name}")
    names = [Path(command[0]).name for command in candidates()]
    assert names == ["clang-19", "clang-9", "gcc", "cc", "zig"]
    assert candidates()[-1][1:] == ("clang",)
    script("bin/clang")
    assert Path(candidates()[0][0]).name == "clang"
    monkeypatch.setattr(module, "_ziglang", lambda: "/somewhere/zig")
    assert candidates()[-1] == ("/somewhere/zig", "clang")


def test_one_that_does_not_start_is_passed_over(no_compilers: Path, script: Script) -> None:
    script("bin/clang", "echo broken >&2; exit 3")
    good = script("bin/gcc", 'echo "gcc (Somewhere) 12.2.0"')
    found = find_compiler()
    assert found.command == (str(good),) and found.family == "gcc" and found.name == "gcc 12.2.0"


def test_none_says_what_to_install(no_compilers: Path) -> None:
    with pytest.raises(
        CompileError, match=r"no C compiler found; install one .*apt install clang.*retarget\[clang\]"
    ):
        find_compiler()
    probe = ClangBackend().probe()
    assert not probe.devices and "apt install clang" in probe.reason
    with pytest.raises(CompileError, match="no C compiler found"):
        ClangCompiler(TARGET).compile(source())


def test_a_named_compiler_never_falls_back(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    monkeypatch.setenv("RETARGET_CC", "/nowhere/clang")
    with pytest.raises(CompileError, match=r"RETARGET_CC names no C compiler that works: '/nowhere/clang'"):
        find_compiler()
    monkeypatch.setenv("RETARGET_CC", "clang 'unclosed")
    with pytest.raises(CompileError, match="RETARGET_CC is malformed"):
        find_compiler()


@pytest.mark.parametrize("name", ["with space", "it's", 'a "quoted" one', "$(touch hit); x", "ünïcode"])
@pytest.mark.parametrize("arguments", ["", " -DX='a b'"])
def test_odd_paths(
    name: str, arguments: str, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = find_compiler().command
    monkeypatch.chdir(tmp_path)
    path = script(f"{name}/my cc", f'exec {" ".join(real)} "$@"')
    import shlex

    monkeypatch.setenv("RETARGET_CC", shlex.quote(str(path)) + arguments if arguments else str(path))
    binary = ClangCompiler(TARGET).compile(source("#ifdef X\nint x;\n#endif\n" + EMPTY))
    assert any(symbol.name == "kernel" for symbol in parse_object(binary.data).symbols)
    assert not (tmp_path / "hit").exists()


def _families() -> list[tuple[str, ...]]:
    found = {}
    for command in candidates():
        try:
            found.setdefault(describe(command).version, command)
        except CompileError:
            continue
    return list(found.values())


every_command = pytest.mark.parametrize("command", _families(), ids=lambda c: Path(c[0]).name)


@every_command
def test_errors_show_the_log_and_the_lines(command: tuple[str, ...]) -> None:
    compiler = ClangCompiler(TARGET, describe(command))
    text = "int a;\nint b;\nvoid kernel(void) { missing = 1; }\nint c;\n"
    with pytest.raises(CompileError) as caught:
        compiler.compile(source(text))
    message = str(caught.value)
    assert "cannot compile kernel for clang/native (status 1)" in message
    assert ">    3 | void kernel(void) { missing = 1; }" in message and "     2 | int b;" in message
    assert "missing" in caught.value.log and caught.value.source == text


@every_command
def test_nothing_is_left_behind(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    compiler = ClangCompiler(TARGET, describe(command))
    binary = compiler.compile(source())
    compiler.assembly(binary)
    with pytest.raises(CompileError):
        compiler.compile(source("int"))
    assert not list(tmp_path.iterdir())


@every_command
def test_compiling_twice_gives_the_same_bytes_in_any_thread(command: tuple[str, ...]) -> None:
    compiler = ClangCompiler(TARGET, describe(command))
    texts = [source(f"int kernel(void) {{ return {n % 3}; }}\n") for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        data = [binary.data for binary in pool.map(compiler.compile, texts)]
    assert all(data[n] == data[n % 3] for n in range(12))
    assert len(set(data)) == 3


@every_command
def test_assembly_from_the_object_or_the_source(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = ClangCompiler(TARGET, describe(command))
    binary = compiler.compile(source())
    assert "ret" in compiler.assembly(binary)
    monkeypatch.setattr(module.shutil, "which", lambda name, **_: None)
    assert "kernel:" in compiler.assembly(binary)


@every_command
def test_flags_keep_floats_ieee(command: tuple[str, ...]) -> None:
    compiler = ClangCompiler(TARGET, describe(command))
    text = "#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__\n#error fast\n#endif\n"
    compiler.compile(source(text + EMPTY))
    assert "-ffp-contract=off" in compiler.flags() and "-fwrapv" in compiler.flags()


def test_identity_tells_compilers_flags_and_cpus_apart_but_not_paths(script: Script) -> None:
    one = describe((str(script("one/clang")),))
    two = describe((str(script("two/clang-7")),))
    other = describe((str(script("three/clang", 'echo "fake clang version 8.0.0"')),))
    assert ClangCompiler(TARGET, one).identity() == ClangCompiler(TARGET, two).identity()
    identities = {ClangCompiler(TARGET, c).identity() for c in (one, other)}
    identities |= {ClangCompiler(f"clang/x86-64-v{n}", one).identity() for n in (2, 3, 4)}
    assert len(identities) == 5


def test_version_is_asked_for_once(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Again only when the file has changed; a new process takes it from the disk cache."""
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RETARGET_CACHE", raising=False)
    count = tmp_path / "count"
    path = script("clang", f'echo run >> "{count}"; echo "fake clang version 7.1.0"')
    for _ in range(3):
        describe((str(path),))
        module._describe.cache_clear()
    assert count.read_text().split() == ["run"]
    path.write_text(path.read_text().replace("7.1.0", "7.1.1"))
    os.utime(path, ns=(1, 1))
    assert describe((str(path),)).version == "fake clang version 7.1.1"


def test_targets() -> None:
    backend = ClangBackend()
    assert [backend.capabilities(f"clang/x86-64-v{n}").vector_bits for n in (2, 3, 4)] == [128, 256, 512]
    native = backend.capabilities(TARGET)
    assert native.vector_bits in (128, 256, 512) and "thread" in native.axis_kinds and native.caches
    with pytest.raises(UnknownNameError, match="clang/x86-64-v3"):
        backend.capabilities("clang/x86-64-v33")


def test_probe_names_the_compiler() -> None:
    (device,) = ClangBackend().probe().devices
    assert device.name == "clang:0" and device.target == TARGET and find_compiler().name in device.description


def test_zig_as_a_cross_compiler_driver_works(monkeypatch: pytest.MonkeyPatch) -> None:
    zig = module._ziglang() or shutil.which("zig")
    if zig is None:
        pytest.skip("zig is not installed")
    monkeypatch.setenv("RETARGET_CC", f"{zig} cc")
    binary = ClangCompiler(TARGET).compile(source("int kernel(int x) { return x + 1; }\n"))
    names = {symbol.name for symbol in parse_object(binary.data).symbols}
    assert "kernel" in names and not any("ubsan" in name for name in names)
