"""The interpreter of linear programs: blocks, memory, vectors, threads, matrix instructions, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retarget.errors import InternalError, LaunchError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, const
from retarget.registry.capabilities import TensorCore
from retarget_numpy.interpreter import ExecutionError, Interpreter, run
from retarget_numpy.semantics import ELEMENTWISE, quiet

Array = np.ndarray[Any, Any]
F32, I32, BOOL, VOID = dtypes.float32, dtypes.int32, dtypes.bool_, dtypes.void


class Program(list[UOp]):
    """A linear program under construction; each method appends a uop and returns it."""

    def add(self, op: Op, dtype: DType, *src: UOp, arg: Any = None) -> UOp:
        u = UOp(op, dtype, src, arg)
        self.append(u)
        return u

    def param(self, name: str, dtype: DType, size: int, *, writable: bool = False) -> UOp:
        return self.add(ops.PARAM, dtype, arg=(name, (size,), writable))

    def local(self, name: str, dtype: DType, size: int, space: str = "local") -> UOp:
        return self.add(ops.LOCAL, dtype, arg=(name, (size,), space))

    def const(self, value: Any, dtype: DType = I32) -> UOp:
        u = const(value, dtype)
        self.append(u)
        return u

    def loop(self, name: str, size: int | UOp, kind: str = "loop") -> UOp:
        if isinstance(size, UOp):
            return self.add(ops.RANGE, I32, size, arg=(name, None, kind))
        return self.add(ops.RANGE, I32, arg=(name, size, kind))

    def end(self, loop: UOp) -> None:
        self.add(ops.END, VOID, loop)

    def special(self, name: str, size: int) -> UOp:
        return self.add(ops.SPECIAL, I32, arg=(name, size))

    def load(self, buffer: UOp, index: UOp, gate: UOp | None = None, lanes: int = 1) -> UOp:
        gates = () if gate is None else (gate,)
        return self.add(ops.LOAD, buffer.dtype.vector(lanes), buffer, index, *gates)

    def store(self, buffer: UOp, index: UOp, value: UOp, gate: UOp | None = None) -> None:
        self.add(ops.STORE, VOID, buffer, index, value, *(() if gate is None else (gate,)))

    def alu(self, op: Op, *src: UOp) -> UOp:
        dtype = src[-1].dtype
        return self.add(op, BOOL.vector(dtype.lanes) if op in ops.COMPARISONS else dtype, *src)

    def barrier(self) -> None:
        self.add(ops.BARRIER, VOID)


def zeros(size: int, dtype: DType = F32) -> Array:
    return np.zeros(size, to_numpy(dtype))


# -- blocks and values -------------------------------------------------------------------------------------


def matmul(n: int) -> Program:
    """Return a scalar matrix product with an accumulator in a register."""
    p = Program()
    out, a, b = p.param("out", F32, n * n, writable=True), p.param("a", F32, n * n), p.param("b", F32, n * n)
    sums = p.add(ops.LOCAL, F32, arg=("sums", (), "register"))
    zero, width, nothing = p.const(0), p.const(n), p.const(0.0, F32)
    i = p.loop("r0", n)
    row = p.alu(ops.MUL, i, width)
    j = p.loop("r1", n, "thread")
    p.store(sums, zero, nothing)
    k = p.loop("r2", n)
    x = p.load(a, p.alu(ops.ADD, row, k))
    y = p.load(b, p.alu(ops.ADD, p.alu(ops.MUL, k, width), j))
    p.store(sums, zero, p.add(ops.MULACC, F32, x, y, p.load(sums, zero)))
    p.end(k)
    p.store(out, p.alu(ops.ADD, row, j), p.load(sums, zero))
    p.end(j)
    p.end(i)
    return p


def test_matmul() -> None:
    n = 64
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-4, 5, (n, n)).astype(np.float32) for _ in range(2))
    out = np.zeros((n, n), np.float32)
    run(matmul(n), {"out": out, "a": a, "b": b})
    np.testing.assert_array_equal(out, a @ b)


def test_a_uop_that_stands_again_is_executed_again() -> None:
    p = Program()
    x = p.param("x", I32, 1, writable=True)
    zero, one = p.const(0), p.const(1)
    i = p.loop("r0", 5)
    loaded = p.load(x, zero)
    p.store(x, zero, p.alu(ops.ADD, loaded, one))
    p.append(loaded)
    p.store(x, zero, p.alu(ops.MUL, loaded, loaded))
    p.end(i)
    data, wanted = np.array([0], np.int32), 0
    run(p, [data])
    for _ in range(5):
        wanted = wrap32((wanted + 1) ** 2)
    assert data[0] == wanted


def wrap32(x: int) -> int:
    return (x + 2**31) % 2**32 - 2**31


def test_operands_refer_to_the_latest_standing_in_an_open_block() -> None:
    p = Program()
    x = p.param("x", I32, 3, writable=True)
    zero, one, two = p.const(0), p.const(1), p.const(2)
    outer = p.load(x, zero)
    i = p.loop("r0", 1)
    p.store(x, zero, two)
    p.append(outer)
    p.store(x, one, outer)
    p.end(i)
    p.store(x, two, outer)
    data = np.array([7, 0, 0], np.int32)
    run(p, [data])
    assert data.tolist() == [2, 2, 7]


def test_conditions_and_sizes_bound_at_launch() -> None:
    p = Program()
    x = p.param("x", I32, 8, writable=True)
    n = p.add(ops.VAR, I32, arg=("n", 0, 8))
    three, one = p.const(3), p.const(1)
    i = p.loop("r0", n)
    branch = p.add(ops.IF, VOID, p.alu(ops.CMPLT, three, i))
    p.store(x, i, one)
    p.add(ops.ENDIF, VOID, branch)
    p.end(i)
    for size in (0, 3, 6, 8):
        data = zeros(8, I32)
        run(p, {"x": data}, {"n": size})
        assert data.tolist() == [int(3 < k < size) for k in range(8)]
    with pytest.raises(LaunchError, match=r"'n' is 9, outside 0 \.\.\. 8"):
        run(p, {"x": zeros(8, I32)}, {"n": 9})
    with pytest.raises(UnknownNameError, match="unknown variable 'n'"):
        run(p, {"x": zeros(8, I32)})


def test_empty_loops() -> None:
    p = Program()
    p.end(p.loop("r0", 3))
    run(p, [])


# -- vectors and memory ------------------------------------------------------------------------------------


def test_contiguous_gathered_and_gated_accesses() -> None:
    p = Program()
    x, y = p.param("x", F32, 8), p.param("y", F32, 16, writable=True)
    zero, two, four, eight, far = (p.const(v) for v in (0, 2, 4, 8, 1000))
    quad = p.load(x, two, lanes=4)
    p.store(y, zero, quad)
    index = p.add(ops.VECTORIZE, I32.vector(4), far, zero, four, two)
    gate = p.alu(ops.CMPLT, index, p.add(ops.BROADCAST, I32.vector(4), eight))
    p.store(y, four, p.load(x, index, gate, 4))
    p.store(y, p.alu(ops.ADD, index, p.add(ops.BROADCAST, I32.vector(4), eight)), quad, gate)
    p.store(y, far, p.const(1.0, F32), p.const(False, BOOL))
    p.store(y, p.const(15), p.load(x, far, p.const(False, BOOL)))
    data, out = np.arange(1, 9, dtype=np.float32), np.full(16, -1, np.float32)
    run(p, {"x": data, "y": out})
    assert out.tolist() == [3, 4, 5, 6, 0, 1, 5, 3, 4, -1, 6, -1, 5, -1, -1, 0]


def test_a_loaded_vector_does_not_change_with_memory() -> None:
    p = Program()
    x = p.param("x", F32, 4, writable=True)
    zero = p.const(0)
    before = p.load(x, zero, lanes=2)
    p.store(x, zero, p.const(9.0, F32))
    p.store(x, p.const(2), before)
    data = np.array([1, 2, 3, 4], np.float32)
    run(p, [data])
    assert data.tolist() == [9, 2, 1, 2]


@pytest.mark.parametrize("lanes", [2, 3, 4, 7, 8])
def test_lanes_are_picked_and_folded(lanes: int) -> None:
    p = Program()
    x, y = p.param("x", F32, lanes), p.param("y", F32, 4, writable=True)
    zero, one, two = p.const(0), p.const(1), p.const(2)
    v = p.load(x, zero, lanes=lanes)
    p.store(y, zero, p.add(ops.FOLD, F32, v, arg=ops.ADD))
    p.store(y, one, p.add(ops.FOLD, F32, v, arg=ops.MAXIMUM))
    p.store(y, two, p.add(ops.GEP, F32.vector(2), v, arg=(lanes - 1, 0)))
    data, out = np.arange(10, 10 + lanes, dtype=np.float32), zeros(4)
    run(p, [data, out])
    assert out.tolist() == [data.sum(), data.max(), data[-1], data[0]]


def test_folding_adds_the_upper_half_to_the_lower() -> None:
    """(a + c) + (b + d), as halving shuffles give it; the order shows in the rounding."""
    p = Program()
    x, y = p.param("x", F32, 4), p.param("y", F32, 1, writable=True)
    zero = p.const(0)
    p.store(y, zero, p.add(ops.FOLD, F32, p.load(x, zero, lanes=4), arg=ops.ADD))
    data, out = np.array([1e8, 1.0, -1e8, 1.0], np.float32), zeros(1)
    run(p, [data, out])
    assert out[0] == 2.0


def test_local_memory_is_poisoned_and_private_to_a_block() -> None:
    p = Program()
    y, z = p.param("y", F32, 2, writable=True), p.param("z", I32, 2, writable=True)
    floats, ints = p.local("floats", F32, 4), p.add(ops.LOCAL, I32, arg=("ints", (2, 0, 3), "local"))
    g, five = p.special("grid0", 2), p.const(5)
    three = p.const(3)
    p.store(y, g, p.load(floats, three))
    p.store(z, g, p.load(ints, five))
    p.store(floats, three, p.const(1.0, F32))
    p.store(ints, five, three)
    out, whole = zeros(2), zeros(2, I32)
    run(p, {"y": out, "z": whole})
    assert np.isnan(out).all()
    assert whole.view(np.uint32).tolist() == [0xA5A5A5A5] * 2


# -- threads -----------------------------------------------------------------------------------------------


def reverse(n: int, *, with_barrier: bool) -> Program:
    """Reverse each block's part of x by way of local memory."""
    p = Program()
    x, y = p.param("x", F32, 3 * n), p.param("y", F32, 3 * n, writable=True)
    tile = p.local("tile", F32, n)
    block, thread, size, last = p.special("grid0", 3), p.special("block0", n), p.const(n), p.const(n - 1)
    at = p.alu(ops.ADD, p.alu(ops.MUL, block, size), thread)
    p.store(tile, thread, p.load(x, at))
    if with_barrier:
        p.barrier()
    p.store(y, at, p.load(tile, p.alu(ops.SUB, last, thread)))
    return p


def test_barriers_separate_phases() -> None:
    data, out = np.arange(24, dtype=np.float32), zeros(24)
    run(reverse(8, with_barrier=True), {"x": data, "y": out})
    assert out.tolist() == data.reshape(3, 8)[:, ::-1].reshape(24).tolist()


def test_a_missing_barrier_shows() -> None:
    data, out = np.arange(24, dtype=np.float32), zeros(24)
    run(reverse(8, with_barrier=False), {"x": data, "y": out})
    assert np.isnan(out).any()


def test_divergent_barriers_are_errors() -> None:
    p = Program()
    thread = p.special("block0", 6)
    branch = p.add(ops.IF, VOID, p.alu(ops.CMPLT, thread, p.const(4)))
    p.barrier()
    p.add(ops.ENDIF, VOID, branch)
    with pytest.raises(ExecutionError, match=r"divergent threads.*threads 0-3; 2 of 6 have ended") as error:
        run(p, [])
    assert error.value.uop.op is ops.BARRIER
    p.barrier()
    with pytest.raises(ExecutionError, match=r"uop 4: threads 0-3; uop 6: threads 4-5"):
        run(p, [])


def test_shuffles_exchange_values_between_partners() -> None:
    p = Program()
    y = p.param("y", I32, 8, writable=True)
    fast, slow = p.special("block0", 4), p.special("block1", 2)
    number = p.alu(ops.ADD, p.alu(ops.MUL, slow, p.const(4)), fast)
    summed: UOp = number
    for bit in (1, 2, 4):
        summed = p.alu(ops.ADD, summed, p.add(ops.SHUFFLE, I32, summed, arg=bit))
    p.store(y, number, p.alu(ops.ADD, summed, p.add(ops.SHUFFLE, I32, number, arg=5)))
    out = zeros(8, I32)
    run(p, [out])
    assert out.tolist() == [28 + (n ^ 5) for n in range(8)]


def test_threads_without_partners_are_errors() -> None:
    p = Program()
    thread = p.special("block0", 6)
    p.add(ops.SHUFFLE, I32, thread, arg=4)
    with pytest.raises(ExecutionError, match="uop 1: threads 2-3"):
        run(p, [])


def test_warps_may_shuffle_at_different_places() -> None:
    p = Program()
    y = p.param("y", I32, 4, writable=True)
    lane, warp = p.special("warp", 2), p.special("block0", 2)
    number = p.alu(ops.ADD, p.alu(ops.MUL, warp, p.const(2)), lane)
    branch = p.add(ops.IF, VOID, p.alu(ops.CMPLT, warp, p.const(1)))
    p.store(y, number, p.add(ops.SHUFFLE, I32, number, arg=1))
    p.add(ops.ENDIF, VOID, branch)
    out = np.full(4, -1, np.int32)
    run(p, [out])
    assert out.tolist() == [1, 0, -1, -1]


# -- asynchronous copies -----------------------------------------------------------------------------------


def ring(tiles: int, *, stages: int, in_flight: int) -> Program:
    """Copy x to y tile by tile through a ring of `stages` tiles; waits until `in_flight` groups are left."""
    size = 4
    p = Program()
    x, y = p.param("x", F32, tiles * size), p.param("y", F32, tiles * size, writable=True)
    tile = p.local("tile", F32, stages * size)
    limit = p.const(tiles)

    def start(number: UOp) -> None:
        """Start the copy of one tile, if there is one; the group is closed in any case."""
        branch = p.add(ops.IF, VOID, p.alu(ops.CMPLT, number, limit))
        slot = p.alu(ops.MUL, p.alu(ops.TRUNCMOD, number, p.const(stages)), p.const(size))
        source = p.alu(ops.MUL, number, p.const(size))
        p.add(ops.STAGE_COPY, VOID, tile, slot, x, source, arg=size)
        p.add(ops.ENDIF, VOID, branch)
        p.add(ops.STAGE_COMMIT, VOID)

    for n in range(stages - 1):
        start(p.const(n))
    t = p.loop("r0", tiles)
    start(p.alu(ops.ADD, t, p.const(stages - 1)))
    p.add(ops.STAGE_WAIT, VOID, arg=in_flight)
    slot = p.alu(ops.MUL, p.alu(ops.TRUNCMOD, t, p.const(stages)), p.const(size))
    p.store(y, p.alu(ops.MUL, t, p.const(size)), p.load(tile, slot, lanes=size))
    p.end(t)
    return p


def test_a_ring_of_asynchronous_copies() -> None:
    data, out = np.arange(28, dtype=np.float32), zeros(28)
    run(ring(7, stages=3, in_flight=2), {"x": data, "y": out})
    assert out.tolist() == data.tolist()


def test_a_wait_that_waits_for_too_little_shows() -> None:
    data, out = np.arange(28, dtype=np.float32), zeros(28)
    run(ring(7, stages=3, in_flight=3), {"x": data, "y": out})
    assert np.isnan(out).any()


# -- matrix instructions -----------------------------------------------------------------------------------

Layout = tuple[tuple[tuple[int, int], ...], ...]


def layout(threads: int, elements: int, f: Callable[[int, int], tuple[int, int]]) -> Layout:
    return tuple(tuple(f(lane, e) for e in range(elements)) for lane in range(threads))


def inverse(
    lanes: int, elements: int, rows: int, columns: int, f: Callable[[int, int], tuple[int, int]]
) -> Layout:
    """Return a layout from the map (row, column) -> (lane, element)."""
    where = {f(r, c): (r, c) for r in range(rows) for c in range(columns)}
    return layout(lanes, elements, lambda lane, e: where[lane, e])


# NVIDIA mma.sync m16n8k16: PTX ISA, "Matrix Fragments for mma.m16n8k16".
SM80 = TensorCore(
    "mma_16816", (8, 16, 16), "float16", "float32", 32,
    inverse(32, 8, 16, 16, lambda r, k: ((k // 2) % 4 + 4 * (r % 8), k % 2 + 2 * (r // 8) + 4 * (k // 8))),
    inverse(32, 4, 16, 8, lambda k, c: ((k // 2) % 4 + 4 * c, k % 2 + 2 * (k // 8))),
    layout(32, 4, lambda lane, e: (lane // 4 + 8 * (e // 2), e % 2 + 2 * (lane % 4))),
)  # fmt: skip
# AMD RDNA3 v_wmma_f32_16x16x16_f16, wave32: lanes 16 to 31 hold the same of A and B as lanes 0 to 15.
RDNA3 = TensorCore(
    "wmma_16", (16, 16, 16), "float16", "float32", 32,
    layout(32, 16, lambda lane, e: (lane % 16, e)),
    layout(32, 16, lambda lane, e: (e, lane % 16)),
    layout(32, 8, lambda lane, e: (lane // 16 + 2 * e, lane % 16)),
)  # fmt: skip
# A dot product of four int8 pairs by one thread.
DOT4 = TensorCore(
    "dot4", (1, 1, 4), "int8", "int32", 1,
    layout(1, 4, lambda _, e: (0, e)), layout(1, 4, lambda _, e: (e, 0)), layout(1, 1, lambda *_: (0, 0)),
)  # fmt: skip


def wmma(core: TensorCore) -> Program:
    """Return D = A @ B + C by one warp; each lane loads its fragments with indices looked up in tables."""
    n, m, k = core.dims
    din, dout = dtypes.as_dtype(core.dtype_in), dtypes.as_dtype(core.dtype_out)
    p = Program()
    a, b = p.param("a", din, m * k), p.param("b", din, k * n)
    c, d = p.param("c", dout, m * n), p.param("d", dout, m * n, writable=True)
    lane = p.special("block0", core.threads)

    def addresses(name: str, table: Layout, columns: int) -> UOp:
        elements = len(table[0])
        at = p.param(name, I32, len(table) * elements)
        offset = p.alu(ops.MUL, lane, p.const(elements))
        assert all(0 <= column < columns for row in table for _, column in row)
        return p.load(at, offset, lanes=elements)

    ia, ib, ic = (
        addresses("ia", core.a_layout, k),
        addresses("ib", core.b_layout, n),
        addresses("ic", core.c_layout, n),
    )
    fragments = [p.load(x, i, lanes=i.dtype.lanes) for x, i in ((a, ia), (b, ib), (c, ic))]
    p.store(d, ic, p.add(ops.WMMA, fragments[2].dtype, *fragments, arg=core.name))
    return p


def wmma_arguments(core: TensorCore) -> dict[str, Array]:
    n, m, k = core.dims
    generator = np.random.default_rng(3)
    tables = (("ia", core.a_layout, k), ("ib", core.b_layout, n), ("ic", core.c_layout, n))
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    types = {"a": core.dtype_in, "b": core.dtype_in, "c": core.dtype_out, "d": core.dtype_out}
    arrays: dict[str, Array] = {x: generator.integers(-8, 9, shapes[x]).astype(types[x]) for x in shapes}
    for name, table, width in tables:
        arrays[name] = np.array([row * width + column for lane in table for row, column in lane], np.int32)
    return arrays


@pytest.mark.parametrize("core", [SM80, RDNA3, DOT4], ids=lambda core: core.name)
def test_matrix_instructions_multiply_matrices(core: TensorCore) -> None:
    arrays = wmma_arguments(core)
    run(wmma(core), arrays, tensor_cores=[core])
    a, b, c = (arrays[x].astype(np.float64) for x in "abc")
    np.testing.assert_array_equal(arrays["d"], a @ b + c)


def test_duplicated_elements_must_agree() -> None:
    arrays = wmma_arguments(RDNA3)
    arrays["ia"][16 * 16 :] = arrays["ia"][: 16 * 16][::-1]  # lanes 16 to 31 bring something else
    with pytest.raises(ExecutionError, match="same element of A"):
        run(wmma(RDNA3), arrays, tensor_cores=[RDNA3])


def test_a_matrix_instruction_needs_its_descriptor_and_all_lanes() -> None:
    with pytest.raises(InternalError, match="no descriptor of a tensor core is called 'wmma_16'"):
        Interpreter(wmma(RDNA3))
    p = Program()
    lane, three = p.special("block0", 32), p.const(3)
    branch = p.add(ops.IF, VOID, p.alu(ops.CMPLT, three, lane))
    fragments = [p.add(ops.BROADCAST, t.vector(n), p.const(0.0, t))
                 for t, n in ((dtypes.float16, 8), (dtypes.float16, 4), (F32, 4))]  # fmt: skip
    p.add(ops.WMMA, F32.vector(4), *fragments, arg="mma_16816")
    p.add(ops.ENDIF, VOID, branch)
    with pytest.raises(ExecutionError, match=r"divergent threads.*threads 4-31; 4 of 32 have ended"):
        run(p, [], tensor_cores=[SM80])


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 4, 100])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("writes", [False, True])
def test_accesses_out_of_bounds_are_errors(index: int, lanes: int, writes: bool) -> None:
    p = Program()
    x = p.param("x", F32, 4, writable=True)
    at = p.const(index)
    if writes:
        one = p.const(1.0, F32)
        p.store(x, at, one if lanes == 1 else p.add(ops.BROADCAST, F32.vector(2), one))
    else:
        p.load(x, at, lanes=lanes)
    with pytest.raises(ExecutionError, match=f"index {index}.* outside the buffer's 4 elements") as error:
        run(p, [zeros(10)])
    assert error.value.uop is p[-1] and error.value.position == len(p) - 1


def test_a_vector_may_not_straddle_the_end() -> None:
    p = Program()
    p.load(p.param("x", F32, 4), p.const(3), lanes=2)
    with pytest.raises(ExecutionError, match=r"3 \.\.\. 4 is outside"):
        run(p, [zeros(4)])


@pytest.mark.parametrize("gated", [False, True])
def test_a_claimed_alignment_must_hold(gated: bool) -> None:
    for index, fails in ((4, False), (6, True)):
        p = Program()
        x, at = p.param("x", F32, 12), p.const(index)
        gate = [p.const(True, BOOL)] if gated else []
        p.add(ops.LOAD, F32.vector(4), x, at, *gate, arg=4)
        if not fails:
            run(p, [zeros(12)])
            continue
        with pytest.raises(ExecutionError, match="index 6 is not a multiple of 4"):
            run(p, [zeros(12)])


def test_undefined_arithmetic_names_the_uop() -> None:
    p = Program()
    x = p.param("x", I32, 2)
    i = p.loop("r0", 2)
    p.alu(ops.TRUNCDIV, p.const(1), p.load(x, i))
    p.end(i)
    with pytest.raises(ExecutionError, match=r"division by 0\n  at uop 4 of the program: TRUNCDIV"):
        run(p, [np.array([1, 0], np.int32)])


def test_a_conversion_out_of_range_is_an_error() -> None:
    p = Program()
    p.add(ops.CAST, dtypes.uint8, p.const(256.0, F32))
    with pytest.raises(ExecutionError, match=r"conversion of 256\.0 to uint8"):
        run(p, [])


def test_images_are_read_and_written_by_texels() -> None:
    p = Program()
    out, x = (p.add(ops.IMAGE, F32, arg=(name, (2, 3), name == "y")) for name in "yx")
    i, j, zero = p.const(2), p.const(1), p.const(0)
    texel = p.add(ops.IMAGE_LOAD, F32.vector(4), x, i, j)
    p.add(ops.IMAGE_STORE, VOID, out, zero, j, texel)
    off = p.const(False, BOOL)
    p.add(ops.IMAGE_STORE, VOID, out, zero, zero, p.add(ops.IMAGE_LOAD, F32.vector(4), x, p.const(9), j, off))
    data, result = np.arange(24, dtype=np.float32), np.ones(24, np.float32)
    run(p, {"x": data, "y": result})
    np.testing.assert_array_equal(result[12:16], data[20:24])
    np.testing.assert_array_equal(result[:4], 0)
    p.add(ops.IMAGE_LOAD, F32.vector(4), x, j, i)
    with pytest.raises(ExecutionError, match=r"texel \(1, 2\) is outside the image of 3 x 2"):
        run(p, {"x": data, "y": result})


@pytest.mark.parametrize(
    ("buffer", "error"),
    [
        (np.zeros(4, np.float64), "takes 4 contiguous elements of float32"),
        (np.zeros(3, np.float32), "takes 4 contiguous elements"),
        (np.zeros(8, np.float32)[::2], "takes 4 contiguous elements"),
        (np.broadcast_to(np.float32(0), (4,)), "takes 4 contiguous elements"),
        (np.frombuffer(bytes(16), np.float32), "is read-only"),
    ],
)
def test_unsuitable_buffers_are_refused(buffer: Array, error: str) -> None:
    p = Program()
    p.param("x", F32, 4, writable=True)
    with pytest.raises(LaunchError, match=error):
        run(p, {"x": buffer})


def test_missing_buffers_are_refused() -> None:
    p = Program()
    p.param("weight", F32, 4)
    with pytest.raises(UnknownNameError, match="did you mean 'weights'"):
        run(p, {"weights": zeros(4)})
    with pytest.raises(LaunchError, match="takes 1 buffers, 2 were given"):
        run(p, [zeros(4), zeros(4)])


def test_ill_formed_programs_are_refused() -> None:
    p = Program()
    i = p.loop("r0", 4)
    with pytest.raises(InternalError, match="ends inside the block that RANGE opened"):
        Interpreter(p)
    p.add(ops.ENDIF, VOID, p.add(ops.IF, VOID, p.const(True, BOOL)))
    p.end(i)
    Interpreter(p)
    p.end(i)
    with pytest.raises(InternalError, match=r"uop 5 of the program \(END\): it does not close"):
        Interpreter(p)
    p[-1:] = [UOp(ops.ADD, I32, (i, i))]
    with pytest.raises(InternalError, match="operand r0 is not visible here"):
        Interpreter(p)
    read_only = Program()
    read_only.store(read_only.param("x", F32, 1), read_only.const(0), read_only.const(1.0, F32))
    with pytest.raises(InternalError, match="'x', which is declared read-only"):
        Interpreter(read_only)


def test_graph_and_kernel_ops_are_refused() -> None:
    for op, dtype in ((ops.IOTA, I32), (ops.AFFINE, dtypes.index)):
        with pytest.raises(InternalError, match="does not stand in a linear program"):
            Interpreter([UOp(op, dtype, (), 3 if op is ops.IOTA else (3, ()))])


def test_every_linear_op_is_executed_by_a_test() -> None:
    """Ops that the elementwise table does not cover have a case in this file; a new one needs one too."""
    covered = {
        ops.RANGE, ops.END, ops.IF, ops.ENDIF, ops.SPECIAL, ops.BARRIER, ops.BROADCAST, ops.VECTORIZE,
        ops.GEP, ops.FOLD, ops.SHUFFLE, ops.WMMA, ops.STAGE_COPY, ops.STAGE_COMMIT, ops.STAGE_WAIT,
        ops.VAR, ops.PARAM, ops.LOCAL, ops.LOAD, ops.STORE, ops.CONST, ops.CAST, ops.BITCAST,
        ops.IMAGE, ops.IMAGE_LOAD, ops.IMAGE_STORE,
    }  # fmt: skip
    assert {o for o in ops.OPS.values() if "l" in o.levels} - ops.ALU_OPS == covered


def typings(op: Op) -> list[tuple[DType, tuple[DType, ...]]]:
    """Return (result, operands) for each dtype that an elementwise op takes."""
    found = []
    for dtype in dtypes.ARRAY_DTYPES:
        operands: tuple[DType, ...] = (dtype,) * op.arity[0]
        result = BOOL if op in ops.COMPARISONS else dtype
        if op is ops.WHERE:
            operands = (BOOL, dtype, dtype)
        if op is ops.CAST:
            result = I32 if dtype.is_float else F32
        if op is ops.BITCAST:
            result = dtypes.as_dtype(f"uint{dtype.bits}")
        if op.rule(result, tuple(UOp(ops.CONST, d, (), d.kind) for d in operands), None) is None:
            found.append((result, operands))
    return found


@pytest.mark.parametrize("op", sorted({o for o in ELEMENTWISE if "l" in o.levels}, key=repr), ids=repr)
def test_scalars_and_vectors_compute_what_the_table_says(op: Op) -> None:
    assert typings(op)
    for result, operands in typings(op):
        p = Program()
        out = p.param("out", result, 8, writable=True)
        inputs = [p.param(f"x{n}", d, 4) for n, d in enumerate(operands)]
        zero = p.const(0)
        p.store(out, zero, p.add(op, result.vector(4), *[p.load(x, zero, lanes=4) for x in inputs]))
        for k in range(4):
            at = p.const(k)
            p.store(out, p.const(4 + k), p.add(op, result, *[p.load(x, at) for x in inputs]))
        values = [np.array([1, 2, 3, n + 4]).astype(to_numpy(d)) for n, d in enumerate(operands)]
        computed = zeros(8, result)
        run(p, [computed, *values])
        with quiet():
            wanted = ELEMENTWISE[op](result, *values)
        assert computed.tobytes() == wanted.tobytes() * 2, (op, result, computed, wanted)
