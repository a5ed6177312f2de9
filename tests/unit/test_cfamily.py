"""The C-family base: another language is tables and small methods; text has the parentheses that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from linear_build import Build

from retarget.codegen.cfamily import (
    CFamilyRenderer,
    Code,
    Form,
    Level,
    bare,
    call,
    infix,
    level_of,
    prefix,
    wrap,
)
from retarget.codegen.driver import EmitContext, emit
from retarget.codegen.hooks import HookPlugin, hookimpl, resolve
from retarget.codegen.program import Program
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, const
from retarget.registry.capabilities import Capabilities

INT32, FLOAT32 = dtypes.int32, dtypes.float32


class GridRenderer(CFamilyRenderer):
    """A GPU language in the manner of CUDA C, as a backend would write it."""

    LANGUAGE = "Grid C"
    ALU: Mapping[Op, Form] = {**CFamilyRenderer.ALU, ops.RINT: call("nearbyint{f}")}
    STORAGE: Mapping[str, str] = {**CFamilyRenderer.STORAGE, "local": "__shared__ {type} {name}[{size}];"}
    SPECIALS: Mapping[str, str] = {"g0": "blockIdx.x", "l0": "threadIdx.x"}
    KERNEL = 'extern "C" __global__ void'
    RESTRICT = "__restrict__ "
    BARRIER = "__syncthreads();"
    SHUFFLE = "__shfl_xor_sync(~0u, {0}, {mask})"
    signed_wraps = False


def render(
    program: Program, kind: type[CFamilyRenderer] = GridRenderer, plugins: Sequence[object] = ()
) -> str:
    renderer = kind("grid/one", Capabilities("grid/one", {}, {}))
    chain = [HookPlugin("grid", renderer), *(HookPlugin(f"plugin{n}", p) for n, p in enumerate(plugins))]
    return emit(program, renderer, resolve(chain, "grid/one")).text


def body(text: str) -> list[str]:
    """Return the lines inside the kernel."""
    return [line[2:] for line in text.partition(" {\n")[2].splitlines()[:-1]]


def evaluate(build: Build, dtype: dtypes.DType = INT32, count: int = 3) -> tuple[list[UOp], UOp, UOp]:
    """Return loaded operands and a place to store to."""
    zero = build.const(0)
    values = []
    for n in range(count):
        values.append(build.load(build.input("abcd"[n], np.zeros(1, dtypes.to_numpy(dtype))), zero))
    return values, build.output("out", np.zeros(1, dtypes.to_numpy(dtype))), zero


def test_a_gpu_kernel_is_tables() -> None:
    build = Build()
    zero = np.zeros(4096, np.float32)
    out, x = build.output("out", zero), build.input("x", zero)
    n = build.variable("n", 1, 1024)
    tile = build.local("tile", FLOAT32, (128,), "local")
    acc = build.local("acc", FLOAT32, (2,))
    g, t = (build(ops.SPECIAL, INT32, arg=(name, size)) for name, size in (("g0", 8), ("l0", 128)))
    at = build.add(build.mul(g, 512), build.mul(t, 4))
    four = build.load(x, at, 4, gate=build.alu(ops.CMPLT, g, n), align=4)
    lane, last = (build(ops.GEP, FLOAT32, four, arg=(n,)) for n in (1, 3))
    build.store(tile, t, lane)
    build(ops.BARRIER, dtypes.void)
    i = build.range("i", 2, "unroll")
    build.store(acc, i, build.load(tile, i))
    build.end(i)
    other = build(ops.SHUFFLE, FLOAT32, build.load(acc, build.const(0)), arg=16)
    build.store(out, at, build(ops.VECTORIZE, FLOAT32.vector(4), other, lane, lane, last), align=4)
    build.store(out, t, build.load(x, t, 2, align=1))
    text = render(build.program("grid_kernel", grid=(8,), block=(128,)))
    assert (
        text
        == """\
// grid_kernel for grid/one, grid 8, block 128

extern "C" __global__ void grid_kernel(float* __restrict__ out, const float* __restrict__ x, int n) {
  __shared__ float tile[128];
  float acc[2];
  const int g0 = blockIdx.x;
  const int l0 = threadIdx.x;
  const float4 x0 = g0 < n ? *(const float4*)&x[g0*512 + l0*4] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float x1 = x0.y;
  tile[l0] = x1;
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    acc[i] = tile[i];
  }
  *(float4*)&out[g0*512 + l0*4] = make_float4(__shfl_xor_sync(~0u, acc[0], 16), x1, x1, x0.w);
  const float2 x2 = make_float2(x[l0], x[l0 + 1]);
  out[l0] = x2.x;
  out[l0 + 1] = x2.y;
}
"""
    )


def test_signed_arithmetic_is_unsigned_where_overflow_is_undefined() -> None:
    class Wrapping(GridRenderer):
        signed_wraps = True

    build = Build()
    (a, b, _), out, zero = evaluate(build)
    build.store(out, zero, build.alu(ops.NEG, build.mul(build.add(a, b), a)))
    lines = body(render(build.program()))
    assert (
        lines[-1] == "out[0] = (int)-((unsigned int)(int)((unsigned int)(int)((unsigned int)n0 + b[0])*n0));"
    )
    assert body(render(build.program(), Wrapping))[-1] == "out[0] = -((n0 + b[0])*n0);"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (lambda b, x, y, z: b.add(b.add(x, y), z), "a[0] + b[0] + c[0]"),
        (lambda b, x, y, z: b.add(x, b.alu(ops.SUB, y, z)), "a[0] + b[0] - c[0]"),
        (lambda b, x, y, z: b.alu(ops.SUB, x, b.add(y, z)), "a[0] - (b[0] + c[0])"),
        (lambda b, x, y, z: b.mul(x, b.alu(ops.TRUNCDIV, y, z)), "a[0]*(b[0] / c[0])"),
        (lambda b, x, y, z: b.alu(ops.TRUNCDIV, b.mul(x, y), z), "a[0]*b[0] / c[0]"),
        (lambda b, x, y, z: b.alu(ops.AND, b.alu(ops.OR, x, y), z), "(a[0] | b[0]) & c[0]"),
        (lambda b, x, y, z: b.alu(ops.USHR, b.add(x, y), z), "(a[0] + b[0]) >> c[0]"),
        (lambda b, x, y, z: b.alu(ops.NOT, b.alu(ops.NEG, b.add(x, b.mul(y, z)))), "~(-(a[0] + b[0]*c[0]))"),
        (
            lambda b, x, y, z: b(ops.WHERE, INT32, b.alu(ops.CMPLT, b.add(x, 1), y), y, z),
            "a[0] + 1 < n0 ? n0 : c[0]",
        ),
    ],
)
def test_parentheses(expression: Any, text: str) -> None:
    class Wrapping(GridRenderer):
        signed_wraps = True

    build = Build()
    (x, y, z), out, zero = evaluate(build)
    build.store(out, zero, expression(build, x, y, z))
    assert body(render(build.program(), Wrapping))[-1] == f"out[0] = {text};"


def test_floats_are_not_reassociated() -> None:
    build = Build()
    (x, y, z), out, zero = evaluate(build, FLOAT32)
    build.store(out, zero, build.add(x, build.add(y, z)))
    assert body(render(build.program()))[-1] == "out[0] = a[0] + (b[0] + c[0]);"


@pytest.mark.parametrize(
    ("dtype", "value", "text", "short"),
    [
        (dtypes.int64, 5, "5LL", "5"),
        (dtypes.int64, -(2**63), "-9223372036854775807LL - 1", None),
        (dtypes.int64, 2**31, "2147483648LL", None),
        (INT32, -(2**31), "-2147483647 - 1", None),
        (dtypes.uint64, 2**64 - 1, "18446744073709551615ULL", None),
        (dtypes.uint32, 7, "7u", "7"),
        (dtypes.int8, -128, "-128", None),
        (FLOAT32, 0.1, "0.1f", None),
        (FLOAT32, 1e-45, "1e-45f", None),
        (FLOAT32, -0.0, "-0.0f", None),
        (FLOAT32, -np.inf, "-INFINITY", None),
        (dtypes.float64, 0.1, "0.1", None),
        (dtypes.bool_, True, "true", None),
        (dtypes.bfloat16, 1.0, "16256", None),
    ],
)
def test_literals(dtype: dtypes.DType, value: Any, text: str, short: str | None) -> None:
    renderer = GridRenderer("grid/one", Capabilities("grid/one", {}, {}))
    program = Program("kernel", (), ())
    ctx = EmitContext(
        program, renderer, resolve([HookPlugin("grid", renderer)], "grid/one"), provenance=False
    )
    literal = renderer.literal(ctx, dtype, const(value, dtype).arg)
    assert literal == text
    assert (str(bare(literal)) if bare(literal) is not literal else None) == short


def test_what_a_language_lacks_is_refused() -> None:
    class Plain(CFamilyRenderer):
        LANGUAGE = "Plain C"
        TYPES: Mapping[str, str] = {k: v for k, v in CFamilyRenderer.TYPES.items() if k != "float64"}

    def refuse(message: str, kind: type[CFamilyRenderer], write: Any) -> None:
        build = Build()
        write(build)
        with pytest.raises(CompileError, match=message):
            render(build.program(), kind)

    refuse("Plain C has no barrier", Plain, lambda b: b(ops.BARRIER, dtypes.void))
    refuse("Plain C has no constant memory", Plain, lambda b: b.local("t", FLOAT32, (4,), "constant"))
    refuse("Plain C has no type for float64", Plain, lambda b: b.local("t", dtypes.float64, (4,)))
    refuse("no plugin renders SPECIAL", Plain, lambda b: b(ops.SPECIAL, INT32, arg=("g0", 4)))
    refuse("no plugin renders SHUFFLE", Plain, lambda b: b(ops.SHUFFLE, INT32, b.const(1), arg=1))

    def vector_add(b: Build) -> None:
        v = b.broadcast(b.const(1.0, FLOAT32), 4)
        b.add(v, v)

    refuse("no plugin renders ADD of float32x4", GridRenderer, vector_add)

    def scatter(b: Build) -> None:
        at = b.broadcast(b.const(1), 4)
        b.store(b.output("out", np.zeros(4, np.float32)), at, b.broadcast(b.const(1.0, FLOAT32), 4))

    refuse("Grid C has no stores by lane", GridRenderer, scatter)


def test_a_plugin_may_answer_with_plain_text() -> None:
    """Text that an extension wrote is put in parentheses unless it is a name."""

    class Doubling:
        @hookimpl(ops=["ADD"])
        def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
            return f"{operands[0]} <plus> {operands[1]}"

    build = Build()
    (x, y, z), out, zero = evaluate(build)
    build.store(out, zero, build.alu(ops.NOT, build.alu(ops.AND, build.add(x, y), z)))
    assert body(render(build.program(), plugins=[Doubling()]))[-1] == "out[0] = ~((a[0] <plus> b[0]) & c[0]);"


def test_no_table_is_shared_with_the_base() -> None:
    assert CFamilyRenderer.SPECIALS == {} and CFamilyRenderer.ALU[ops.RINT].pattern == "rint{f}({0})"


def test_code() -> None:
    assert wrap(Code("a + b", Level.ADDITIVE), Level.MULTIPLICATIVE) == "(a + b)"
    assert wrap(Code("a + b", Level.ADDITIVE), Level.ADDITIVE) == "a + b"
    assert level_of("name") == Level.POSTFIX and level_of("f(x)") == Level.ASSIGNMENT
    assert infix("-", Level.ADDITIVE).least == (Level.ADDITIVE, Level.ADDITIVE + 1)
    assert prefix("-").pattern == "-{0}" and call("f", 2).pattern == "f({0}, {1})"
