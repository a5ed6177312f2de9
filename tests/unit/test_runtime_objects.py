"""The object loader: objects of several compilers run; malformed ones raise typed errors."""

from __future__ import annotations

import ctypes
import functools
import gc
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retarget.errors import CompileError
from retarget.runtime.objects import link_object, load_object, parse_object

LINUX = sys.platform == "linux"
COMPILERS = [c for c in ("clang-19", "clang", "gcc") if shutil.which(c)]
needs_compiler = pytest.mark.skipif(not (LINUX and COMPILERS), reason="needs Linux and clang or gcc")

PROGRAM = r"""
#include <stdint.h>
#include <string.h>
#include <math.h>
static int64_t counter = 40;
static int64_t zeros[5000];
int64_t shared_zero;
const double table[4] = {1.5, 2.5, 3.5, 4.5};
static const char *const names[3] = {"zero", "one", "two"};
extern int64_t undefined_weak(void) __attribute__((weak));
__attribute__((noinline)) static int64_t helper(int64_t x) { return x * 3 + counter; }
__attribute__((noinline)) int64_t global_helper(int64_t x) { return helper(x) + 1; }
int64_t call(int64_t x) { return global_helper(x); }
int64_t bump(void) { return ++counter; }
int64_t bss(int64_t i, int64_t v) { int64_t old = zeros[i]; zeros[i] = v; shared_zero += v; return old; }
int64_t total(void) { return shared_zero; }
double constant(int64_t i) { return table[i & 3] * 0.123456789; }
int64_t letter(int64_t i, int64_t j) { return names[i][j]; }
int64_t jump(int64_t x) {
  switch (x) {
    case 0: return helper(7); case 1: return 11; case 2: return bump(); case 3: return 5 * counter;
    case 4: return -1; case 5: return shared_zero; case 6: return 99; case 7: return x << 40;
    default: return 0;
  }
}
int64_t fill(void *p, int64_t n) { memset(p, 0xAB, n); return 0; }
#ifdef __PIC__
void *outside(void) { return memset; }
#endif
void copy(void *a, void *b, int64_t n) { memcpy(a, b, n); }
double remainder_of(double a, double b) { return fmod(a, b); }
int64_t weak(void) { return undefined_weak ? undefined_weak() : 17; }
int64_t self(void) { return (int64_t)(uintptr_t)&global_helper; }
"""


@functools.cache
def build(compiler: str, *flags: str, source: str = PROGRAM) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.o"
        command = [compiler, *flags, "-x", "c", "-", "-c", "-o", str(path)]
        done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return path.read_bytes()


def function(address: int, *types: object, result: object = ctypes.c_int64):  # type: ignore[no-untyped-def]
    return ctypes.CFUNCTYPE(result, *types)(address)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "flags",
    [
        ("-O0",), ("-O2",), ("-O2", "-fPIC"), ("-O2", "-fno-pic"), ("-O2", "-fPIC", "-mcmodel=large"),
        ("-O0", "-fPIC", "-fno-plt"), ("-O2", "-ffunction-sections", "-fdata-sections"),
        ("-O1", "-fcommon", "-g"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_program_runs(compiler: str, flags: tuple[str, ...]) -> None:
    if "-mcmodel=large" in flags and platform.machine() != "x86_64":
        pytest.skip("the large code model with -fPIC exists on x86-64 only")
    int64 = ctypes.c_int64
    loaded = load_object(build(compiler, *flags))

    def call(name: str, *arguments: int) -> int:
        result: int = function(loaded.symbol(name), *[int64] * len(arguments))(*arguments)
        return result

    assert call("call", 5) == 5 * 3 + 40 + 1
    assert call("bump") == 41
    assert [call("bss", 4999, 6), call("bss", 4999, 7), call("total")] == [0, 6, 13]
    constant = function(loaded.symbol("constant"), int64, result=ctypes.c_double)
    assert [constant(i) for i in range(4)] == [v * 0.123456789 for v in (1.5, 2.5, 3.5, 4.5)]
    assert "".join(chr(call("letter", i, 0)) for i in range(3)) == "zot"
    assert [call("jump", i) for i in range(9)] == [62, 11, 42, 210, -1, 13, 99, 7 << 40, 0]
    memory = ctypes.create_string_buffer(16)
    function(loaded.symbol("fill"), ctypes.c_void_p, int64)(ctypes.addressof(memory), 8)
    assert memory.raw == b"\xab" * 8 + bytes(8)
    remainder = function(loaded.symbol("remainder_of"), *[ctypes.c_double] * 2, result=ctypes.c_double)
    assert remainder(7.5, 2.0) == 1.5
    if "-fno-pic" not in flags:  # without it, code has only 32 bits for the address
        outside = function(loaded.symbol("outside"), result=ctypes.c_void_p)()
        assert outside == ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value
    assert call("weak") == 17
    assert call("self") == loaded.symbol("global_helper")


@pytest.mark.skipif(not LINUX, reason="ELF objects")
@pytest.mark.parametrize("model", ["small", "large", "jitdefault"])
@pytest.mark.parametrize("relocation", ["pic", "static"])
def test_llvmlite_object_runs(model: str, relocation: str) -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc=relocation, codemodel=model)
    module = binding.parse_assembly("""
        @factor = internal global float 1.25
        declare void @memset(ptr, i32, i64)
        define void @kernel(ptr %buffers, ptr %variables, i64 %begin, i64 %end) {
          %out = load ptr, ptr %buffers
          call void @memset(ptr %out, i32 0, i64 8)
          %f = load float, ptr @factor
          %h = fpext half 0xH4248 to float
          %v = fmul float %f, %h
          store float %v, ptr %out
          ret void
        }""")
    loaded = load_object(machine.emit_object(module))
    out = ctypes.c_double(-1.0)
    buffers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    kernel = function(loaded.symbol("kernel"), *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, result=None)
    kernel(ctypes.addressof(buffers), None, 0, 1)
    assert struct.unpack("<ff", bytes(out)) == (1.25 * 3.140625, 0.0)


@pytest.mark.skipif(not LINUX, reason="ELF objects")
def test_half_precision_helpers_resolve() -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu="x86-64" if platform.machine() == "x86_64" else "")
    module = binding.parse_assembly("""
        define float @widen(ptr %p) {
          %h = load half, ptr %p
          %f = fpext half %h to float
          ret float %f
        }""")
    loaded = load_object(machine.emit_object(module))
    half = ctypes.c_uint16(0x4248)
    widen = function(loaded.symbol("widen"), ctypes.c_void_p, result=ctypes.c_float)
    assert widen(ctypes.addressof(half)) == 3.140625


def mappings() -> list[tuple[int, int, str]]:
    rows = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return [(int(r[0].split("-")[0], 16), int(r[0].split("-")[1], 16), r[1]) for r in rows]


def protection(address: int) -> str | None:
    return next((p for low, high, p in mappings() if low <= address < high), None)


@needs_compiler
def test_memory_is_never_writable_and_executable_and_is_unmapped() -> None:
    loaded = load_object(build(COMPILERS[0], "-O2", "-fPIC"))
    code, data, constant = (loaded.symbol(n) for n in ("call", "shared_zero", "table"))
    assert (protection(code), protection(data), protection(constant)) == ("r-xp", "rw-p", "r--p")
    del loaded
    gc.collect()
    assert protection(code) is None


@needs_compiler
def test_unresolved_symbol_is_named() -> None:
    source = "long nowhere_to_be_found(void); long f(void) { return nowhere_to_be_found(); }"
    with pytest.raises(CompileError, match="'nowhere_to_be_found'"):
        load_object(build(COMPILERS[0], source=source))


@needs_compiler
def test_missing_symbol_lists_what_there_is() -> None:
    loaded = load_object(build(COMPILERS[0], source="void here(void) {}"))
    with pytest.raises(CompileError, match=r"no symbol 'there'.*here"):
        loaded.symbol("there")


@needs_compiler
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__attribute__((constructor)) void f(void) {}", "constructors"),
        ("_Thread_local int x = 3; int f(void) { return x; }", "thread-local"),
        ("char x[1] __attribute__((aligned(65536))) = {1};", "alignment"),
    ],
)
def test_refused(source: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        load_object(build(COMPILERS[0], source=source))


@needs_compiler
def test_unknown_relocation_is_named() -> None:
    data = bytearray(build(COMPILERS[0], "-O2"))
    obj = parse_object(bytes(data))
    first = obj.relocations[0]
    entry = struct.pack("<Q", first.symbol << 32 | first.type)
    at = data.find(struct.pack("<Q", first.offset) + entry)
    data[at + 8 : at + 16] = struct.pack("<Q", first.symbol << 32 | 199)
    with pytest.raises(CompileError, match="type 199"):
        load_object(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF" + bytes(60), b"\x7fELF\x01\x01\x01" + bytes(60)]
)
def test_not_an_object(data: bytes) -> None:
    with pytest.raises(CompileError):
        parse_object(data)


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="an object for the other machine")
def test_other_machine_is_refused() -> None:
    if not shutil.which("clang-19"):
        pytest.skip("needs clang-19")
    with pytest.raises(CompileError, match="AArch64"):
        load_object(build("clang-19", "--target=aarch64-linux-gnu", source="int f(void) { return 1; }"))


@pytest.mark.skipif(not shutil.which("clang-19"), reason="needs clang-19")
@pytest.mark.parametrize("base", [0x10000, 0x7F12_3456_7000])
def test_aarch64_addresses(base: int) -> None:
    """Patched AArch64 instructions, decoded: address pairs, branches, stubs, table entries, pointers."""
    source = """
      long counter = 1; extern long outside(long); extern long far_data; long *pointer = &counter;
      long f(long x) { return outside(x + counter) + far_data; }"""
    flags = ("--target=aarch64-linux-gnu", "-O2", "-fPIC", "-fvisibility=hidden")
    data = build("clang-19", *flags, source=source)
    known = {"outside": 0x0000_6543_2100_1230, "far_data": 0x0000_7777_0000_0010}
    image, symbols = link_object(parse_object(data), base, known.get)
    words = struct.unpack(f"<{len(image) // 4}I", image)
    start = (symbols["f"] - base) // 4
    pages: dict[int, int] = {}
    loads, calls = [], []
    for i in range(start, start + 16):
        word, place = words[i], base + 4 * i
        if word & 0x9F000000 == 0x90000000:  # adrp
            distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            distance -= (distance & 1 << 20) << 1
            pages[word & 31] = (place & ~4095) + distance * 4096
        elif word & 0xFFC00000 == 0xF9400000 and word >> 5 & 31 in pages:  # ldr x, [page, #]
            loads.append(pages[word >> 5 & 31] + (word >> 10 & 0xFFF) * 8)
        elif word & 0xFC000000 == 0x94000000:  # bl
            calls.append(place + ((word & 0x3FFFFFF) << 2))
        if word == 0xD65F03C0:  # ret
            break
    assert symbols["counter"] in loads
    entry = next(a for a in loads if a != symbols["counter"]) - base
    assert struct.unpack_from("<Q", image, entry)[0] in (known["far_data"], symbols["counter"])
    (stub,) = calls
    assert struct.unpack_from("<IIQ", image, stub - base) == (0x58000050, 0xD61F0200, known["outside"])
    assert struct.unpack_from("<Q", image, symbols["pointer"] - base)[0] == symbols["counter"]


@needs_compiler
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_objects_raise_only_typed_errors(data: st.DataObject) -> None:
    """Parsing and linking (not running) a damaged file works or raises CompileError, nothing else."""
    whole = build(COMPILERS[0], "-O2", "-fPIC")
    section_table = struct.unpack_from("<Q", whole, 40)[0]
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    headers = [*range(64), *range(section_table, len(whole))]
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.one_of(st.sampled_from(headers), st.integers(0, len(whole) - 1)))
        if at < len(damaged):
            damaged[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    try:
        obj = parse_object(bytes(damaged))
        link_object(obj, 0x7F00_0000_0000, {"memset": 0x1000, "memcpy": 0x7FFF_FFFF_0000}.get)
    except CompileError as error:
        assert str(error)
