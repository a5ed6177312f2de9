"""The clang backend's code: programs written by hand, compiled by every C compiler, run and compared."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_build import Array, Build, same, samples

from retarget.codegen.driver import emit
from retarget.codegen.hooks import HookPlugin, resolve
from retarget.codegen.program import Program
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp
from retarget.registry.backend import Binary, Source
from retarget.runtime.cpu import features, host
from retarget.runtime.objects import parse_object
from retarget_clang.backend import ClangBackend
from retarget_clang.compiler import CCompiler, ClangCompiler, candidates, describe
from retarget_numpy.semantics import ELEMENTWISE, quiet

BACKEND = ClangBackend()
TARGET = "clang/native"
INT32, FLOAT32, BOOL = dtypes.int32, dtypes.float32, dtypes.bool_
INTEGERS = [d for d in dtypes.ARRAY_DTYPES if d.is_int]
WIDE = [BOOL, *INTEGERS, dtypes.float32, dtypes.float64]
NARROW = [d for d in dtypes.ARRAY_DTYPES if d.is_float and d.bits < 32]
GOLDEN = Path(__file__).parents[1] / "golden"


def _compilers() -> list[CCompiler]:
    """Return the different compilers of this machine: the same clang under two names counts once."""
    found: dict[str, CCompiler] = {}
    for command in candidates():
        try:
            compiler = describe(command)
        except CompileError:
            continue
        found.setdefault(compiler.version, compiler)
    return list(found.values())


COMPILERS = _compilers()
every_compiler = pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c.name.replace(" ", "-"))
#: Warnings are errors: generated code is clean under the strictest usual settings.
STRICT = ("-Wall", "-Wextra", "-Werror")


class StrictCompiler(ClangCompiler):
    """The backend's compiler, with warnings as errors."""

    def flags(self) -> tuple[str, ...]:
        return (*super().flags(), *STRICT)


def render(program: Program, target: str = TARGET) -> Source:
    renderer = BACKEND.renderer(target)
    return emit(program, renderer, resolve([HookPlugin("clang", renderer)], target))


def run(
    build: Build, compiler: CCompiler, variables: tuple[int, ...] = (), *, strict: bool = True, **launch: Any
) -> Binary:
    """Compile and launch a program, and compare every output."""
    with_flags = StrictCompiler if strict else ClangCompiler
    binary = with_flags(TARGET, compiler).compile(render(build.program(**launch)))
    buffers = [a for a in build.arguments if a.kind == "buffer"]
    BACKEND.runtime("clang:0").load(binary)([a.ctypes.data for a in build.arrays], variables)
    for argument, array in zip(buffers, build.arrays, strict=True):
        if argument.name in build.expected:
            wanted = build.expected[argument.name]
            assert same(array, wanted), f"{argument.name}: {array} is not {wanted}"
    return binary


COUNT = 64
FLOATS = {
    1: [ops.NEG, ops.SQRT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT],
    2: [ops.ADD, ops.SUB, ops.MUL, ops.FDIV, ops.MAXIMUM, ops.MINIMUM],
}
WHOLE = {
    1: [ops.NEG, ops.NOT],
    2: [ops.ADD, ops.SUB, ops.MUL, ops.AND, ops.OR, ops.XOR, ops.TRUNCDIV, ops.TRUNCMOD, ops.USHL, ops.USHR,
        ops.MAXIMUM, ops.MINIMUM],
}  # fmt: skip
LOGICAL = {1: [ops.NOT], 2: [ops.ADD, ops.MUL, ops.AND, ops.OR, ops.XOR]}
COMPARISONS = [ops.CMPLT, ops.CMPLE, ops.CMPEQ, ops.CMPNE]


def _ops_of(dtype: DType) -> list[Op]:
    table = FLOATS if dtype.is_float else WHOLE if dtype.is_int else LOGICAL
    return [*table[1], *table[2], *COMPARISONS]


def _every_op(dtype: DType, lanes: int) -> Build:
    """Return one program of every op on a dtype."""
    build, seed = Build(), WIDE.index(dtype)
    x, y, c = samples(dtype, COUNT, seed), samples(dtype, COUNT, seed + 100), samples(BOOL, COUNT, seed)
    nonzero, counts = y, y
    if dtype.is_int:
        nonzero = np.where(
            (y == 0) | (y == to_numpy(dtype).type(-1 if dtype.kind == "int" else 1)), y.dtype.type(7), y
        )
        counts = np.abs(samples(INT32, COUNT, seed) % dtype.bits).astype(y.dtype)
    buffers = {}
    named = {"x": x, "y": y, "c": c, **({"d": nonzero, "n": counts} if dtype.is_int else {})}
    for name, array in named.items():
        buffers[name] = build.input(f"{name}_{dtype}", array)
    with quiet():
        outputs = []
        for op in _ops_of(dtype):
            second, values = "y", y
            if op in (ops.TRUNCDIV, ops.TRUNCMOD):
                second, values = "d", nonzero
            elif op in (ops.USHL, ops.USHR):
                second, values = "n", counts
            arity = len(op.operands)
            result = ELEMENTWISE[op](BOOL if op in COMPARISONS else dtype, *(x, values)[:arity])
            outputs.append((op, second, build.output(f"{op.name.lower()}_{dtype}", np.asarray(result))))
    chosen = build.output(f"where_{dtype}", np.where(c, x, y))
    i = build.range("i", COUNT // lanes)
    at = build.mul(i, lanes)
    values_of = {name: build.load(buffer, at, lanes) for name, buffer in buffers.items()}
    for op, second, output in outputs:
        build.store(output, at, build.alu(op, *(values_of["x"], values_of[second])[: len(op.operands)]))
    build.store(
        chosen, at, build(ops.WHERE, dtype.vector(lanes), values_of["c"], values_of["x"], values_of["y"])
    )
    build.end(i)
    return build


@every_compiler
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", WIDE, ids=repr)
def test_every_op_equals_numpy(dtype: DType, lanes: int, compiler: CCompiler) -> None:
    run(_every_op(dtype, lanes), compiler)


# -- conversions -------------------------------------------------------------------------------------------


def _castable(source: DType, target: DType) -> Array:
    """Return values of `source` that a linear CAST takes: floats that the integer type holds."""
    x = samples(source, COUNT, 7)
    if source.is_float and target.is_int:
        low, high = max(float(target.min), -1e15), min(float(target.max), 1e15)
        x = (
            np.nan_to_num(x.astype(np.float64), nan=1.5, posinf=3.0, neginf=0.0)
            .clip(low, high - high / 2**23)
            .astype(x.dtype)
        )
    return x


@every_compiler
@pytest.mark.parametrize("lanes", [1, 8])
def test_casts_equal_numpy(lanes: int, compiler: CCompiler) -> None:
    for source in WIDE:
        build = Build()
        cases = []
        for target in WIDE:
            if target not in (source, BOOL):
                x = _castable(source, target)
                with quiet():
                    wanted = x.astype(to_numpy(target))
                cases.append((target, build.input(f"to_{target}", x), build.output(f"as_{target}", wanted)))
        i = build.range("i", COUNT // lanes)
        at = build.mul(i, lanes)
        for target, x_param, out in cases:
            build.store(out, at, build.cast(build.load(x_param, at, lanes), target))
        build.end(i)
        run(build, compiler)


@every_compiler
@pytest.mark.parametrize("lanes", [1, 4])
def test_bitcasts_keep_bits(lanes: int, compiler: CCompiler) -> None:
    build = Build()
    cases = []
    for source in [*INTEGERS, *NARROW, dtypes.float32, dtypes.float64]:
        x = samples(dtypes.parse_dtype(f"uint{source.bits}"), COUNT, 3).view(to_numpy(source))
        for target in (dtypes.parse_dtype(f"int{source.bits}"), dtypes.parse_dtype(f"uint{source.bits}")):
            if target is source:
                continue
            wanted = x.view(to_numpy(target))
            out = build.output(f"{source}_is_{target}", wanted)
            cases.append((build.input(f"{source}_from_{target}", x), target, out))
            back = build.output(f"{target}_back_to_{source}", x)
            cases.append((build.input(f"{target}_to_{source}", wanted), source, back))
    i = build.range("i", COUNT // lanes)
    at = build.mul(i, lanes)
    for x_param, target, out in cases:
        build.store(out, at, build.bitcast(build.load(x_param, at, lanes), target))
    build.end(i)
    run(build, compiler)


@every_compiler
def test_bits_become_floats(compiler: CCompiler) -> None:
    build = Build()
    x = samples(dtypes.uint32, COUNT, 5) & np.uint32(0xFF7FFFFF)  # no NaN
    x_param, one, many = (
        build.input("x", x),
        build.output("one", x.view("f4")),
        build.output("many", x.view("f4")),
    )
    i = build.range("i", COUNT // 8)
    at = build.mul(i, 8)
    build.store(many, at, build.bitcast(build.load(x_param, at, 8), FLOAT32))
    j = build.range("j", 8)
    k = build.add(at, j)
    build.store(one, k, build.bitcast(build.load(x_param, k), FLOAT32))
    build.end(j, i)
    run(build, compiler)


@every_compiler
@pytest.mark.parametrize("lanes", [1, 8])
def test_float16_conversions_equal_numpy(lanes: int, compiler: CCompiler) -> None:
    if not host().half:
        with pytest.raises(CompileError, match="CAST of float32"):
            render(_half_program(lanes).program())
        return
    binary = run(_half_program(lanes), compiler)
    assert _undefined(binary) == set()


def _half_program(lanes: int) -> Build:
    build = Build()
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = np.array(
        [0.0, -0.0, 1e-8, 5.96e-8, 65519.0, 65520.0, 2049.0, 2051.0, np.inf, -np.inf, np.nan, 0.1], np.float32
    )
    numbers = np.resize(numbers, 64)
    with quiet():
        wide, narrow = halves.astype(np.float32), numbers.astype(np.float16)
    h, out_wide = build.input("h", halves), build.output("wide", wide)
    f, out_narrow = build.input("f", numbers), build.output("narrow", narrow)
    for name, source, out, size in (("i", h, out_wide, 1 << 16), ("j", f, out_narrow, 64)):
        i = build.range(name, size // lanes)
        at = build.mul(i, lanes)
        build.store(
            out, at, build.cast(build.load(source, at, lanes), FLOAT32 if source is h else dtypes.float16)
        )
        build.end(i)
    return build


@every_compiler
@pytest.mark.parametrize("lanes", [1, 8])
def test_narrow_floats_pass_through(lanes: int, compiler: CCompiler) -> None:
    build = Build()
    cases = []
    for dtype in NARROW:
        x = samples(dtypes.parse_dtype(f"uint{dtype.bits}"), COUNT, 3)
        condition = samples(BOOL, COUNT, 4)
        one = np.array(1.5).astype(to_numpy(dtype)).view(x.dtype)
        wanted = np.where(condition, x, one)
        cases.append((
            dtype, build.input(f"x_{dtype}", x, dtype), build.input(f"c_{dtype}", condition),
            build.output(f"out_{dtype}", wanted, dtype),
        ))  # fmt: skip
    i = build.range("i", COUNT // lanes)
    at = build.mul(i, lanes)
    for dtype, x_param, c_param, out in cases:
        vector = dtype.vector(lanes)
        constant = build.broadcast(build.const(1.5, dtype), lanes)
        value = build(
            ops.WHERE, vector, build.load(c_param, at, lanes), build.load(x_param, at, lanes), constant
        )
        build.store(out, at, value)
    build.end(i)
    run(build, compiler)


@pytest.mark.parametrize("dtype", NARROW, ids=repr)
@pytest.mark.parametrize("op", [ops.ADD, ops.NEG, ops.CMPLT, ops.MAXIMUM, ops.MULACC], ids=repr)
@pytest.mark.parametrize("lanes", [1, 8])
def test_arithmetic_in_narrow_floats_is_refused(dtype: DType, op: Op, lanes: int) -> None:
    build = Build()
    x = build.input("x", np.zeros(8, to_numpy(dtype)), dtype)
    value = build.load(x, build.const(0), lanes)
    build.alu(op, *[value] * len(op.operands))
    with pytest.raises(CompileError, match=f"no plugin renders {op} of"):
        render(build.program())


# -- integers ----------------------------------------------------------------------------------------------


@every_compiler
def test_narrow_integers_wrap_inside_an_expression(compiler: CCompiler) -> None:
    """C computes in int; (x + x) >> 1 on uint8 must still lose the carry."""
    build = Build()
    x = np.array([6, 200], np.uint8)
    b = np.array([-128, 100], np.int8)
    with quiet():
        wanted = (x + x) >> np.uint8(1)
        less = -x < np.uint8(4)
        absolute = np.where(b < 0, -b, b)
    x_param, b_param = build.input("x", x), build.input("b", b)
    outs = build.output("half", wanted), build.output("less", less), build.output("absolute", absolute)
    i = build.range("i", 2)
    v, w = build.load(x_param, i), build.load(b_param, i)
    build.store(outs[0], i, build.alu(ops.USHR, build.add(v, v), 1))
    build.store(outs[1], i, build.alu(ops.CMPLT, build.alu(ops.NEG, v), 4))
    negative = build.alu(ops.CMPLT, w, 0)
    build.store(outs[2], i, build(ops.WHERE, dtypes.int8, negative, build.alu(ops.NEG, w), w))
    build.end(i)
    assert wanted.tolist() == [6, 72]
    run(build, compiler)


@every_compiler
def test_signed_overflow_is_no_licence_to_simplify(compiler: CCompiler) -> None:
    build = Build()
    x = np.array([2147483647], np.int32)
    x_param, out = build.input("x", x), build.output("out", np.array([False]))
    zero = build.const(0)
    v = build.load(x_param, zero)
    build.store(out, zero, build.alu(ops.CMPLT, v, build.add(v, 1)))
    run(build, compiler)


LITERALS: list[tuple[DType, list[Any]]] = [
    *[(d, [d.min, d.max, 0, 1, 7]) for d in INTEGERS],
    (BOOL, [False, True]),
    (dtypes.int64, [3000000000, 65536 * 65536, -(2**31), -(2**31) - 1, 2**31]),
    (dtypes.uint32, [4000000000, 2**31]),
    *[(d, [0.0, -0.0, 1.0, -2.5, 0.1, 1e-45, 3.4028234663852886e38, 1e16, math.inf, -math.inf, math.nan])
      for d in (dtypes.float32, dtypes.float16, dtypes.bfloat16)],
    (dtypes.float64, [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, math.inf, -math.inf, math.nan]),
    *[(d, [0.0, -0.0, 1.0, -448.0, float("nan")]) for d in (dtypes.float8_e4m3, dtypes.float8_e5m2)],
]  # fmt: skip


@every_compiler
def test_literals_are_exact(compiler: CCompiler) -> None:
    build = Build()
    cases = []
    for number, (dtype, values) in enumerate(LITERALS):
        with quiet():
            wanted = (
                np.array(values).astype(to_numpy(dtype))
                if dtype.is_float
                else np.array(values, to_numpy(dtype))
            )
        if dtype in NARROW:
            nan = np.isnan(wanted.astype(np.float32))
            wanted = wanted.view(f"u{dtype.itemsize}").copy()
            wanted[nan] = _quiet_nan(dtype)
        cases.append(
            (
                dtype,
                values,
                build.output(f"one{number}", wanted, dtype),
                build.output(f"four{number}", np.repeat(wanted, 4), dtype),
            )
        )
    for dtype, values, one, four in cases:
        for n, value in enumerate(values):
            c = build.const(value, dtype)
            build.store(one, build.const(n), c)
            build.store(four, build.const(4 * n), build.broadcast(c, 4))
    run(build, compiler)


def _quiet_nan(dtype: DType) -> int:
    return {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3": 0x7F, "float8_e5m2": 0x7E}[dtype.name]


@every_compiler
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_arithmetic_on_literals_has_their_type(dtype: DType, compiler: CCompiler) -> None:
    """1 << 40 must not be computed in int, nor MIN compared as a wider number."""
    build = Build()
    top = dtype.bits - 1
    kind = to_numpy(dtype).type
    with quiet():
        shifted = kind(1) << kind(top)
        wrapped = kind(dtype.max) + kind(1)
    outs = build.output("shifted", np.array([shifted])), build.output("wrapped", np.array([wrapped]))
    less = build.output("less", np.array([wrapped < kind(0)]))
    zero, one = build.const(0), build.const(1, dtype)
    build.store(outs[0], zero, build.alu(ops.USHL, one, build.const(top, dtype)))
    total = build.add(build.const(int(dtype.max), dtype), one)
    build.store(outs[1], zero, total)
    build.store(less, zero, build.alu(ops.CMPLT, total, build.const(0, dtype)))
    run(build, compiler, strict=False)  # compilers remark on constants that overflow


# -- vectors -----------------------------------------------------------------------------------------------


@every_compiler
@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_fold_joins_halves(lanes: int, compiler: CCompiler) -> None:
    build = Build()
    cases = []
    for dtype in (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.uint16, dtypes.int64, BOOL):
        logical = dtype.kind == "bool"
        fold_ops = ops.REDUCE_OPS if dtype.is_int or logical else (ops.ADD, ops.MUL, ops.MAXIMUM, ops.MINIMUM)
        for op in fold_ops:
            x = samples(dtype, lanes, 11)
            if dtype.is_float:
                x = np.random.default_rng(3).standard_normal(lanes).astype(x.dtype)
            v = x
            with quiet():
                while len(v) > 1:
                    half = len(v) // 2
                    v = np.asarray(ELEMENTWISE[op](dtype, v[:half], v[half:]))
            name = f"{op.name.lower()}_{dtype}"
            cases.append((op, build.input(f"in_{name}", x), build.output(f"out_{name}", v)))
    zero = build.const(0)
    for op, x_param, out in cases:
        build.store(out, zero, build(ops.FOLD, x_param.dtype, build.load(x_param, zero, lanes), arg=op))
    run(build, compiler)


@every_compiler
def test_a_fold_with_nan_is_nan(compiler: CCompiler) -> None:
    build = Build()
    x = np.where(np.eye(8, dtype=bool), np.nan, np.arange(8)).astype(np.float32).reshape(-1)
    x_param = build.input("x", x)
    outs = [build.output(n, np.full(8, np.nan, np.float32)) for n in ("largest", "smallest")]
    i = build.range("i", 8)
    v = build.load(x_param, build.mul(i, 8), 8)
    for out, op in zip(outs, (ops.MAXIMUM, ops.MINIMUM), strict=True):
        build.store(out, i, build(ops.FOLD, FLOAT32, v, arg=op))
    build.end(i)
    run(build, compiler)


@every_compiler
def test_lanes_are_put_together_and_taken_apart(compiler: CCompiler) -> None:
    build = Build()
    x = np.arange(8, dtype=np.float32)
    flags = np.array([1, 0, 1, 1, 0, 0, 1, 0], bool)
    x_param, f_param = build.input("x", x), build.input("flags", flags)
    reverse, pair = build.output("reverse", x[::-1].copy()), build.output("pair", x[[6, 1]])
    built, lane = build.output("built", x[[3, 2, 1, 0]]), build.output("lane", x[5:6])
    turned, flag = build.output("turned", flags[::-1].copy()), build.output("flag", flags[3:4])
    made, every = build.output("made", flags[:4]), build.output("every", np.full(8, flags[2]))
    zero = build.const(0)
    v, m = build.load(x_param, zero, 8), build.load(f_param, zero, 8)
    doubled = build.add(v, build.broadcast(build.const(0.0, FLOAT32), 8))
    build.store(reverse, zero, build(ops.GEP, FLOAT32.vector(8), doubled, arg=tuple(range(7, -1, -1))))
    build.store(pair, zero, build(ops.GEP, FLOAT32.vector(2), v, arg=(6, 1)))
    scalars = [build.load(x_param, build.const(n)) for n in (3, 2, 1, 0)]
    build.store(built, zero, build(ops.VECTORIZE, FLOAT32.vector(4), *scalars))
    build.store(lane, zero, build(ops.GEP, FLOAT32, v, arg=(5,)))
    build.store(turned, zero, build(ops.GEP, BOOL.vector(8), m, arg=tuple(range(7, -1, -1))))
    build.store(flag, zero, build(ops.GEP, BOOL, m, arg=(3,)))
    bools = [build.load(f_param, build.const(n)) for n in range(4)]
    build.store(made, zero, build(ops.VECTORIZE, BOOL.vector(4), *bools))
    build.store(every, zero, build.broadcast(bools[2], 8))
    run(build, compiler)


@every_compiler
def test_masks_of_different_widths_meet(compiler: CCompiler) -> None:
    """Comparisons of float64, float32 and uint8 in one condition, which chooses between each."""
    build = Build()
    x, y, z = samples(dtypes.float64, 8, 1), samples(FLOAT32, 8, 2), samples(dtypes.uint8, 8, 3)
    condition = ((x < 1.0) & (y > 0.0)) | (z < 128)
    with quiet():
        params = [build.input(n, a) for n, a in (("x", x), ("y", y), ("z", z))]
        outs = [
            build.output(f"out{n}", np.where(condition, a, a.dtype.type(3))) for n, a in enumerate((x, y, z))
        ]
    cond_out, as_float = (
        build.output("condition", condition),
        build.output("as_float", condition.astype(np.float32)),
    )
    as_byte = build.output("as_byte", condition.astype(np.uint8))
    chosen = build.output("chosen", np.where(condition, condition, y == 0))
    uniform = build.output("uniform", y)
    zero = build.const(0)
    values = [build.load(p, zero, 8) for p in params]

    def number(value: float, dtype: DType) -> UOp:
        return build.broadcast(build.const(value, dtype), 8)

    a = build.alu(ops.CMPLT, values[0], number(1.0, dtypes.float64))
    b = build.alu(ops.CMPLT, number(0.0, FLOAT32), values[1])
    c = build.alu(ops.CMPLT, values[2], number(128, dtypes.uint8))
    all_ = build.alu(ops.OR, build.alu(ops.AND, a, b), c)
    for v, out in zip(values, outs, strict=True):
        build.store(out, zero, build(ops.WHERE, v.dtype, all_, v, number(3, v.dtype.scalar)))
    build.store(cond_out, zero, all_)
    build.store(as_float, zero, build.cast(all_, FLOAT32))
    build.store(as_byte, zero, build.cast(all_, dtypes.uint8))
    equal = build.alu(ops.CMPEQ, values[1], number(0.0, FLOAT32))
    build.store(chosen, zero, build(ops.WHERE, BOOL.vector(8), all_, all_, equal))
    always = build.broadcast(build.const(True, BOOL), 8)
    build.store(
        uniform,
        zero,
        build(ops.WHERE, FLOAT32.vector(8), build.alu(ops.OR, all_, always), values[1], number(0.0, FLOAT32)),
    )
    run(build, compiler)


@every_compiler
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=repr)
@pytest.mark.parametrize("lanes", [1, 8])
def test_multiply_add_rounds_once_or_twice_and_nothing_else_is_fused(
    dtype: DType, lanes: int, compiler: CCompiler
) -> None:
    build = Build()
    kind = to_numpy(dtype).type
    eps = np.finfo(kind).eps
    x = np.full(lanes, 1 + eps, kind)
    z = -(x * x)  # the rounded square: a fused x*x + z gives the rounding error, two roundings give 0
    names = build.input("x", x), build.input("z", z)
    plain = build.output("plain", np.zeros(lanes, kind))
    either = build.output("either", np.zeros(lanes, kind))
    zero = build.const(0)
    a, c = (build.load(n, zero, lanes) for n in names)
    build.store(plain, zero, build.add(build.mul(a, a), c))
    build.store(either, zero, build(ops.MULACC, dtype.vector(lanes), a, a, c))
    del build.expected["either"]
    run(build, compiler)
    fused = np.full(lanes, kind(eps) * kind(eps))
    assert same(build.arrays[-1], fused) or same(build.arrays[-1], np.zeros(lanes, kind))


@pytest.mark.parametrize("lanes", [3, 6])
def test_uneven_vectors_are_refused(lanes: int) -> None:
    build = Build()
    x = build.input("x", np.zeros(8, np.float32))
    build.load(x, build.const(0), lanes)
    with pytest.raises(CompileError, match=f"no vectors of {lanes} lanes"):
        render(build.program())


# -- memory ------------------------------------------------------------------------------------------------


class GuardedPage:
    """A page of memory with none behind it: touching what is beyond `end` kills the process."""

    def __init__(self) -> None:
        size = mmap.PAGESIZE
        self.memory = mmap.mmap(-1, 2 * size)
        self.view = np.frombuffer(self.memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self.view.ctypes.data + size), ctypes.c_size_t(size), 0) == 0

    def tail(self, array: Array) -> Array:
        """Return a copy of an array whose last byte is the page's last."""
        end = mmap.PAGESIZE
        copy = self.view[end - array.nbytes : end].view(array.dtype)
        copy[:] = array
        return copy


@every_compiler
@pytest.mark.parametrize("dtype", [FLOAT32, BOOL, dtypes.int64, dtypes.float16], ids=repr)
@pytest.mark.parametrize("lanes", [1, 8])
def test_false_gates_touch_no_memory(dtype: DType, lanes: int, compiler: CCompiler) -> None:
    """Eleven elements before an inaccessible page, read and written in pieces that end beyond them."""
    count = 11
    source, sink = GuardedPage(), GuardedPage()
    x = samples(BOOL if dtype is BOOL else dtype, count, 5)
    if dtype is dtypes.float16:
        x = x.view(np.uint16)
    build = Build()
    x_param = build.input("x", source.tail(x), dtype)
    padded = build.output("padded", np.concatenate([x, np.zeros(5, x.dtype)]), dtype)
    out = build.output("out", x, dtype)
    build.arrays[-1] = sink.tail(build.arrays[-1])
    i = build.range("i", 16 // lanes)
    at = build.mul(i, lanes)
    offsets = (
        build(ops.VECTORIZE, INT32.vector(lanes), *(build.const(n) for n in range(lanes)))
        if lanes > 1
        else build.const(0)
    )
    gate = build.alu(
        ops.CMPLT, build.add(build.broadcast(at, lanes), offsets), build.broadcast(build.const(count), lanes)
    )
    value = build.load(x_param, at, lanes, gate)
    build.store(padded, at, value)
    build.store(out, at, value, gate)
    build.end(i)
    run(build, compiler)


@every_compiler
def test_one_gate_for_a_whole_vector(compiler: CCompiler) -> None:
    build = Build()
    page = GuardedPage()
    x = np.arange(8, dtype=np.float32)
    flags = np.arange(16) < 8
    x_param, f_param = build.input("x", page.tail(x)), build.input("flags", flags)
    scalar = build.output("scalar", np.concatenate([x, 0 * x]))
    uniform, masks = build.output("uniform", np.concatenate([x, 0 * x])), build.output("masks", flags)
    i = build.range("i", 2)
    at = build.mul(i, 8)
    gate = build.alu(ops.CMPLT, at, 8)
    build.store(scalar, at, build.load(x_param, at, 8, gate))
    build.store(uniform, at, build.load(x_param, at, 8, build.broadcast(gate, 8)))
    build.store(masks, at, build.load(f_param, at, 8, gate))
    build.end(i)
    run(build, compiler)


@every_compiler
@pytest.mark.parametrize("index", [INT32, dtypes.int64], ids=repr)
def test_gather_and_scatter(index: DType, compiler: CCompiler) -> None:
    build = Build(index)
    order = np.random.default_rng(1).permutation(COUNT).astype(to_numpy(index))
    cases = []
    gate = samples(BOOL, COUNT, 9)
    wild = np.where(gate, order, 1 << 30).astype(order.dtype)  # far outside where the gate is false
    order_param, gate_param, wild_param = (
        build.input("order", order),
        build.input("gate", gate),
        build.input("wild", wild),
    )
    for dtype in (FLOAT32, dtypes.uint8, BOOL, dtypes.float64):
        x = samples(dtype, COUNT, 2)
        moved = np.empty_like(x)
        moved[order] = x
        cases.append((
            build.input(f"x_{dtype}", x),
            build.output(f"gathered_{dtype}", x[order]), build.output(f"scattered_{dtype}", moved),
            build.output(f"gated_{dtype}", np.where(gate, x[order], x.dtype.type(0))),
        ))  # fmt: skip
    i = build.range("i", COUNT // 8)
    at = build.mul(i, 8)
    n, g, w = build.load(order_param, at, 8), build.load(gate_param, at, 8), build.load(wild_param, at, 8)
    for x_param, gathered, scattered, gated in cases:
        build.store(gathered, at, build.load(x_param, n))
        build.store(scattered, n, build.load(x_param, at, 8))
        build.store(gated, at, build.load(x_param, w, gate=g))
    build.end(i)
    run(build, compiler)


@every_compiler
def test_gated_scatter_leaves_the_rest(compiler: CCompiler) -> None:
    build = Build()
    wanted = np.full(8 * 4, 0x55, np.uint8).view(np.float32).copy()
    wanted[[1, 3]] = [10.0, 30.0]
    out, where = (
        build.output("out", wanted),
        build.input("at", np.array([1, 1 << 29, 3, -(1 << 29)], np.int32)),
    )
    x, gate = (
        build.input("x", np.array([10, 20, 30, 40], np.float32)),
        build.input("gate", np.array([1, 0, 1, 0], bool)),
    )
    zero = build.const(0)
    build.store(out, build.load(where, zero, 4), build.load(x, zero, 4), build.load(gate, zero, 4))
    run(build, compiler)


@every_compiler
@pytest.mark.parametrize("index", [INT32, dtypes.int64], ids=repr)
def test_local_arrays_and_registers(index: DType, compiler: CCompiler) -> None:
    """A reversed copy through stack memory, a scalar accumulator, and an array of masks."""
    build = Build(index)
    x = np.arange(64, dtype=np.float32)
    x_param, out = build.input("x", x), build.output("out", x[::-1].copy())
    total, any_ = (
        build.output("total", x.sum(keepdims=True)),
        build.output("any", (x.reshape(8, 8) == 9).any(axis=0)),
    )
    tile = build.local("tile", FLOAT32, (8, 0, 8), "local")
    acc, found = build.local("acc", FLOAT32, ()), build.local("found", BOOL.vector(8), (1,))
    zero = build.const(0)
    build.store(acc, zero, build.const(0.0, FLOAT32))
    build.store(found, zero, build.broadcast(build.const(False, BOOL), 8))
    i = build.range("i", 8)
    at = build.mul(i, 8)
    v = build.load(x_param, at, 8)
    build.store(tile, at, v)
    nine = build.broadcast(build.const(9.0, FLOAT32), 8)
    build.store(found, zero, build.alu(ops.OR, build.load(found, zero), build.alu(ops.CMPEQ, v, nine)))
    build.end(i)
    build.store(any_, zero, build.load(found, zero))
    j = build.range("j", 64)
    value = build.load(tile, build.alu(ops.SUB, build.const(63), j))
    build.store(out, j, value)
    build.store(acc, zero, build.add(build.load(acc, zero), value))
    build.end(j)
    build.store(total, zero, build.load(acc, zero))
    run(build, compiler)


@every_compiler
def test_a_value_is_read_before_memory_changes(compiler: CCompiler) -> None:
    build = Build()
    x, out = (
        build.output("x", np.array([2.0, 1.0], np.float32)),
        build.output("out", np.array([3.0], np.float32)),
    )
    zero, one = build.const(0), build.const(1)
    build.store(x, zero, build.const(1.0, FLOAT32))
    build.store(x, one, build.const(2.0, FLOAT32))
    a, b = build.load(x, zero), build.load(x, one)
    total = build.add(a, b)
    build.store(x, zero, b)
    build.store(x, one, a)
    build.store(out, zero, total)
    run(build, compiler)


# -- control -----------------------------------------------------------------------------------------------


@every_compiler
def test_if_guards_its_block_and_names_repeat(compiler: CCompiler) -> None:
    build = Build()
    out = build.output(
        "i", np.array([0, 0, 2, 3], np.int32)
    )  # a parameter, a loop and a loop in it of one name
    outer = build.range("i", 4)
    build.store(out, outer, build.const(0))
    large = build(ops.IF, dtypes.void, build.alu(ops.CMPLE, build.const(2), outer))
    inner = build(ops.RANGE, INT32, build.const(1), arg=("i", None, "loop"))
    build.store(out, outer, build.add(outer, inner))
    build.end(inner)
    build(ops.ENDIF, dtypes.void, large)
    build.end(outer)
    run(build, compiler)


@every_compiler
@pytest.mark.parametrize("index", [INT32, dtypes.int64], ids=repr)
def test_size_known_at_launch(index: DType, compiler: CCompiler) -> None:
    build = Build(index)
    wanted = np.full(8, 0x55555555, np.int32)
    wanted[:5] = 1
    out = build.output("out", wanted)
    n = build.variable("end", 0, 8)  # a name that the signature has, too
    i = build.range("begin", build.alu(ops.SUB, n, 1))
    build.store(out, i, build.const(1, INT32))
    build.end(i)
    run(build, compiler, (6,))


@every_compiler
@pytest.mark.parametrize("index", [INT32, dtypes.int64], ids=repr)
def test_thread_axis_runs_from_begin_to_end(index: DType, compiler: CCompiler) -> None:
    build = Build(index)
    out = build.output("out", np.arange(1000).astype(np.int32))
    t = build.range("t", 1000, "thread")
    build.store(out, t, build.cast(t, INT32) if index is not INT32 else t)
    build.end(t)
    run(build, compiler, chunks=1000)


def matmul(m: int, n: int, k: int, lanes: int = 8, rows: int = 4) -> Build:
    """C = A @ B with a register tile of `rows` by two vectors, parallel over rows."""
    build = Build()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c_param, a_param, b_param = build.output("C", a @ b), build.input("A", a), build.input("B", b)
    t = build.range("m", m // rows, "thread")
    p = build.range("n", n // (2 * lanes))
    acc = build.local("acc", FLOAT32.vector(lanes), (rows, 2))
    i, j = build.range("i", rows, "unroll"), build.range("j", 2, "unroll")
    build.store(acc, build.add(build.mul(i, 2), j), build.broadcast(build.const(0.0, FLOAT32), lanes))
    build.end(j, i)
    kk = build.range("k", k)
    i = build.range("i", rows, "unroll")
    x = build.load(a_param, build.add(build.mul(build.add(build.mul(t, rows), i), k), kk))
    splat = build.broadcast(x, lanes)
    j = build.range("j", 2, "unroll")
    column = build.add(build.mul(p, 2 * lanes), build.mul(j, lanes))
    y = build.load(b_param, build.add(build.mul(kk, n), column), lanes, align=lanes)
    place = build.add(build.mul(i, 2), j)
    build.store(acc, place, build(ops.MULACC, y.dtype, splat, y, build.load(acc, place)))
    build.end(j, i, kk)
    i, j = build.range("i", rows, "unroll"), build.range("j", 2, "unroll")
    column = build.add(build.mul(p, 2 * lanes), build.mul(j, lanes))
    at = build.add(build.mul(build.add(build.mul(t, rows), i), n), column)
    build.store(c_param, at, build.load(acc, build.add(build.mul(i, 2), j)), align=lanes)
    build.end(j, i, p, t)
    return build


@every_compiler
def test_register_tile_stays_in_registers(compiler: CCompiler) -> None:
    binary = run(matmul(16, 64, 32), compiler, chunks=4)
    if host().vector_bits < 256 or "fma" not in features():
        return
    text = ClangCompiler(TARGET, compiler).assembly(binary)
    products = re.findall(r"vfn?madd\w+ps\s+(\S.*)", text)
    assert len(products) >= 8
    assert not re.search(r"vmov[au]ps\s+%ymm\d+,\S*\(%r[sb]p", text), "the tile is kept on the stack"


@every_compiler
def test_compare_and_select_is_one_blend(compiler: CCompiler) -> None:
    build = Build()
    x, y = samples(FLOAT32, COUNT, 1), samples(FLOAT32, COUNT, 2)
    with quiet():
        wanted = np.where(x < y, x, y * np.float32(2))
    x_param, y_param, out = build.input("x", x), build.input("y", y), build.output("out", wanted)
    i = build.range("i", COUNT // 8)
    at = build.mul(i, 8)
    a, b = build.load(x_param, at, 8), build.load(y_param, at, 8)
    two = build.broadcast(build.const(2.0, FLOAT32), 8)
    build.store(out, at, build(ops.WHERE, a.dtype, build.alu(ops.CMPLT, a, b), a, build.mul(b, two)))
    build.end(i)
    run(build, compiler)
    if host().vector_bits >= 256:
        source = render(build.program(), "clang/x86-64-v3")
        other = ClangCompiler("clang/x86-64-v3", compiler)
        text = other.assembly(other.compile(source))
        assert re.search(r"vcmp\w*ps .*ymm", text) and re.search(r"vblendvps .*ymm", text)
        assert not re.search(r"v(insert|extract|unpck|mul|cmp)\w*(ss|f128|ps .*xmm)", text), text


def _undefined(binary: Binary) -> set[str]:
    """Return the symbols that an object wants from elsewhere."""
    return {s.name for s in parse_object(binary.data).symbols if s.section == 0 and s.name}


@every_compiler
@pytest.mark.parametrize("dtype", WIDE, ids=repr)
def test_objects_need_no_library(dtype: DType, compiler: CCompiler) -> None:
    for lanes in (1, 8):
        source = render(_every_op(dtype, lanes).program())
        binary = ClangCompiler(TARGET, compiler).compile(source)
        assert _undefined(binary) <= {"_GLOBAL_OFFSET_TABLE_"}


# -- text --------------------------------------------------------------------------------------------------


def softmax() -> Build:
    """Row sums of a matrix with a masked tail, scaled: gates, folds, a scalar accumulator."""
    build = Build()
    x = np.arange(4 * 11, dtype=np.float32).reshape(4, 11)
    x_param, out = (
        build.input("x", x),
        build.output("out", (x / x.sum(axis=1, keepdims=True)).astype(np.float32)),
    )
    row = build.range("row", 4, "thread")
    acc, zero = build.local("total", FLOAT32.vector(8), ()), build.const(0)
    build.store(acc, zero, build.broadcast(build.const(0.0, FLOAT32), 8))
    lane = build(ops.VECTORIZE, INT32.vector(8), *(build.const(n) for n in range(8)))
    p = build.range("p", 2)
    at = build.mul(p, 8)
    gate = build.alu(ops.CMPLT, build.add(build.broadcast(at, 8), lane), build.broadcast(build.const(11), 8))
    value = build.load(x_param, build.add(build.mul(row, 11), at), 8, gate)
    build.store(acc, zero, build.add(build.load(acc, zero), value))
    build.end(p)
    total = build(ops.FOLD, FLOAT32, build.load(acc, zero), arg=ops.ADD)
    j = build.range("j", 11)
    k = build.add(build.mul(row, 11), j)
    build.store(out, k, build.alu(ops.FDIV, build.load(x_param, k), total))
    build.end(j, row)
    return build


def clamp() -> Build:
    """Comparisons, a select, conversions and a variable size."""
    build = Build(dtypes.int64)
    x = np.array([-3, 5, 300, 90], np.int16)
    x_param, out = build.input("x", x), build.output("out", np.array([0, 5, 255, 90], np.uint8))
    i = build.range("i", build.variable("n", 0, 4))
    v = build.load(x_param, i)
    low = build(ops.WHERE, dtypes.int16, build.alu(ops.CMPLT, v, 0), build.const(0, dtypes.int16), v)
    high = build.alu(ops.CMPLT, build.const(255, dtypes.int16), v)
    build.store(
        out,
        i,
        build.cast(build(ops.WHERE, dtypes.int16, high, build.const(255, dtypes.int16), low), dtypes.uint8),
    )
    build.end(i)
    return build


GOLDENS = {
    "matmul": (lambda: matmul(16, 64, 32), (), 4),
    "row_share": (softmax, (), 4),
    "clamp": (clamp, (4,), 1),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_text_is_as_blessed(name: str) -> None:
    make, _, chunks = GOLDENS[name]
    text = render(make().program(name, chunks=chunks)).text
    path = GOLDEN / f"clang_{name}.c"
    if os.environ.get("RETARGET_BLESS") == "1":
        path.write_text(text)
    wanted = path.read_text() if path.exists() else ""
    bless = f"RETARGET_BLESS=1 python -m pytest {Path(__file__).name} -k blessed"
    assert text == wanted, f"{path.name} differs from what is rendered; after a look at it: {bless}"


@every_compiler
@pytest.mark.parametrize("name", GOLDENS)
def test_blessed_kernels_compute(name: str, compiler: CCompiler) -> None:
    make, variables, chunks = GOLDENS[name]
    run(make(), compiler, variables, chunks=chunks)


def test_rendering_twice_gives_the_same_text() -> None:
    assert render(matmul(16, 64, 32).program()).text == render(matmul(16, 64, 32).program()).text


def test_parentheses_are_written_where_they_are_needed() -> None:
    build = Build()
    x, out = build.input("x", np.zeros(8, np.int32)), build.output("out", np.zeros(8, np.int32))
    m, i, k = build.range("m", 1), build.range("i", 1), build.range("k", 1)
    place = build.add(build.mul(build.add(build.mul(m, 8), i), 1024), k)
    a = build.load(x, place)
    rest = build.alu(ops.SUB, k, build.alu(ops.SUB, i, m))
    build.store(
        out,
        build.const(0),
        build.alu(ops.AND, build.mul(build.add(a, 1), build.alu(ops.NEG, build.const(-3))), rest),
    )
    build.end(k, i, m)
    text = render(build.program()).text
    assert "out[0] = ((x[(m*8 + i)*1024 + k] + 1)*-(-3)) & (k - (i - m));" in text


def test_an_accumulation_is_written_as_one() -> None:
    text = render(softmax().program("row_share", chunks=4)).text
    assert "total += load_if_f32x8_i32(" in text


def test_names_of_helpers_are_not_hidden() -> None:
    """A program may call its buffers and loops what the generated text calls its types and functions."""
    build = Build()
    x = np.arange(8, dtype=np.float32)
    x_param, out = build.input("splat_f32x8", x), build.output("f32x8u", x + 1)
    i = build.range("fma_f32x8", 1)
    build.store(
        out,
        build.mul(i, 8),
        build.add(build.load(x_param, build.mul(i, 8), 8), build.broadcast(build.const(1.0, FLOAT32), 8)),
    )
    build.end(i)
    run(build, COMPILERS[0])


def test_fresh_names_avoid_those_of_the_program() -> None:
    build = Build()
    x = np.arange(2, dtype=np.float32)
    x_param, out = build.input("x0", x), build.output("x1", x + x)
    i = build.range("x2", 2)
    v = build.load(x_param, i)
    build.store(out, i, build.add(v, v))
    build.end(i)
    run(build, COMPILERS[0])
