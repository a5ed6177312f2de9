"""Linear programs: deterministic, invariant code hoisted, accumulators as far in as they can be."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import retarget as rt
from retarget.ir import ops
from retarget.ir.text import dump_program
from retarget.ir.uop import UOp
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.pipeline import schedule_for, toolchain

TOOLS = toolchain("numpy")


def ones(*shape: int, dtype: str = "f4") -> rt.Array:
    return rt.asarray(np.ones(shape, dtype), device="numpy")


def program(array: rt.Array, schedule: str = "") -> tuple[UOp, ...]:
    (kernel,) = rt.lower(array)
    return linearize(apply_schedule(kernel, parse_schedule(schedule)), TOOLS.capabilities).uops


def depths(uops: tuple[UOp, ...]) -> list[tuple[UOp, tuple[str, ...]]]:
    """Return each uop with the names of the loops around it."""
    out: list[tuple[UOp, tuple[str, ...]]] = []
    loops: list[str] = []
    for u in uops:
        if u.op is ops.END:
            loops.pop()
        out.append((u, tuple(loops)))
        if u.op is ops.RANGE:
            loops.append(u.arg[0])
    assert not loops
    return out


def around(uops: tuple[UOp, ...], op: ops.Op) -> list[tuple[str, ...]]:
    return [loops for u, loops in depths(uops) if u.op is op]


EXPRESSIONS = {
    "map": lambda: rt.exp(ones(5, 7)) + ones(7),
    "softmax": lambda: rt.softmax(ones(5, 64), axis=1),
    "layer norm": lambda: rt.layer_norm(ones(6, 32)),
    "matmul": lambda: ones(33, 40) @ ones(40, 64),
    "convolution": lambda: rt.conv2d(ones(1, 3, 9, 9), ones(4, 3, 3, 3)),
    "pad": lambda: rt.pad(ones(4, 4), ((1, 2), (3, 0))) * 2,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_twice_the_same(name: str) -> None:
    """The program depends on nothing but the kernel, the schedule and the target."""
    (kernel,) = rt.lower(EXPRESSIONS[name]())
    schedule = schedule_for(kernel, TOOLS)
    first, second = (linearize(apply_schedule(kernel, schedule), TOOLS.capabilities) for _ in range(2))
    assert dump_program(first.uops) == dump_program(second.uops) and first.name == second.name
    (again,) = rt.lower(EXPRESSIONS[name]())  # from other buffers
    third = linearize(apply_schedule(again, schedule), TOOLS.capabilities)
    assert dump_program(third.uops) == dump_program(first.uops) and third.name == first.name


# -- hoisting ----------------------------------------------------------------------------------------------


def test_invariant_code_is_outside_of_the_loop() -> None:
    x, column, scale = ones(5, 7), ones(5, 1), ones(1, 1)
    uops = program(x * rt.exp(column) + rt.sqrt(scale))
    assert [loops for u, loops in depths(uops) if u.op is ops.SQRT] == [()]
    loads = {u.src[0].arg[0]: loops for u, loops in depths(uops) if u.op is ops.LOAD}
    assert sorted(loads.values()) == [(), ("r0",), ("r0", "r1")]
    inner = [
        u for u, loops in depths(uops) if loops == ("r0", "r1") and u.op in ops.ALU_OPS and u.dtype.is_float
    ]
    assert Counter(u.op for u in inner) == {ops.MUL: 1, ops.ADD: 1}


def test_addresses_are_computed_where_their_loops_are() -> None:
    uops = program(ones(5, 7) + 1)
    where = {u.arg: loops for u, loops in depths(uops) if u.op is ops.MUL and u.dtype.is_int}
    assert list(where.values()) == [("r0",)]  # r0 * 7, once a row


def test_masks_are_hoisted_too() -> None:
    uops = program(rt.pad(ones(4, 4), ((1, 1), (2, 2))))
    compared = [loops for u, loops in depths(uops) if u.op in (ops.CMPLT, ops.CMPLE)]
    assert ("r0",) in compared and ("r0", "r1") in compared


def test_common_subexpressions_are_computed_once() -> None:
    x = ones(5, 7)
    uops = program(rt.sqrt(x) * rt.sqrt(x + 0) + rt.sqrt(x) / (1 + rt.sqrt(x)))
    assert len([u for u in uops if u.op is ops.SQRT]) <= 2  # x + 0 is not x: it may be -0
    uops = program(rt.sqrt(x) + rt.sqrt(x) * rt.sqrt(x))
    assert len([u for u in uops if u.op is ops.SQRT]) == 1


def test_dead_code_is_gone() -> None:
    x, unused = ones(5, 7), ones(5, 7)
    (kernel,) = rt.lower(rt.pad(unused, ((0, 5), (0, 0)))[5:] + x)
    assert len(kernel.inputs) == 1


# -- accumulators ------------------------------------------------------------------------------------------


def accumulators(uops: tuple[UOp, ...]) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    return {u.arg[0]: (u.arg[1], loops) for u, loops in depths(uops) if u.op is ops.LOCAL}


def test_accumulator_stands_just_outside_its_loop() -> None:
    assert accumulators(program(rt.sum(ones(5, 7), axis=1))) == {"acc0": ((), ("r0",))}
    assert accumulators(program(rt.sum(ones(5, 7)))) == {"acc0": ((), ())}


def test_accumulator_outside_of_an_inner_output_loop() -> None:
    """With the reduction's loop outside, each element of the row needs an accumulator of its own."""
    uops = program(rt.sum(ones(5, 7), axis=0), "order=r2,r1")
    assert accumulators(uops) == {"acc0": ((7,), ())}


def test_register_tile_of_a_product() -> None:
    text = "r0=i,iu/4:u; r1=j,ju/2:u,jv/8:v; order=i,j,r3,iu,ju,jv"
    uops = program(ones(8, 16) @ ones(16, 32), text)
    assert accumulators(uops) == {"acc0": ((4, 2), ("i", "j"))}
    (steps,) = {loops for u, loops in depths(uops) if u.op is ops.MULACC}
    assert steps == ("i", "j", "r3", "iu", "ju")
    assert {u.dtype.lanes for u in uops if u.op is ops.MULACC} == {8}


def test_softmax_has_three_passes_over_one_row_loop() -> None:
    uops = program(rt.softmax(ones(5, 64), axis=1))
    ranges = [(u.arg[0], loops) for u, loops in depths(uops) if u.op is ops.RANGE]
    assert ranges == [("r0", ()), ("r1", ("r0",)), ("r1", ("r0",)), ("r1", ("r0",))]
    assert len(accumulators(uops)) == 2


def test_independent_reductions_share_their_loop() -> None:
    x = ones(5, 64)
    uops = program(rt.sum(x, axis=1) * rt.max(x, axis=1))
    assert [u.arg[0] for u in uops if u.op is ops.RANGE] == ["r0", "r1"]


# -- indices and names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1000, 8), "int32"),
        ((2**28 - 1, 8), "int32"),
        ((2**28, 8), "int32"),
        ((2**28 + 1, 8), "int64"),
        ((2**40, 1), "int64"),
    ],
)
def test_index_dtype(shape: tuple[int, int], dtype: str) -> None:
    uops = program(rt.broadcast_to(ones(1, shape[1]), shape) + 1)
    assert {u.dtype.name for u in uops if u.op is ops.RANGE} == {dtype}


def test_names() -> None:
    found = set()
    for expression in EXPRESSIONS.values():
        (kernel,) = rt.lower(expression())
        for text in ("", "r0=a,b/2"):
            made = linearize(apply_schedule(kernel, parse_schedule(text)), TOOLS.capabilities)
            assert re.fullmatch(r"[a-z][a-z0-9_]*", made.name) and len(made.name) <= 63
            found.add(made.name)
    assert len(found) == 2 * len(EXPRESSIONS)
    assert {n.partition("_")[0] for n in found} >= {"map", "max", "sum", "dot"}
