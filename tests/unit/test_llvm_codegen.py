"""The LLVM backend's code: hand-written linear programs are compiled, run, and compared with NumPy."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import linear_build
import numpy as np
import pytest
from linear_build import same

from retarget.codegen.driver import emit
from retarget.codegen.hooks import HookPlugin, resolve
from retarget.codegen.program import Program
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp
from retarget.registry.backend import Argument, Binary, Source
from retarget.runtime.cpu import GENERIC, host
from retarget.runtime.objects import load_object, parse_object
from retarget_llvm import cpu
from retarget_llvm.backend import LLVMBackend

BACKEND = LLVMBackend()
INT32, INT64, FLOAT32, BOOL = dtypes.int32, dtypes.int64, dtypes.float32, dtypes.bool_
INTEGERS = [d for d in dtypes.ARRAY_DTYPES if d.is_int]
WIDE = [BOOL, *INTEGERS, dtypes.float32, dtypes.float64]
NARROW = [d for d in dtypes.ARRAY_DTYPES if d.is_float and d.bits < 32]
COMPARISONS = {ops.CMPLT: np.less, ops.CMPLE: np.less_equal, ops.CMPEQ: np.equal, ops.CMPNE: np.not_equal}


def _runnable() -> list[str]:
    """Return the targets that this machine runs: its own, and the generic ones that are no wider."""
    here = host()
    narrower = [
        f"llvm/{name}"
        for name, generic in GENERIC.items()
        if generic.architecture == here.architecture and generic.vector_bits < here.vector_bits
    ]
    return ["llvm/native", *narrower]


TARGETS = _runnable()
EVERY_TARGET = cpu.TARGETS


class Build(linear_build.Build):
    """A linear program whose parameters are declared by size."""

    def param(self, name: str, dtype: DType, size: int, writable: bool = False) -> UOp:
        self.arguments.append(Argument(name, "buffer", dtype.name, (size,), writable))
        return self(ops.PARAM, dtype, arg=(name, (size,), writable))

    def iota(self, lanes: int) -> UOp:
        return self(ops.VECTORIZE, self.index.vector(lanes), *(self.const(i) for i in range(lanes)))


def render(program: Program, target: str = "llvm/native") -> Source:
    renderer = BACKEND.renderer(target)
    return emit(program, renderer, resolve([HookPlugin("llvm", renderer)], target))


def compile_(program: Program, target: str = "llvm/native") -> Binary:
    return BACKEND.compiler(target).compile(render(program, target))


def execute(
    program: Program, arrays: Sequence[Any], variables: Sequence[int] = (), target: str = "llvm/native"
) -> None:
    kernel = BACKEND.runtime("llvm:0").load(compile_(program, target))
    kernel([a.ctypes.data for a in arrays], variables)


def samples(dtype: DType, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return values of a dtype with its edge cases, shuffled."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    native = to_numpy(dtype)
    if dtype.is_int:
        edges = np.array([dtype.min, dtype.max, 0, 1, dtype.max - 1, dtype.min + 1], native)
        values = rng.integers(dtype.min, dtype.max, count, native, endpoint=True)
    else:
        tiny = np.finfo(native).smallest_subnormal
        edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 0.5, -1.5, 2.5, 1e30], native)
        values = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(native)
    where = rng.permutation(count)[: len(edges)]
    values[where] = edges
    return np.asarray(values)


# -- elementwise ops -----------------------------------------------------------------------------------------


def _expected(dtype: DType, x: Any, y: Any, divisor: Any, shift: Any, flag: Any) -> dict[Op, Any]:
    """Return what each op that takes `dtype` gives."""
    if dtype.kind == "bool":
        table = {
            ops.ADD: x | y, ops.MUL: x & y, ops.AND: x & y, ops.OR: x | y, ops.XOR: x ^ y, ops.NOT: ~x,
            ops.MAXIMUM: x | y, ops.MINIMUM: x & y,
        }  # fmt: skip
    elif dtype.is_int:
        pairs = zip(x.tolist(), divisor.tolist(), strict=True)
        quotient = np.array([abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs], x.dtype)
        table = {
            ops.ADD: x + y, ops.SUB: x - y, ops.MUL: x * y, ops.NEG: -x, ops.AND: x & y, ops.OR: x | y,
            ops.XOR: x ^ y, ops.NOT: ~x, ops.USHL: x << shift, ops.USHR: x >> shift, ops.TRUNCDIV: quotient,
            ops.TRUNCMOD: x - quotient * divisor, ops.MAXIMUM: np.maximum(x, y),
            ops.MINIMUM: np.minimum(x, y),
        }  # fmt: skip
    else:
        table = {
            ops.ADD: x + y, ops.SUB: x - y, ops.MUL: x * y, ops.FDIV: x / y, ops.NEG: -x,
            ops.SQRT: np.sqrt(x), ops.FLOOR: np.floor(x), ops.CEIL: np.ceil(x), ops.TRUNC: np.trunc(x),
            ops.RINT: np.rint(x),
        }  # fmt: skip
    table.update({op: compare(x, y) for op, compare in COMPARISONS.items()})
    table[ops.WHERE] = np.where(flag, x, y)
    return table


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", WIDE, ids=repr)
def test_every_op_equals_numpy(dtype: DType, lanes: int, target: str) -> None:
    count = 64
    x, y, divisor = (samples(dtype, count, seed) for seed in (1, 2, 3))
    shift, flag = x, samples(BOOL, count, 4)
    if dtype.is_int:
        divisor[(divisor == 0) | (divisor == -1)] = 3
        shift = (y & (dtype.bits - 1)).astype(x.dtype)
    with np.errstate(all="ignore"):
        expected = _expected(dtype, x, y, divisor, shift, flag)
    b = Build()
    results = {op: np.empty(count, value.dtype) for op, value in expected.items()}
    outputs = {
        op: b.param(op.name.lower(), dtypes.as_dtype(v.dtype), count, True) for op, v in results.items()
    }
    inputs = [b.param(name, dtype, count) for name in ("x", "y", "divisor", "shift")]
    flags = b.param("flag", BOOL, count)
    i = b.range("i", count // lanes)
    at = b.mul(i, lanes)
    a, c, d, n = (b.load(p, at, lanes) for p in inputs)
    chosen = b.load(flags, at, lanes)
    for op in expected:
        second = {ops.TRUNCDIV: d, ops.TRUNCMOD: d, ops.USHL: n, ops.USHR: n}.get(op, c)
        operands = (chosen, a, c) if op is ops.WHERE else (a, second) if len(op.operands) == 2 else (a,)
        b.store(outputs[op], at, b.alu(op, *operands))
    b.end(i)
    execute(b.program(), [*results.values(), x, y, divisor, shift, flag], target=target)
    wrong = [op.name for op in expected if not same(results[op], expected[op])]
    assert not wrong


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=repr)
def test_multiply_add_rounds_once_or_twice(dtype: DType, lanes: int, target: str) -> None:
    native, count = to_numpy(dtype), 64
    rng = np.random.default_rng(7)
    x, y, z = (rng.standard_normal(count).astype(native) for _ in range(3))
    out = np.empty(count, native)
    b = Build()
    o, *inputs = b.param("out", dtype, count, True), *(b.param(name, dtype, count) for name in "xyz")
    i = b.range("i", count // lanes)
    at = b.mul(i, lanes)
    b.store(o, at, b.alu(ops.MULACC, *(b.load(p, at, lanes) for p in inputs)))
    b.end(i)
    execute(b.program(), [out, x, y, z], target=target)
    once = (x.astype(np.longdouble) * y + z).astype(native)
    assert ((out == once) | (out == x * y + z)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", NARROW, ids=repr)
def test_narrow_floats_pass_through(dtype: DType, lanes: int, target: str) -> None:
    """Loaded, chosen, seen as integers and stored, with their bits as they were."""
    count, bits = 64, np.dtype(f"u{dtype.itemsize}")
    x = np.arange(count, dtype=bits) * 3 + 1
    y = ~x
    flag = samples(BOOL, count, 1)
    chosen, seen, filled = np.empty(count, bits), np.empty(count, bits), np.empty(count, bits)
    unsigned = dtypes.as_dtype(bits).vector(lanes)
    b = Build()
    o, u, f = (
        b.param("o", dtype, count, True),
        b.param("u", unsigned.scalar, count, True),
        b.param("f", dtype, count, True),
    )
    p, q, flags = b.param("x", dtype, count), b.param("y", dtype, count), b.param("flag", BOOL, count)
    i = b.range("i", count // lanes)
    at = b.mul(i, lanes)
    first = b.load(p, at, lanes)
    b.store(o, at, b.alu(ops.WHERE, b.load(flags, at, lanes), first, b.load(q, at, lanes)))
    b.store(u, at, b(ops.BITCAST, unsigned, first))
    b.store(f, at, b.broadcast(b.const(-1.5, dtype), lanes))
    b.end(i)
    execute(b.program(), [chosen, seen, filled, x, y, flag], target=target)
    assert (chosen == np.where(flag, x, y)).all()
    assert (seen == x).all()
    assert (filled == np.array(-1.5, to_numpy(dtype)).view(bits)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("source", WIDE, ids=repr)
def test_cast_keeps_values(source: DType, lanes: int, target: str) -> None:
    count = 64
    x = samples(source, count, 5)
    if source.is_float:
        x = np.random.default_rng(5).uniform(0, 120, count).astype(x.dtype)  # in range of every integer type
    targets = [d for d in WIDE if d is not source and d.kind != "bool"]
    b = Build()
    outputs = [b.param(f"to_{d}", d, count, True) for d in targets]
    p = b.param("x", source, count)
    i = b.range("i", count // lanes)
    at = b.mul(i, lanes)
    value = b.load(p, at, lanes)
    for dtype, out in zip(targets, outputs, strict=True):
        b.store(out, at, b(ops.CAST, dtype.vector(lanes), value))
    b.end(i)
    results = [np.empty(count, to_numpy(d)) for d in targets]
    execute(b.program(), [*results, x], target=target)
    wrong = [d for d, r in zip(targets, results, strict=True) if not same(r, x.astype(to_numpy(d)))]
    assert not wrong


@pytest.mark.parametrize("target", [t for t in TARGETS if cpu.machine(t).half])
@pytest.mark.parametrize("lanes", [1, 8])
def test_float16_conversions_equal_numpy(lanes: int, target: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    count = len(halves)
    singles = samples(FLOAT32, count, 3) * np.float32(100)
    back, wide, double = np.empty(count, np.uint16), np.empty(count, np.float32), np.empty(count, np.float64)
    b = Build()
    o_back = b.param("back", dtypes.float16, count, True)
    o_wide = b.param("wide", FLOAT32, count, True)
    o_double = b.param("double", dtypes.float64, count, True)
    p, q = b.param("halves", dtypes.float16, count), b.param("singles", FLOAT32, count)
    i = b.range("i", count // lanes)
    at = b.mul(i, lanes)
    x = b.load(p, at, lanes)
    b.store(o_wide, at, b(ops.CAST, FLOAT32.vector(lanes), x))
    b.store(o_double, at, b(ops.CAST, dtypes.float64.vector(lanes), x))
    b.store(o_back, at, b(ops.CAST, dtypes.float16.vector(lanes), b.load(q, at, lanes)))
    b.end(i)
    execute(b.program(), [back, wide, double, halves, singles], target=target)
    values = halves.view(np.float16)
    with np.errstate(over="ignore"):
        rounded = singles.astype(np.float16)
    assert same(wide, values.astype(np.float32)) and same(double, values.astype(np.float64))
    assert same(back.view(np.float16), rounded)


@pytest.mark.parametrize("lanes", [1, 8])
def test_bitcast_keeps_bits(lanes: int) -> None:
    count = 64
    for source, dtype in (
        (FLOAT32, dtypes.int32),
        (dtypes.uint64, dtypes.float64),
        (dtypes.int8, dtypes.uint8),
        (BOOL, dtypes.uint8),
    ):
        x = samples(source, count, 9)
        b = Build()
        o, p = b.param("out", dtype, count, True), b.param("x", source, count)
        i = b.range("i", count // lanes)
        at = b.mul(i, lanes)
        b.store(o, at, b(ops.BITCAST, dtype.vector(lanes), b.load(p, at, lanes)))
        b.end(i)
        out = np.empty(count, to_numpy(dtype))
        execute(b.program(), [out, x])
        assert out.tobytes() == x.tobytes()


def test_scalar_condition_chooses_a_vector() -> None:
    b = Build()
    o, p = b.param("out", FLOAT32, 16, True), b.param("x", FLOAT32, 16)
    i = b.range("i", 2)
    at = b.mul(i, 8)
    value = b.load(p, at, 8)
    b.store(o, at, b.alu(ops.WHERE, b.alu(ops.CMPEQ, i, 1), value, b.alu(ops.NEG, value)))
    b.end(i)
    x = np.arange(1, 17, dtype=np.float32)
    out = np.empty_like(x)
    execute(b.program(), [out, x])
    assert (out == np.where(np.arange(16) < 8, -x, x)).all()


# -- vectors -------------------------------------------------------------------------------------------------

FOLDS = {
    ops.ADD: np.add, ops.MUL: np.multiply, ops.MAXIMUM: np.maximum, ops.MINIMUM: np.minimum,
    ops.AND: np.bitwise_and, ops.OR: np.bitwise_or, ops.XOR: np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [2, 8, 16])
@pytest.mark.parametrize("dtype", WIDE, ids=repr)
def test_fold_joins_halves(dtype: DType, lanes: int, target: str) -> None:
    x = samples(dtype, 32 * lanes, 11).reshape(32, lanes)
    kinds = [op for op in FOLDS if not (dtype.is_float and op in (ops.AND, ops.OR, ops.XOR))]
    b = Build()
    outputs = [b.param(op.name.lower(), dtype, 32, True) for op in kinds]
    p = b.param("x", dtype, 32 * lanes)
    i = b.range("i", 32)
    value = b.load(p, b.mul(i, lanes), lanes)
    for op, out in zip(kinds, outputs, strict=True):
        b.store(out, i, b(ops.FOLD, dtype, value, arg=op))
    b.end(i)
    results = [np.empty(32, x.dtype) for _ in kinds]
    execute(b.program(), [*results, x], target=target)
    for op, result in zip(kinds, results, strict=True):
        folded = x
        with np.errstate(all="ignore"):
            while folded.shape[1] > 1:
                half = folded.shape[1] // 2
                folded = FOLDS[op](folded[:, :half], folded[:, half:])
        folded = np.ascontiguousarray(folded[:, 0])
        if dtype.is_float and op in (ops.MAXIMUM, ops.MINIMUM):  # the sign of a zero is open
            result, folded = result + 0, folded + 0
        assert same(result, folded), op


def test_fold_of_any_position_of_nan_is_nan() -> None:
    x = np.zeros((8, 8), np.float32)
    np.fill_diagonal(x, np.nan)
    b = Build()
    outputs = [b.param(name, FLOAT32, 8, True) for name in ("largest", "smallest")]
    p = b.param("x", FLOAT32, 64)
    i = b.range("i", 8)
    value = b.load(p, b.mul(i, 8), 8)
    for op, out in zip((ops.MAXIMUM, ops.MINIMUM), outputs, strict=True):
        b.store(out, i, b(ops.FOLD, FLOAT32, value, arg=op))
    b.end(i)
    largest, smallest = np.empty(8, np.float32), np.empty(8, np.float32)
    execute(b.program(), [largest, smallest, x])
    assert np.isnan(largest).all() and np.isnan(smallest).all()


def test_lanes_are_put_together_and_taken_apart() -> None:
    b = Build()
    o, p = b.param("out", INT32, 16, True), b.param("x", INT32, 8)
    zero = b.const(0)
    x = b.load(p, zero, 8)
    parts = [b(ops.GEP, INT32, x, arg=(lane,)) for lane in (7, 0)]
    built = b(ops.VECTORIZE, INT32.vector(4), parts[0], b.const(-5), parts[1], parts[0])
    b.store(o, zero, b(ops.GEP, INT32.vector(8), x, arg=(7, 6, 5, 4, 3, 2, 1, 0)))
    b.store(o, b.const(8), built)
    b.store(o, b.const(12), b(ops.GEP, INT32.vector(2), built, arg=(1, 1)))
    b.store(o, b.const(14), b.broadcast(parts[1], 2))
    out, data = np.zeros(16, np.int32), np.arange(10, 18, dtype=np.int32)
    execute(b.program(), [out, data])
    assert out.tolist() == [17, 16, 15, 14, 13, 12, 11, 10, 17, -5, 10, 17, -5, -5, 10, 10]


# -- memory --------------------------------------------------------------------------------------------------


class Guarded:
    """`count` elements that end where an inaccessible page begins."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        page = mmap.PAGESIZE
        size = -(-count * dtype.itemsize // page) * page
        self.memory = mmap.mmap(-1, size + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(base + size, page, 0) == 0
        self.array = np.frombuffer(self.memory, dtype, count, size - count * dtype.itemsize)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("gating", ["scalar", "lanes", "gather", "gather, one gate"])
@pytest.mark.parametrize(
    "dtype", [BOOL, dtypes.int8, dtypes.uint16, FLOAT32, dtypes.float64, dtypes.float16], ids=repr
)
def test_false_gate_touches_no_memory(dtype: DType, gating: str, target: str) -> None:
    """13 elements in steps of 8 (or 1): the rest of the second step lies in the page behind."""
    native, count = to_numpy(dtype), 13
    x, out = Guarded(native, count).array, Guarded(native, count).array
    x[:] = np.arange(1, count + 1) % 3
    seen = np.zeros(24, native)
    b = Build()
    o, s, p = b.param("out", dtype, count, True), b.param("seen", dtype, 24, True), b.param("x", dtype, count)
    lanes = 1 if gating == "scalar" else 8
    i = b.range("i", 24 // lanes)
    at = b.mul(i, lanes)
    index, gate = at, b.alu(ops.CMPLT, at, count)
    if gating != "scalar":
        each = b.add(b.broadcast(at, 8), b.iota(8))
        gate = b.alu(ops.CMPLT, each, b.broadcast(b.const(count), 8))
        index = at if gating == "lanes" else each
    if gating == "gather, one gate":  # the last step has nothing; the second is clamped to what is there
        index = b.alu(ops.MINIMUM, each, b.broadcast(b.const(count - 1), 8))
        index = b.alu(ops.WHERE, b.alu(ops.CMPLT, i, 2), index, each)
        gate = b.alu(ops.CMPLT, i, 2)
    value = b.load(p, index, lanes, gate)
    b.store(s, at, value)
    b.store(o, index, value, gate)
    b.end(i)
    execute(b.program(), [out, seen, x], target=target)
    wanted = np.zeros(24, native)
    wanted[:count] = x
    if gating == "gather, one gate":
        wanted[count:16] = x[-1]
    assert same(out.copy(), x.copy()) and same(seen, wanted)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("target", TARGETS)
def test_one_gate_for_a_whole_vector(target: str) -> None:
    x, out = Guarded(np.dtype(np.float32), 16).array, Guarded(np.dtype(np.float32), 16).array
    x[:] = np.arange(16)
    b = Build()
    o, p = b.param("out", FLOAT32, 16, True), b.param("x", FLOAT32, 16)
    total = b.local("total", FLOAT32.vector(8), ())
    zero = b.const(0)
    b.store(total, zero, b.broadcast(b.const(0.0, FLOAT32), 8))
    i = b.range("i", 4)
    at, gate = b.mul(i, 8), b.alu(ops.CMPLT, i, 2)
    value = b.load(p, at, 8, gate)
    b.store(total, zero, b.add(b.load(total, zero), value))
    b.store(o, at, b.load(total, zero), gate)
    b.end(i)
    execute(b.program(), [out, x], target=target)
    assert (out == np.concatenate([x[:8], x[:8] + x[8:]])).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", dtypes.ARRAY_DTYPES, ids=repr)
def test_gather_and_scatter(dtype: DType, target: str) -> None:
    """Reverse in steps of 4; in a second array all lanes go to one place, and the last of them stays."""
    bits = np.dtype(bool if dtype.kind == "bool" else f"u{dtype.itemsize}")
    x = np.random.default_rng(2).integers(0, 2 if dtype.kind == "bool" else 200, 16).astype(bits)
    out, last = np.zeros(16, bits), np.zeros(4, bits)
    order = np.arange(15, -1, -1, dtype=np.int32)
    b = Build()
    o, end = b.param("out", dtype, 16, True), b.param("last", dtype, 4, True)
    p, indices = b.param("x", dtype, 16), b.param("order", INT32, 16)
    i = b.range("i", 4)
    each = b.load(indices, b.mul(i, 4), 4)
    value = b.load(p, each)
    b.store(o, each, b.load(p, b.mul(i, 4), 4))
    b.store(end, b.broadcast(i, 4), value)
    b.end(i)
    execute(b.program(), [out, last, x, order], target=target)
    assert (out == x[::-1]).all()
    assert (last == x[order].reshape(4, 4)[:, 3]).all()


def test_arrays_in_local_memory_are_indexed_at_run_time() -> None:
    """A stack array is written, then read backwards; a stride of 0 takes no room."""
    b = Build()
    o, p = b.param("out", BOOL, 24, True), b.param("x", BOOL, 24)
    stage = b.local("stage", BOOL, (3, 0, 8), "local")
    i = b.range("i", 3)
    b.store(stage, b.mul(i, 8), b.load(p, b.mul(i, 8), 8))
    b.end(i)
    j = b.range("i", 24)
    b.store(o, j, b.load(stage, b.alu(ops.SUB, b.const(23), j)))
    b.end(j)
    x = samples(BOOL, 24, 8)
    out = np.empty_like(x)
    execute(b.program(), [out, x])
    assert (out == x[::-1]).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a sparse mapping of 4 GiB")
def test_indices_beyond_32_bits() -> None:
    far = (1 << 32) + 12345
    no_reserve = 0x4000  # a constant of Linux that Python's module lacks
    memory = mmap.mmap(-1, far + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    x = np.frombuffer(memory, np.uint8)
    x[:8], x[far : far + 8] = np.arange(1, 9), np.arange(11, 19)
    b = Build(INT64)
    o, p = b.param("out", dtypes.uint8, 16, True), b.param("x", dtypes.uint8, len(x))
    i = b.range("i", 2)
    at, place = b.mul(i, far), b.mul(i, 8)
    each = b.add(b.broadcast(b.add(at, 4), 4), b.iota(4))
    b.store(o, place, b.load(p, at, 4))
    b.store(o, b.add(place, 4), b.load(p, each))
    b.end(i)
    out = np.zeros(16, np.uint8)
    execute(b.program(), [out, x])
    assert out.tolist() == [*range(1, 9), *range(11, 19)]


# -- control -------------------------------------------------------------------------------------------------


def test_loops_nest_and_names_repeat() -> None:
    b = Build()
    o = b.param("out", INT32, 12, True)
    for offset in (0, 6):
        i = b.range("i", 2)
        j = b.range("j", 3)
        at = b.add(b.add(b.mul(i, 3), j), offset)
        b.store(o, at, b.add(b.mul(i, 10), j))
        b.end(j, i)
    out = np.full(12, -1, np.int32)
    execute(b.program(), [out])
    assert out.tolist() == [0, 1, 2, 10, 11, 12] * 2


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("kind", ["loop", "unroll"])
@pytest.mark.parametrize("index", [INT32, INT64], ids=repr)
def test_size_known_at_launch(index: DType, kind: str, size: int) -> None:
    b = Build(index)
    o = b.param("out", INT32, 8, True)
    b.variable("unused", 0, 9)
    n = b.variable("n", 0, 8)
    i = b.range("i", n, kind)
    b.store(o, i, b.const(3, INT32))
    b.end(i)
    out = np.zeros(8, np.int32)
    execute(b.program(), [out], [5, size])
    assert out.tolist() == [3] * size + [0] * (8 - size)


def test_if_guards_its_block() -> None:
    b = Build()
    o = b.param("out", INT32, 8, True)
    i = b.range("i", 8)
    guard = b(ops.IF, dtypes.void, b.alu(ops.CMPLT, i, 5))
    j = b.range("j", 2)
    b.store(o, i, b.add(b.load(o, i), 1))
    b.end(j)
    b(ops.ENDIF, dtypes.void, guard)
    b.end(i)
    out = np.zeros(8, np.int32)
    execute(b.program(), [out])
    assert out.tolist() == [2] * 5 + [0] * 3


@pytest.mark.parametrize("index", [INT32, INT64], ids=repr)
def test_thread_axis_runs_from_begin_to_end(index: DType) -> None:
    b = Build(index)
    o = b.param("out", INT32, 40, True)
    t = b.range("t", 10, "thread")
    i = b.range("i", 4)
    at = b.add(b.mul(t, 4), i)
    b.store(o, at, b.add(b.load(o, at), 1))
    b.end(i, t)
    program = b.program(chunks=10)
    loaded = load_object(compile_(program).data)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kernel = signature(loaded.symbol("kernel"))
    out = np.zeros(40, np.int32)
    buffers = (ctypes.c_void_p * 1)(out.ctypes.data)
    for begin, end in ((0, 3), (7, 8), (5, 5)):
        kernel(ctypes.addressof(buffers), None, begin, end)
    assert out.reshape(10, 4).tolist() == [[1] * 4] * 3 + [[0] * 4] * 4 + [[1] * 4] + [[0] * 4] * 2
    execute(program, [out])  # the runtime runs every chunk
    assert out.sum() == 40 + 16


def matmul(rows: int, columns: int, depth: int, lanes: int) -> Program:
    """Return a product with a register tile of 6 rows by 2 vectors, in replayed loops."""
    b = Build()
    vector = FLOAT32.vector(lanes)
    c = b.param("c", FLOAT32, rows * columns, True)
    a, w = b.param("a", FLOAT32, rows * depth), b.param("b", FLOAT32, depth * columns)
    tile, row = b.local("tile", vector, (6, 2)), b.local("row", vector, (2,))
    m, n = b.range("m", rows // 6, "thread"), b.range("n", columns // (2 * lanes))

    def column(j: UOp) -> UOp:
        return b.add(b.mul(n, 2 * lanes), b.mul(j, lanes))

    u, v = b.range("u", 6, "unroll"), b.range("v", 2, "unroll")
    b.store(tile, b.add(b.mul(u, 2), v), b.broadcast(b.const(0.0, FLOAT32), lanes))
    b.end(v, u)
    k = b.range("k", depth)
    v = b.range("v", 2, "unroll")
    b.store(row, v, b.load(w, b.add(b.mul(k, columns), column(v)), lanes))
    b.end(v)
    u = b.range("u", 6, "unroll")
    x = b.broadcast(b.load(a, b.add(b.mul(b.add(b.mul(m, 6), u), depth), k)), lanes)
    v = b.range("v", 2, "unroll")
    at = b.add(b.mul(u, 2), v)
    b.store(tile, at, b.alu(ops.MULACC, x, b.load(row, v), b.load(tile, at)))
    b.end(v, u, k)
    u, v = b.range("u", 6, "unroll"), b.range("v", 2, "unroll")
    place = b.add(b.mul(b.add(b.mul(m, 6), u), columns), column(v))
    b.store(c, place, b.load(tile, b.add(b.mul(u, 2), v)))
    b.end(v, u, n, m)
    return b.program("matmul", chunks=rows // 6)


@pytest.mark.parametrize("target", TARGETS)
def test_register_tile_matmul(target: str) -> None:
    rng = np.random.default_rng(0)
    a, w = rng.random((24, 40), np.float32), rng.random((40, 48), np.float32)
    c = np.empty((24, 48), np.float32)
    execute(matmul(24, 48, 40, 8), [c, a, w], target=target)
    np.testing.assert_allclose(c, a @ w, rtol=1e-5)


def test_register_tile_stays_in_registers() -> None:
    """12 accumulators, 2 vectors of a row and 1 broadcast fit 16 registers: one instruction each."""
    compiler = BACKEND.compiler("llvm/x86-64-v3")
    text = compiler.assembly(compile_(matmul(24, 48, 40, 8), "llvm/x86-64-v3"))
    body = text[text.index("matmul.body:") :]
    assert body.count("vfmadd") == 12
    vectors = [line for line in body.splitlines() if "ymm" in line and ("rsp" in line or "rbp" in line)]
    assert not vectors


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_registers_survive_conditions_and_loops_that_may_be_empty(size: int, gated: bool) -> None:
    """An array of values has the right one after each join, whichever way control came."""
    b = Build()
    o = b.param("out", INT32, 3, True)
    n = b.variable("n", 0, 8)
    acc = b.local("acc", INT32, (3,))
    for at, value in enumerate((7, 11)):  # the third element is never set before the loop
        b.store(acc, b.const(at), b.const(value, INT32))
    i = b.range("i", n)
    odd = b.alu(ops.CMPEQ, b.alu(ops.TRUNCMOD, i, b.const(2)), b.const(1))
    if gated:
        b.store(acc, b.const(0), b.add(b.load(acc, b.const(0)), i), gate=odd)
    else:
        condition = b(ops.IF, dtypes.void, odd)
        b.store(acc, b.const(0), b.add(b.load(acc, b.const(0)), i))
        b(ops.ENDIF, dtypes.void, condition)
    b.store(acc, b.const(2), i)
    b.end(i)
    set_ = b(ops.IF, dtypes.void, b.alu(ops.CMPLT, n, 1))
    b.store(acc, b.const(2), b.const(-1, INT32))
    b(ops.ENDIF, dtypes.void, set_)
    for at in range(3):
        b.store(o, b.const(at), b.load(acc, b.const(at)))
    program = b.program()
    assert "alloca" not in render(program).text
    out = np.zeros(3, np.int32)
    execute(program, [out], [size])
    assert out.tolist() == [7 + sum(k for k in range(size) if k % 2), 11, size - 1]


def test_array_with_an_index_known_at_run_time_stays_in_memory() -> None:
    b = Build()
    o = b.param("out", INT32, 4, True)
    acc = b.local("acc", INT32, (4,))
    i = b.range("i", 4)
    b.store(acc, i, b.mul(i, 3))
    b.end(i)
    u = b.range("u", 4, "unroll")
    b.store(o, u, b.load(acc, u))
    b.end(u)
    program = b.program()
    assert "alloca" in render(program).text
    out = np.zeros(4, np.int32)
    execute(program, [out])
    assert out.tolist() == [0, 3, 6, 9]


# -- literals ------------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 1e-45]
LITERALS: list[tuple[DType, list[Any]]] = [
    (dtypes.int64, [3000000000, -(2**63), 2**63 - 1, 65536 * 65536, -1]),
    (dtypes.uint64, [2**64 - 1, 2**63]),
    (dtypes.int8, [-128, 127]),
    (dtypes.uint8, [255]),
    (dtypes.int32, [-(2**31), 2**31 - 1]),
    (dtypes.uint32, [2**32 - 1]),
    (BOOL, [True, False]),
    (dtypes.float16, [*SPECIAL, 65504.0, 6e-8]),
    (dtypes.bfloat16, [*SPECIAL, 3.38e38]),
    (dtypes.float8_e4m3, [0.0, -0.0, math.nan, 1.0, 448.0, 2.0**-9]),
    (dtypes.float8_e5m2, [0.0, -0.0, math.inf, math.nan, 57344.0, 2.0**-16]),
    (dtypes.float32, [*SPECIAL, float(np.finfo(np.float32).max), 0.1]),
    (dtypes.float64, [*SPECIAL, float(np.finfo(np.float64).max), 5e-324, 0.1]),
]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "values"), LITERALS, ids=lambda x: repr(x) if isinstance(x, DType) else "")
def test_literals_are_exact(dtype: DType, values: list[Any], target: str, lanes: int) -> None:
    with np.errstate(over="ignore"):
        wanted = np.repeat(np.array(values, to_numpy(dtype)), lanes)
    out = np.zeros_like(wanted)
    b = Build()
    o = b.param("out", dtype, len(wanted), True)
    for place, value in enumerate(values):
        b.store(o, b.const(place * lanes), b.broadcast(b.const(value, dtype), lanes))
    execute(b.program(), [out], target=target)
    number = wanted == wanted
    bits = f"u{dtype.itemsize}"
    assert (out.view(bits) == wanted.view(bits))[number].all()
    assert (out != out)[~number].all()


@pytest.mark.parametrize("dtype", [BOOL, dtypes.int8, dtypes.uint8, INT32, INT64, dtypes.uint64], ids=repr)
def test_arithmetic_on_literals_equals_arithmetic_at_run_time(dtype: DType) -> None:
    """Each op on every pair of edge values, once folded by the renderer and once computed."""
    edges = [True, False] if dtype.kind == "bool" else [dtype.min, dtype.max, 0, 1, 5]
    if dtype.kind == "int":
        edges += [-1, -7]
    binary = [ops.ADD, ops.MUL, ops.AND, ops.OR, ops.XOR, ops.MAXIMUM, ops.MINIMUM, *COMPARISONS]
    if dtype.is_int:
        binary += [ops.SUB, ops.USHL, ops.USHR, ops.TRUNCDIV, ops.TRUNCMOD]
    unary = [ops.NOT] if dtype.kind == "bool" else [ops.NOT, ops.NEG]
    cases: list[tuple[Op, tuple[Any, ...]]] = [(op, (x,)) for op in unary for x in edges]
    for op in binary:
        for x in edges:
            for y in edges:
                if op in (ops.USHL, ops.USHR) and not 0 <= y < dtype.bits:
                    continue
                if op in (ops.TRUNCDIV, ops.TRUNCMOD) and (y == 0 or (y == -1 and x == dtype.min)):
                    continue
                cases.append((op, (x, y)))
    results = [np.zeros(len(cases), np.uint64) for _ in range(3)]
    x = np.array([case[1][0] for case in cases], to_numpy(dtype))
    y = np.array([case[1][-1] for case in cases], to_numpy(dtype))
    b = Build()
    outputs = [
        b.param(name, dtypes.uint64, len(cases), True) for name in ("folded", "half_folded", "computed")
    ]
    first, second = b.param("x", dtype, len(cases)), b.param("y", dtype, len(cases))
    for place, (op, values) in enumerate(cases):
        at = b.const(place)
        loaded = [b.load(first, at), b.load(second, at)][: len(values)]
        literals = [b.const(v, dtype) for v in values]
        for out, operands in zip(outputs, (literals, [*loaded[:-1], literals[-1]], loaded), strict=True):
            value = b.alu(op, *operands)
            b.store(out, at, b(ops.CAST, dtypes.uint64, value) if value.dtype is not dtypes.uint64 else value)
    execute(b.program(), [*results, x, y])
    folded, half_folded, computed = results
    assert [cases[i] for i in np.flatnonzero((folded != computed) | (half_folded != computed))] == []


def test_index_arithmetic_is_marked_only_where_it_cannot_wrap() -> None:
    b = Build()
    o, p = b.param("out", INT32, 100, True), b.param("x", INT32, 100)
    i = b.range("i", 100)
    value = b.load(p, i)
    b.store(o, b.alu(ops.TRUNCMOD, b.add(b.mul(i, 3), 7), 100), b.mul(b.add(value, 1), 1 << 30))
    b.end(i)
    text = render(b.program()).text
    assert "mul nuw nsw i32 %i, 3" in text and "urem i32" in text
    assert "%add.1 = add i32 %load.0, 1" in text
    x = np.arange(100, dtype=np.int32) + (2**31 - 50)
    out = np.zeros_like(x)
    execute(b.program(), [out, x])
    wanted = np.zeros_like(x)
    wanted[(np.arange(100) * 3 + 7) % 100] = (x + 1) * np.int32(1 << 30)
    assert (out == wanted).all()


# -- the text and the object ---------------------------------------------------------------------------------


def _everything() -> Program:
    """Return a program with every op that could tempt LLVM to call a library."""
    b = Build()
    single, double = b.param("single", FLOAT32, 64, True), b.param("double", dtypes.float64, 64, True)
    wide, bytes_ = b.param("wide", dtypes.uint64, 64, True), b.param("bytes", dtypes.uint8, 4096, True)
    indices = b.param("indices", INT32, 64)
    i = b.range("i", 8)
    at = b.mul(i, 8)
    x, y, z = b.load(single, at, 8), b.load(double, at, 8), b.load(wide, at, 8)
    for op in (ops.SQRT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT):
        x, y = b.alu(op, x), b.alu(op, y)
    x, y = b.alu(ops.MULACC, x, x, x), b.alu(ops.MULACC, y, y, y)
    z = b.alu(ops.TRUNCMOD, b.alu(ops.TRUNCDIV, z, b.mul(z, z)), z)
    b.store(single, at, b.add(x, b(ops.CAST, FLOAT32.vector(8), z)))
    b.store(wide, at, b.add(z, b(ops.CAST, dtypes.uint64.vector(8), y)))
    each = b.load(indices, at, 8)
    b.store(double, each, b.add(y, b(ops.CAST, dtypes.float64.vector(8), b.load(single, each))))
    b.end(i)
    j = b.range("j", 4096)  # a loop that clears, and one that copies
    b.store(bytes_, j, b.const(0, dtypes.uint8))
    b.end(j)
    j = b.range("j", 256)
    b.store(wide, b.mul(j, 0), b.load(wide, j))
    b.end(j)
    return b.program()


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_objects_need_no_library(target: str) -> None:
    binary = compile_(_everything(), target)
    if binary.data[:4] != b"\x7fELF":
        pytest.skip("not an ELF object")
    undefined = [s.name for s in parse_object(binary.data).symbols if s.section == 0 and s.name]
    assert not undefined


@pytest.mark.parametrize("op", [ops.CAST, ops.ADD], ids=repr)
@pytest.mark.parametrize("dtype", NARROW, ids=repr)
def test_arithmetic_in_narrow_floats_is_refused(dtype: DType, op: Op) -> None:
    b = Build()
    o, p = b.param("out", dtypes.float64, 1, True), b.param("x", dtype, 1)
    x = b.load(p, b.const(0))
    b(ops.CAST, dtypes.int32, x) if op is ops.CAST else b.add(x, x)
    assert o.dtype is dtypes.float64
    with pytest.raises(CompileError, match=f"no plugin renders {op.name}"):
        render(b.program())


def test_fold_of_an_uneven_vector_is_refused() -> None:
    b = Build()
    p = b.param("x", FLOAT32, 3)
    b(ops.FOLD, FLOAT32, b.load(p, b.const(0), 3), arg=ops.ADD)
    with pytest.raises(CompileError, match="power of two"):
        render(b.program())


def test_rendered_text() -> None:
    """The text is made to be read: names from the program, one indented block for each loop.

    A replayed body asks again for what it had; an array with literal indices is nothing but its values.
    """
    b = Build()
    o, p = b.param("out", FLOAT32, 32, True), b.param("a", FLOAT32, 32)
    t = b.range("t", 4, "thread")
    acc = b.local("acc", FLOAT32.vector(4), (2,))
    u = b.range("u", 2, "unroll")
    b.store(acc, u, b.load(p, b.add(b.mul(t, 8), b.mul(u, 4)), 4))
    b.end(u)
    b.store(o, b.mul(t, 8), b.load(acc, b.const(1)))
    b.end(t)
    assert (
        render(b.program("k"), "llvm/x86-64-v3").text
        == """\
; k for llvm/x86-64-v3

define void @k(ptr %buffers, ptr %variables, i64 %begin, i64 %end) #0 {
  %out.at = getelementptr ptr, ptr %buffers, i64 0
  %out = load ptr, ptr %out.at
  %a.at = getelementptr ptr, ptr %buffers, i64 1
  %a = load ptr, ptr %a.at
  call void @k.body(ptr %out, ptr %a, i64 %begin, i64 %end)
  ret void
}

define internal void @k.body(ptr noalias %out, ptr noalias readonly %a, i64 %chunk.begin, i64 %chunk.end) #0 {
entry:
  %cast.0 = trunc i64 %chunk.begin to i32
  %cast.1 = trunc i64 %chunk.end to i32
  %cmp.0 = icmp slt i32 %cast.0, %cast.1
  br i1 %cmp.0, label %t.body, label %t.exit
  t.body:
    %t = phi i32 [ %cast.0, %entry ], [ %t.next, %t.latch ]
    %mul.0 = mul nuw nsw i32 %t, 8
    %address.0 = getelementptr inbounds float, ptr %a, i32 %mul.0
    %load.0 = load <4 x float>, ptr %address.0, align 4
    %add.0 = add nuw nsw i32 %mul.0, 4
    %address.1 = getelementptr inbounds float, ptr %a, i32 %add.0
    %load.1 = load <4 x float>, ptr %address.1, align 4
    %mul.1 = mul nuw nsw i32 %t, 8
    %address.2 = getelementptr inbounds float, ptr %out, i32 %mul.1
    store <4 x float> %load.1, ptr %address.2, align 4
    br label %t.latch
    t.latch:
    %t.next = add nuw nsw i32 %t, 1
    %cmp.1 = icmp slt i32 %t.next, %cast.1
    br i1 %cmp.1, label %t.body, label %t.exit
  t.exit:
  ret void
}

attributes #0 = { noinline nounwind "no-builtins" "prefer-vector-width"="256" "min-legal-vector-width"="256" }
"""
    )
