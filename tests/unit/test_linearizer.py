"""The rows of `docs/linearizer.md` that have no test elsewhere: one kernel each, looked at and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.codegen.program import Program
from retarget.conformance.blocks import block_capabilities, interpret
from retarget.errors import ScheduleError
from retarget.ir import dtypes, ops
from retarget.ir.index import irange
from retarget.ir.simplify import gep, vectorize
from retarget.ir.uop import UOp, const
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.pipeline import toolchain
from retarget.registry.capabilities import Limits
from retarget.schedule.kernel import Kernel
from retarget.schedule.lower import index_value, reduce

Values = np.ndarray[Any, Any]
TOOLS = toolchain("numpy")
ROOT = Path(__file__).parents[2]


def ones(*shape: int, dtype: str = "f4") -> rt.Array:
    return rt.asarray(np.ones(shape, dtype), device="numpy")


def program(array: rt.Array, schedule: str = "") -> tuple[UOp, ...]:
    (kernel,) = rt.lower(array)
    return linearize(apply_schedule(kernel, parse_schedule(schedule)), TOOLS.capabilities).uops


def loads(uops: tuple[UOp, ...]) -> list[UOp]:
    return [u for u in uops if u.op is ops.LOAD and u.src[0].op is ops.PARAM]


# -- the table ---------------------------------------------------------------------------------------------


def test_the_table_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "linearizer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", text, flags=re.M)
    assert rows == [str(n) for n in range(1, 26)]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 25
    for file, test in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(", source, flags=re.M), f"{file} has no {test}"


# -- uops --------------------------------------------------------------------------------------------------


def test_a_kernel_is_its_stores() -> None:
    """Ranges, parameters and reductions hang off the stores; nothing else defines a kernel."""
    (kernel,) = rt.lower(rt.sum(ones(5, 7), axis=1))
    again = Kernel(kernel.stores, kernel.outputs, kernel.inputs)
    assert again.ranges == kernel.ranges and again.flops == kernel.flops
    scheduled = apply_schedule(again, parse_schedule("order=r2,r0"))
    assert [r.arg[0] for r in scheduled.order] == ["r2", "r0"]  # its depth
    (fold,) = [u for u in kernel.nodes if u.op is ops.REDUCE]
    assert [r.arg[0] for r in fold.src[1:]] == ["r2"]  # whether it reduces


# -- loads and stores --------------------------------------------------------------------------------------


def test_each_distinct_load_of_a_tile_is_emitted_once() -> None:
    """Of 4 x 2 products, one operand is loaded once a row, the other once a column of the tile."""
    uops = program(ones(8, 16) @ ones(16, 32), "r0=i,iu/4:u; r1=j,ju/2:u,jv/8:v; order=i,j,r3,iu,ju,jv")
    depth, where = 0, {}
    for u in uops:
        depth += (u.op is ops.RANGE) - (u.op is ops.END)
        if u.op is ops.LOAD and u.src[0].op is ops.PARAM:
            where.setdefault(u.src[0].arg[0], []).append((depth, u.dtype.lanes))
    assert where == {"in0": [(4, 1)], "in1": [(5, 8)]}


def test_a_load_is_not_reused_across_reductions_that_change_what_it_reads() -> None:
    """The row that is kept is read again by each pass; what was read before it was stored is stale."""
    uops = program(rt.softmax(ones(3, 8), axis=1), "stage=EXP@r0")
    stored, reads = set(), 0
    for u in uops:
        if u.op is ops.STORE and u.src[0].arg[0].startswith("exp"):
            stored.add(u.src[0])
        reads += u.op is ops.LOAD and u.src[0] in stored
    assert reads == 2  # the second pass sums it, the third divides it


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_alignment_is_proved_for_each_load(dtype: str, lanes: int) -> None:
    """An operand that begins one element late is accessed as unaligned; the others of the kernel are not."""
    x, y = ones(4, 32, dtype=dtype), ones(4 * 32 + 1, dtype=dtype)
    shifted = rt.reshape(y[1:], (4, 32))
    (kernel,) = rt.lower(rt.logical_and(x, shifted) if dtype == "bool" else x + shifted)
    made = linearize(apply_schedule(kernel, parse_schedule(f"r1=o,v/{lanes}:v")), TOOLS.capabilities)
    found = {u.src[0].arg[1]: (u.dtype.lanes, u.arg) for u in made.uops if u.op is ops.LOAD}
    assert found == {(4, 32): (lanes, lanes), (129,): (lanes, 1)}


def test_stores_are_grouped_where_they_are_contiguous() -> None:
    uops = program(ones(4, 32) + 1, "r1=o,v/8:v")
    (store,) = [u for u in uops if u.op is ops.STORE]
    assert store.src[1].dtype.lanes == 1 and store.src[2].dtype.lanes == 8
    uops = program(ones(4, 32) + 1, "r0=o,v/4:v")  # a column: one address for each lane
    (store,) = [u for u in uops if u.op is ops.STORE]
    assert store.src[1].dtype.lanes == 4


def test_a_ragged_store_is_gated() -> None:
    uops = program(ones(4, 30) + 1, "r1=o,v/8:v")
    (store,) = [u for u in uops if u.op is ops.STORE]
    assert len(store.src) == 4 and store.src[3].dtype == dtypes.bool_.vector(8)


def test_masks_of_loads() -> None:
    """A constant under a mask is a select; a mask that is always false is 0; a partial one gates the load."""
    assert not loads(program(rt.pad(rt.full((4,), 3.0, dtype="float32", device="numpy"), ((1, 1),))))
    assert not loads(program(rt.pad(ones(4), ((0, 4),))[4:] + 1))
    (gated,) = loads(program(rt.pad(ones(4), ((1, 1),)) * 2))
    assert len(gated.src) == 3 and gated.src[2].dtype is dtypes.bool_
    (whole,) = loads(program(rt.pad(ones(4), ((1, 1),))[1:5] * 2))
    assert len(whole.src) == 2


def test_loads_stand_behind_the_barrier() -> None:
    (kernel,) = rt.lower(ones(8, 8) @ ones(8, 8))
    schedule = parse_schedule("r0=g:g,b/4:b; r1=h:g,c/4:b; r3=o,i/4; order=o,i; stage=in0@o")
    made = linearize(apply_schedule(kernel, schedule), block_capabilities())
    events = [
        "barrier" if u.op is ops.BARRIER else "read" if u.op is ops.LOAD else "written"
        for u in made.uops
        if u.op is ops.BARRIER or (u.op in (ops.LOAD, ops.STORE) and u.src[0].arg[0].startswith("in0_tile"))
    ]
    assert events == ["barrier", "written", "barrier", "read"]


# -- index expressions -------------------------------------------------------------------------------------


def test_a_variable_as_a_value() -> None:
    """A size that is bound at launch stands in arithmetic as a constant of the launch."""
    n = UOp(ops.VAR, dtypes.index, (), ("n", 1, 9))
    r, true = irange(n, "r0"), const(True, dtypes.bool_)
    source = UOp(ops.PARAM, dtypes.float32, (), ("in0", (n,), False))
    target = UOp(ops.PARAM, dtypes.float32, (), ("out0", (n,), True))
    value = UOp(ops.LOAD, dtypes.float32, (source, true, r))
    scaled = UOp(ops.MUL, dtypes.float32, (value, index_value(n, dtypes.float32)))
    node = UOp(ops.BUFFER, dtypes.float32, (), (0, (n,), "test:0"))
    store = UOp(ops.STORE, dtypes.void, (target, true, scaled, r))
    kernel = Kernel((store,), (node,), (node,), (n,))
    made = linearize(apply_schedule(kernel, parse_schedule("r0=a,b/4")), TOOLS.capabilities)
    out, data = np.zeros(9, "f4"), np.arange(9, dtype="f4")
    interpret(made, {"out0": out, "in0": data}, {"n": 7})
    np.testing.assert_array_equal(out, [0, 7, 14, 21, 28, 35, 42, 0, 0])


# -- reductions --------------------------------------------------------------------------------------------


def test_own_accumulators() -> None:
    uops = program(rt.sum(ones(4, 64), axis=1), "r2=o,a/4:a")
    (sums,) = [u.arg[1] for u in uops if u.op is ops.LOCAL and u.arg[1] == (4,)]
    assert sums == (4,)


def test_a_product_of_converted_operands_is_fused() -> None:
    """Through a cast too, where it loses nothing: half precision operands, a float32 sum."""
    x, y = ones(4, 64, dtype="f2"), ones(4, 64, dtype="f2")
    uops = program(rt.sum(x.astype("float32") * y.astype("float32"), axis=1))
    assert sum(u.op is ops.MULACC for u in uops) == 1
    uops = program(rt.sum((x * y).astype("float32"), axis=1))  # the product is rounded to float16 first
    assert not any(u.op is ops.MULACC for u in uops)


# -- simplification ----------------------------------------------------------------------------------------


def test_lanes_of_vectors() -> None:
    x = UOp(ops.PARAM, dtypes.float32.vector(4), (), ("x", (4,), False))
    a, b = (UOp(ops.PARAM, dtypes.float32, (), (n, (), False)) for n in "ab")
    lanes = [gep(x, (n,)) for n in range(4)]
    assert vectorize(lanes) is x and gep(x, (0, 1, 2, 3)) is x
    assert vectorize([a, a]).op is ops.BROADCAST and gep(vectorize([a, a]), (1,)) is a
    assert gep(vectorize([a, b, a, b]), (1, 2)) is vectorize([b, a])
    one = const(1.0, dtypes.float32)
    assert gep(vectorize([one] * 4), (2,)) is one
    assert gep(gep(x, (3, 2, 1, 0)), (0, 3)) is gep(x, (3, 0))


def test_what_a_loop_does_not_change_leaves_a_sum() -> None:
    """Integer sums become products, exactly; a float sum rounds at each step, and stays."""
    r = irange(5, "r0")
    for dtype, op, expected in (
        ("int32", ops.ADD, 15), ("uint8", ops.ADD, 15), ("int32", ops.MAXIMUM, 3), ("int64", ops.AND, 3),
        ("int16", ops.XOR, 3), ("bool", ops.OR, True), ("float32", ops.MINIMUM, 3.0),
    ):  # fmt: skip
        value = const({"bool": True, "float32": 3.0}.get(dtype, 3), dtypes.as_dtype(dtype))
        found = reduce(op, value, [r])
        assert found.op is ops.CONST and found.arg == expected, (dtype, op)
    assert reduce(ops.XOR, const(3, dtypes.int32), [irange(4, "r0")]).arg == 0
    assert reduce(ops.ADD, const(3.0, dtypes.float32), [r]).op is ops.REDUCE
    x = ones(5, 7, dtype="i8")
    uops = program(rt.sum(rt.broadcast_to(rt.reshape(x, (5, 1, 7)), (5, 6, 7)), axis=1))
    assert [u.arg[0] for u in uops if u.op is ops.RANGE] == ["r0", "r2"]


def test_hoisting_stops_at_a_local_store() -> None:
    """What is read of a tile does not leave the loop that refills it."""
    uops = program(ones(8, 16) @ ones(16, 8), "r3=o,i/4; order=o,r0,r1,i; stage=in0@o")
    inside = False
    for u in uops:
        if u.op in (ops.RANGE, ops.END) and (u if u.op is ops.RANGE else u.src[0]).arg[0] == "o":
            inside = u.op is ops.RANGE
        if u.op in (ops.LOAD, ops.STORE) and u.src[0].arg[0] == "in0_tile0":
            assert inside


# -- programs ----------------------------------------------------------------------------------------------


def test_estimates_hold_for_the_largest_sizes() -> None:
    (kernel,) = rt.lower(ones(8, 16) @ ones(16, 32))
    made = linearize(apply_schedule(kernel, parse_schedule("r0=a:g; r1=b,c/8:b")), block_capabilities())
    assert made.flops == 2 * 8 * 16 * 32 and made.bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert made.launch.grid == (8, 1, 1) and made.launch.block == (8, 1, 1)


def test_a_schedule_is_replayed_from_its_text() -> None:
    (kernel,) = rt.lower(ones(8, 16) @ ones(16, 32))
    text = "r0=a:g,i/2:u; r1=b:g,c/8:b; r3=o,k/4; order=o,k,i; stage=in0@o"
    schedule = parse_schedule(text)
    first = linearize(apply_schedule(kernel, schedule), block_capabilities())
    second = linearize(apply_schedule(kernel, parse_schedule(str(schedule))), block_capabilities())
    assert first == second


def realized(array: rt.Array) -> tuple[Values, int]:
    """Return an array's value by the interpreter, and the reductions that are left in its kernels."""
    kernels = rt.lower(array)
    return array.numpy(), sum(u.op is ops.REDUCE for k in kernels for u in k.nodes)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "uint8"])
def test_a_sum_that_picks_one_value_reads_it(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table times one-hot rows is a gather; indices that are out of bounds give 0."""
    monkeypatch.setenv("RETARGET_CACHE", "0")
    table = (np.arange(40).reshape(10, 4) - (0 if dtype == "uint8" else 20)).astype(dtype)
    if table.dtype.kind == "f":
        table[3, 1], table[4, 0], table[5, 2] = np.nan, -np.inf, -0.0
    at = np.array([0, 9, 3, -1, 10, 4, 5], "i4")
    x, t = rt.asarray(at, device="numpy"), rt.asarray(table, device="numpy")
    hot = rt.arange(10, device="numpy")[None, :, None] == x[:, None, None]
    found, left = realized(rt.sum(rt.where(hot, t[None], 0), axis=1))
    right = np.where((np.arange(10)[None, :, None] == at[:, None, None]), table[None], np.zeros((), dtype))
    np.testing.assert_array_equal(found, right.sum(axis=1, dtype=found.dtype))
    assert left == 0
    if table.dtype.kind == "f":
        assert not np.signbit(found[6, 2])


@pytest.mark.parametrize("compare", ["less", "less_equal", "greater", "greater_equal", "equal"])
@pytest.mark.parametrize("shift", [0, 3, -2])
def test_counts_have_a_closed_form(compare: str, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    at = np.array([-(2**31), -4, -1, 0, 1, 5, 8, 9, 10, 12, 13, 2**31 - 1], "i4")
    x = rt.asarray(at, device="numpy")
    r, numbers = rt.arange(10, device="numpy") + shift, np.arange(10) + shift
    for a, b, left, right in (
        (r[None, :], x[:, None], numbers[None, :], at[:, None]),
        (x[:, None], r[None, :], at[:, None], numbers[None, :]),
    ):
        chosen = getattr(rt, compare)(a, b)
        expected = getattr(np, compare)(left, right)
        found, loops = realized(rt.sum(chosen.astype("int32"), axis=1))
        np.testing.assert_array_equal(found, expected.sum(axis=1))
        assert loops == 0
        weights = rt.asarray(np.arange(12, dtype="i4"), device="numpy")[:, None]
        found, loops = realized(rt.sum(rt.where(chosen, weights, weights * -2), axis=1))
        wide = np.arange(12)[:, None]
        np.testing.assert_array_equal(found, np.where(expected, wide, wide * -2).sum(axis=1))
        assert loops == (1 if compare == "equal" else 0)


def test_sums_that_have_no_closed_form() -> None:
    r = rt.arange(10, device="numpy")
    for value in (
        rt.where(
            r < 4, rt.asarray(np.float32(2.5), device="numpy"), rt.asarray(np.float32(0), device="numpy")
        ),
        rt.where(r * 2 < 7, 1, 0),
        rt.where(r < r * r, 1, 0),
    ):
        (kernel,) = rt.lower(rt.sum(value))
        assert any(u.op is ops.REDUCE for u in kernel.nodes)


# -- images ------------------------------------------------------------------------------------------------


def with_images(
    array: rt.Array, schedule: str, inputs: list[Values], right: Values, caps: Any = None
) -> Program:
    (kernel,) = rt.lower(array)
    made = linearize(apply_schedule(kernel, parse_schedule(schedule)), caps or TOOLS.capabilities)
    names = [a.name for a in made.arguments]
    out = np.zeros(right.shape, right.dtype)
    interpret(made, dict(zip(names, [out, *inputs], strict=True)))
    np.testing.assert_allclose(out, right, rtol=1e-3 if right.dtype == np.float16 else 1e-5, atol=1e-5)
    return made


PICTURE = np.random.default_rng(3).standard_normal((3, 5, 8)).astype("f4")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_images(dtype: str) -> None:
    """Aligned vectors are whole texels, of float32 whatever the image holds."""
    x = PICTURE.astype(dtype)
    schedule = "r2=o,v/4:v; image=in0,out0"
    made = with_images(rt.asarray(x, device="numpy") * 2, schedule, [x], x * np.asarray(2, dtype))
    (load,) = [u for u in made.uops if u.op is ops.IMAGE_LOAD]
    (store,) = [u for u in made.uops if u.op is ops.IMAGE_STORE]
    assert load.dtype == store.src[3].dtype == dtypes.float32.vector(4)
    assert load.src[0].arg[1] == (15, 2) and load.src[0].dtype == dtypes.as_dtype(dtype)
    assert not any(u.op in (ops.GEP, ops.VECTORIZE, ops.LOAD, ops.STORE) for u in made.uops)
    assert [a.kind for a in made.arguments] == ["image", "image"]
    assert str(parse_schedule(schedule)) == schedule


def test_lanes_of_images() -> None:
    """Scalar accesses take one lane: a known one, or one that is chosen."""
    x = rt.asarray(PICTURE, device="numpy")
    made = with_images(x[:, :, 5] + 1, "image=in0", [PICTURE], PICTURE[:, :, 5] + 1)
    assert sum(u.op is ops.GEP for u in made.uops) == 1 and not any(u.op is ops.WHERE for u in made.uops)
    made = with_images(x + 1, "image=in0", [PICTURE], PICTURE + 1)
    assert sum(u.op is ops.WHERE for u in made.uops) == 3
    made = with_images(x + 1, "r2=o,v/8:v; image=in0,out0", [PICTURE], PICTURE + 1)
    assert sum(u.op is ops.IMAGE_LOAD for u in made.uops) == 2
    made = with_images(x[:, :, 1:7] + 1, "r2=o,v/2:v; image=in0", [PICTURE], PICTURE[:, :, 1:7] + 1)
    with_images(x.mT + 1, "r1=o,v/4:v; image=in0", [PICTURE], PICTURE.swapaxes(1, 2) + 1)
    with_images(rt.sum(x, axis=1), "r2=o,v/4:v; image=in0", [PICTURE], PICTURE.sum(axis=1))


def test_masks_of_images() -> None:
    """What a mask keeps out is not read, and its coordinates take no division of negative numbers."""
    x = rt.asarray(PICTURE, device="numpy")
    right = np.pad(PICTURE, ((1, 1), (1, 1), (4, 4)))
    for split in ("r2=o,v/4:v", "r2=o,v/8:v", ""):
        made = with_images(rt.pad(x, ((1, 1), (1, 1), (4, 4))), f"{split}; image=in0", [PICTURE], right)
        assert all(len(u.src) == 4 for u in made.uops if u.op is ops.IMAGE_LOAD)
        assert not any(u.op in (ops.TRUNCDIV, ops.TRUNCMOD) for u in made.uops)
    ragged = rt.pad(x, ((0, 0), (0, 0), (1, 3)))
    with_images(ragged, "r2=o,v/4:v; image=in0", [PICTURE], np.pad(PICTURE, ((0, 0), (0, 0), (1, 3))))


def test_rows_of_an_image_fold_within_its_limits() -> None:
    caps = TOOLS.capabilities._replace(limits=Limits(image=(8, 6)))
    x = rt.asarray(PICTURE, device="numpy")
    made = with_images(x + 1, "r2=o,v/4:v; image=in0,out0", [PICTURE], PICTURE + 1, caps)
    assert {u.arg[1] for u in made.uops if u.op is ops.IMAGE} == {(5, 6)}


@pytest.mark.parametrize(
    ("shape", "dtype", "schedule", "message"),
    [
        ((3, 5, 6), "f4", "image=in0", "no multiple of 4"),
        ((3, 5, 8), "i4", "image=in0", "holds float32 or float16"),
        ((3, 5, 8), "f4", "image=in7", "the kernel's parameters are out0, in0"),
        ((3, 5, 8), "f4", "image=out0", "by whole texels"),
        ((3, 5, 8), "f4", "r2=o,v/2:v; image=out0", "by whole texels"),
        ((9, 9, 40), "f4", "image=in0", "more than numpy/uops has, 16 x 16"),
    ],
)
def test_what_cannot_be_an_image(shape: tuple[int, ...], dtype: str, schedule: str, message: str) -> None:
    (kernel,) = rt.lower(ones(*shape, dtype=dtype) + 1)
    caps = TOOLS.capabilities._replace(limits=Limits(image=(16, 16)))
    with pytest.raises(ScheduleError, match=message):
        linearize(apply_schedule(kernel, parse_schedule(schedule)), caps)
    with pytest.raises(ScheduleError, match="has no images"):
        linearize(apply_schedule(kernel, parse_schedule("image=in0")), toolchain("llvm").capabilities)
