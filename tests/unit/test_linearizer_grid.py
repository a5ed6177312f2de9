"""Grids, blocks and warps: launch dimensions, reductions and copies that threads share, barriers.

Programs run in the interpreter, with threads in forward, reverse and random order; results are NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.codegen.program import Program
from retarget.conformance.blocks import BLOCKS, ORDERS, block_capabilities, execute_blocks, interpret, work
from retarget.conformance.bounds import evaluate, mismatches
from retarget.conformance.fuzz import check, fuzz, random_choice, usable_dtypes
from retarget.conformance.generate import generate
from retarget.errors import ParseError, ScheduleError, VerifyError
from retarget.ir import dtypes, ops
from retarget.ir.uop import UOp, const
from retarget.ir.verify import verify_program
from retarget.linearize.grid import spread
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.registry.capabilities import Capabilities, Limits, Support

Values = np.ndarray[Any, Any]
SMALL = block_capabilities()
rng = np.random.default_rng(5)
ROWS = rng.standard_normal((6, 40)).astype("f4")
CUBE = rng.standard_normal((3, 4, 5, 6)).astype("f4")
A, B = rng.standard_normal((9, 17)).astype("f4"), rng.standard_normal((17, 10)).astype("f4")


def limited(**limits: Any) -> Capabilities:
    return SMALL._replace(limits=Limits(**limits))


def program(
    expression: Callable[..., rt.Array], inputs: Sequence[Values], schedule: str, caps: Capabilities = SMALL
) -> Program:
    (kernel,) = rt.lower(expression(*[rt.asarray(a, device="numpy") for a in inputs]))
    return linearize(apply_schedule(kernel, parse_schedule(schedule)), caps)


def run(made: Program, inputs: Sequence[Values], right: Values) -> None:
    """Run a program in each order of its threads and compare."""
    names = [a.name for a in made.arguments]
    for order in ORDERS:
        out = np.full(right.shape, 77, right.dtype)
        interpret(made, dict(zip(names, [out, *inputs], strict=True)), order=order)
        np.testing.assert_allclose(out, right, rtol=2e-5, atol=2e-5, err_msg=f"threads in order {order}")


def check_program(
    expression: Callable[..., rt.Array], inputs: Sequence[Values], schedule: str, right: Values,
    caps: Capabilities = SMALL,
) -> Program:  # fmt: skip
    made = program(expression, inputs, schedule, caps)
    run(made, inputs, right)
    return made


def count(made: Program, op: ops.Op) -> int:
    return sum(u.op is op for u in made.uops)


def specials(made: Program) -> dict[str, int]:
    return {u.arg[0]: u.arg[1] for u in made.uops if u.op is ops.SPECIAL}


# -- launch dimensions -------------------------------------------------------------------------------------


def test_the_fastest_axis_is_on_x() -> None:
    made = check_program(lambda x: x + 1, [CUBE[0]], "r0=a:g; r1=b:g; r2=c:g", CUBE[0] + 1, limited())
    assert made.launch.grid == (6, 5, 4) and made.launch.block == (1, 1, 1)
    made = check_program(lambda x: x + 1, [CUBE[0]], "r0=a:g; r1=b:b; r2=c:b", CUBE[0] + 1, limited())
    assert made.launch.grid == (4, 1, 1) and made.launch.block == (6, 5, 1)


def test_surplus_dimensions_collapse_leftmost_first() -> None:
    made = check_program(lambda x: x + 1, [CUBE], "r0=a:g; r1=b:g; r2=c:g; r3=d:g", CUBE + 1, limited())
    assert made.launch.grid == (6, 5, 12)
    two = limited(grid=(0, 0), block=(0, 0))
    made = check_program(lambda x: x + 1, [CUBE], "r0=a:g; r1=b:g; r2=c:g; r3=d:g", CUBE + 1, two)
    assert made.launch.grid == (6, 60)
    one = limited(grid=(0,), block=(0,))
    made = check_program(lambda x: x + 1, [CUBE], "r0=a:g; r1=b:g; r2=c:g; r3=d:g", CUBE + 1, one)
    assert made.launch.grid == (360,)
    # Of axes that lie together in memory nothing is left but the flat index.
    assert not any(u.op in (ops.TRUNCDIV, ops.TRUNCMOD) for u in made.uops)


def test_missing_dimensions_have_size_1() -> None:
    made = check_program(lambda x: x + 1, [ROWS], "r0=a:g", ROWS + 1)
    assert made.launch.grid == (6, 1, 1) and made.launch.block == (1, 1, 1)


@pytest.mark.parametrize(
    ("limits", "grid"),
    [
        ((16, 16, 16), (15, 16, 1)),  # 240 factors
        ((7, 7, 7), (6, 5, 8)),  # not within 7 x 7: all dimensions are rounded up
        ((240, 1, 1), (240, 1, 1)),
    ],
)
def test_a_size_beyond_its_limit_is_split(limits: tuple[int, ...], grid: tuple[int, ...]) -> None:
    caps = limited(grid=limits)
    made = check_program(lambda x: x + 1, [ROWS], "r0=a:g; r1=b:g", ROWS + 1, limited(grid=(0,)))
    flat = ROWS.reshape(-1)
    made = check_program(lambda x: x + 1, [flat], "r0=a:g", flat + 1, caps)
    assert math.prod(made.launch.grid) >= 240  # type: ignore[arg-type]
    assert all(n <= limit for n, limit in zip(made.launch.grid, limits, strict=True))  # type: ignore[operator]
    assert (count(made, ops.IF) == 1) == (math.prod(made.launch.grid) != 240)  # type: ignore[arg-type]


def test_a_prime_size_is_guarded() -> None:
    line = rng.standard_normal(37).astype("f4")
    made = check_program(lambda x: x + 1, [line], "r0=a:g", line + 1, limited(grid=(16, 16, 16)))
    assert made.launch.grid == (13, 3, 1) and count(made, ops.IF) == 1


def test_neighbours_share_dimensions_when_none_is_free() -> None:
    caps = limited(grid=(8, 8, 8))
    made = check_program(
        lambda x: x + 1, [CUBE[:, :1, :, :].copy()], "r0=a:g; r2=c:g; r3=d:g", CUBE[:, :1] + 1, caps
    )
    assert made.launch.grid == (6, 5, 3)
    wide = rng.standard_normal((2, 3, 31)).astype("f4")
    made = check_program(lambda x: x + 1, [wide], "r0=a:g; r1=b:g; r2=c:g", wide + 1, caps)
    assert all(n <= 8 for n in made.launch.grid) and math.prod(made.launch.grid) >= 186  # type: ignore


def test_what_cannot_be_launched() -> None:
    with pytest.raises(ScheduleError, match=r"do not fit the launch limits \(4, 4, 4\)"):
        program(lambda x: x + 1, [ROWS], "r0=a:g; r1=b:g", limited(grid=(4, 4, 4)))
    with pytest.raises(ScheduleError, match=r"a block of 6 x 40 = 240 threads; blocks/small has at most 64"):
        program(lambda x: x + 1, [ROWS], "r0=a:b; r1=b:b")
    with pytest.raises(ScheduleError, match=r"blocks of a grid do not wait"):
        program(lambda x: rt.sum(x, axis=1), [ROWS], "r2=a:g")
    with pytest.raises(ScheduleError, match=r"has size 6, not a power of two"):
        program(lambda x: x + 1, [ROWS], "r0=a:w")
    with pytest.raises(ScheduleError, match=r"make 16 threads; a warp of blocks/small has 8"):
        program(lambda x: x + 1, [ROWS], "r1=a,b/16:w")
    with pytest.raises(
        ScheduleError, match=r"960 bytes in local memory \(in0_tile0 960\); blocks/small has 256"
    ):
        program(lambda x: x + x, [ROWS], "r1=o,b/8:b; stage=in0@top", limited(local_bytes=256))


def test_threads_beyond_a_block_limit_are_split_or_guarded() -> None:
    caps = limited(block=(4, 4, 4), block_threads=64)
    line = rng.standard_normal(41).astype("f4")
    made = check_program(lambda x: x + 1, [line], "r0=a:g,b/12:b", line + 1, caps)
    assert made.launch.block == (4, 3, 1) and count(made, ops.IF) == 0
    made = check_program(lambda x: x + 1, [line], "r0=a:g,b/7:b", line + 1, caps)
    assert made.launch.block == (4, 2, 1) and count(made, ops.IF) == 1
    with pytest.raises(ScheduleError, match=r"do not factor .* its threads wait for each other"):
        program(lambda x: rt.sum(x), [line], "r1=a,b/7:b", caps)


def test_spread_is_exact_where_sizes_factor() -> None:
    for limits in ((16, 16), (16, 8, 4), (5, 5, 5)):
        for total in range(1, math.prod(limits) + 1):
            sizes = spread(total, limits)
            if sizes is None:  # rounding up in steps may not find the last few
                assert total > math.prod(limits) * 0.6
                continue
            assert all(1 <= n <= limit for n, limit in zip(sizes, limits, strict=False))
            assert total <= math.prod(sizes) < 2 * total
        assert spread(math.prod(limits) + 1, limits) is None
    assert spread(2**20, (1024, 1024)) == (1024, 1024)


@pytest.mark.parametrize("split", ["r0=a:g", "r0=a:g,b/4:b", "r0=a:g,b/4:b,i/2", "r0=a:g; r1=b:g"])
def test_symbolic_sizes_in_the_grid(split: str) -> None:
    """The number of blocks follows the value at launch; its largest is known."""
    made = symbolic_program(split)
    for n in (1, 3, 8, 17):
        grid, _ = made.launch.sizes({"n": n})
        threads = {"r0=a:g": n, "r0=a:g,b/4:b": -(-n // 4), "r0=a:g,b/4:b,i/2": -(-n // 8)}.get(split, n)
        if "r1" in split:  # 17 rows are more than y has: 6 of them on y, the others on z
            assert grid == (3, 6, -(-n // 6)) and count(made, ops.IF) == 1
        else:
            assert math.prod(grid) == threads
        data = rng.standard_normal((17, 3)).astype("f4")
        for order in ORDERS:
            out = np.zeros((17, 3), "f4")
            interpret(made, {"out0": out, "in0": data}, {"n": n}, order)
            np.testing.assert_array_equal(out.reshape(-1)[: n * 3], data.reshape(-1)[: n * 3] * 2)
            assert not out.reshape(-1)[n * 3 :].any()


def symbolic_program(schedule: str) -> Program:
    from retarget.ir.index import irange
    from retarget.schedule.kernel import Kernel

    n = UOp(ops.VAR, dtypes.index, (), ("n", 1, 17))
    rows, columns = irange(n, "r0"), irange(3, "r1")
    true = const(True, dtypes.bool_)
    source = UOp(ops.PARAM, dtypes.float32, (), ("in0", (n, 3), False))
    target = UOp(ops.PARAM, dtypes.float32, (), ("out0", (n, 3), True))
    value = UOp(ops.LOAD, dtypes.float32, (source, true, rows, columns))
    doubled = UOp(ops.ADD, dtypes.float32, (value, value))
    store = UOp(ops.STORE, dtypes.void, (target, true, doubled, rows, columns))
    node = UOp(ops.BUFFER, dtypes.float32, (), (0, (n, 3), "test:0"))
    kernel = Kernel((store,), (node,), (node,), (n,))
    return linearize(apply_schedule(kernel, parse_schedule(schedule)), SMALL)


def test_a_target_without_a_grid_runs_loops() -> None:
    plain = SMALL._replace(axis_kinds=frozenset({"loop", "unroll", "vector"}))
    made = check_program(lambda x: x + 1, [ROWS], "r0=a:g; r1=o,b/8:b", ROWS + 1, plain)
    assert not specials(made) and made.launch.grid == () and count(made, ops.RANGE) == 3
    with pytest.raises(ScheduleError, match="share part0"):
        program(lambda x: rt.sum(x, axis=1), [ROWS], "r2=o,b/8:b", plain._replace(barriers=SMALL.images))
    with pytest.raises(ScheduleError, match="has no warps"):
        program(lambda x: rt.sum(x, axis=1), [ROWS], "r2=o,b/8:w", plain)


def test_kernels_without_threads() -> None:
    """Blocks of one thread: no local dimensions."""
    made = check_program(lambda x: rt.softmax(x, axis=1), [ROWS], "r0=a:g", softmax(ROWS))
    assert specials(made) == {"grid0": 6} and made.launch.block == (1, 1, 1) and not count(made, ops.BARRIER)


# -- cooperative reductions --------------------------------------------------------------------------------


def softmax(v: Values) -> Values:
    e = np.exp(v.astype("f8") - v.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype("f4")


@pytest.mark.parametrize(
    ("schedule", "barriers"),
    [
        ("r0=g:g; r2=o,b/8:b", 1),
        ("r0=g:g; r2=b/8:b,o", 1),
        ("r0=g:g; r2=o,b/16:b", 1),  # 40 is no multiple of 16
        ("r0=g:g; r2=b1/4:b,b2/8:b,i", 1),  # two axes, one array
        ("r0=g:g; r2=o,b/4:b,w/8:w", 1),
        ("r0=g:g; r2=o,w/8:w", 0),  # shuffles alone
        ("r0=g:g,t/2:w; r2=o,w/4:w", 0),  # half a warp a row
        ("r0=g:g,t/2:w; r2=w/4:w,o,b/2:b", 1),
        ("r0=g:g,t/2:b; r2=o,b/8:b", 1),  # threads that reduce different rows
        ("r2=o,b/8:b", 2),  # the second row must not overwrite what others still read of the first
    ],
)
def test_threads_share_a_sum(schedule: str, barriers: int) -> None:
    made = check_program(lambda x: rt.sum(x, axis=1), [ROWS], schedule, ROWS.sum(axis=1))
    assert count(made, ops.BARRIER) == barriers
    assert count(made, ops.SHUFFLE) == (0 if "w/" not in schedule else 2 if "w/4" in schedule else 3)


def test_one_thread_writes() -> None:
    made = program(lambda x: rt.sum(x, axis=1), [ROWS], "r0=g:g; r2=o,b/8:b")
    (store,) = [u for u in made.uops if u.op is ops.STORE and u.src[0].op is ops.PARAM]
    assert len(store.src) == 4


@pytest.mark.parametrize("fold", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "int64", "bool"])
def test_every_fold_is_shared(fold: str, dtype: str) -> None:
    if dtype == "bool" and fold in ("sum", "prod", "max", "min"):
        fold = {"max": "any", "sum": "any"}.get(fold, "all")
    x = (rng.integers(0, 3, (3, 12)) - (1 if dtype.startswith(("f", "int")) else 0)).astype(dtype)
    if fold == "prod":
        x = np.abs(x[:, :4]).astype(dtype)
    found = rt.asarray(x, device="numpy")
    made = program(lambda v: getattr(rt, fold)(v, axis=1), [x], "r0=g:g; r2=o,b/2:b,w/2:w")
    right = getattr(np, fold)(x, axis=1)
    assert right.dtype.kind in "fiub" and found.shape == x.shape
    names = [a.name for a in made.arguments]
    for order in ORDERS:
        out = np.full(right.shape, 1, made.arguments[0].dtype)
        interpret(made, dict(zip(names, [out, x], strict=True)), order=order)
        np.testing.assert_array_equal(out, right.astype(out.dtype))


def test_several_accumulators_go_through_local_memory_at_once() -> None:
    """Axes that are not reduced are upcast in the middle: 3 x 3 sums a thread, one barrier for all."""
    made = check_program(
        lambda x, y: x @ y, [A, B], "r0=g:g,i/3:u; r1=h:g,j/3:u; r3=o,b/8:b; order=o,i,j", A @ B
    )
    (part,) = [u for u in made.uops if u.op is ops.LOCAL and u.arg[2] == "local"]
    assert [n for n in part.arg[1] if n] == [8, 3, 3] and count(made, ops.BARRIER) == 1


@pytest.mark.parametrize("split", ["o,b/8:b", "o,b/4:b,w/4:w", "b/8:b,o", "o,w/8:w"])
@pytest.mark.parametrize("rows", ["g:g", "g:g,i/2", "g,i/2", "g:g,t/2:b"])
def test_reductions_that_depend_on_each_other(rows: str, split: str) -> None:
    """The softmax of a row that the threads of a block share: both results are known to all of them."""
    made = check_program(lambda x: rt.softmax(x, axis=1), [ROWS], f"r0={rows}; r1={split}", softmax(ROWS))
    assert count(made, ops.BARRIER) == (2 if "b" in split else 0)


def test_kept_values_of_a_thread_need_no_barrier() -> None:
    made = check_program(
        lambda x: rt.softmax(x, axis=1), [ROWS], "r0=g:g; r1=o,b/8:b; stage=EXP@top", softmax(ROWS)
    )
    kept = [u for u in made.uops if u.op is ops.LOCAL and u.arg[0].startswith("exp")]
    assert len(kept) == 1 and count(made, ops.BARRIER) == 2  # those of the two sums


# -- copies that threads share -----------------------------------------------------------------------------

TILES = [
    ("r0=g:g,b/4:b; r1=h:g,c/8:b; r3=o,i/8; order=o,i; stage=in0@o; stage=in1@o", 2),  # partial matches
    ("r0=g:g,b/8:b; r1=h:g,c/8:b; r3=o,i/8; order=o,i; stage=in0@o; stage=in1@o", 2),  # equal
    ("r0=g:g,b/8:b; r1=h:g,c/8:b; r3=o,i/3; order=o,i; stage=in0@o; stage=in1@o", 2),  # fewer elements
    ("r0=g:g,b/2:b,u/2:u; r1=h:g,c/4:b,v/2:u; r3=o,i/5; order=o,i,u,v; stage=in0@o; stage=in1@o", 2),
    ("r0=g:g,b/4:b; r1=h:g,c/4:b; r3=o,i/4; stage=in0@top", 1),
    ("r0=g:g,b/4:b; r1=h:g,c/4:b; r3=o,i/4; order=o,i; stage=in0@o:register", 0),  # each thread its own
    ("r0=g:g,b/4:b; r1=h:g,c/4:w; r3=o,i/4; order=o,i; stage=in0@o; stage=in1@o", 2),
    ("r0=g:g,b/4:b; r1=h:g,c/4:b; r3=o,k/2:b,i/4; order=o,i; stage=in0@o; stage=in1@o", 3),
]


@pytest.mark.parametrize(("schedule", "barriers"), TILES)
def test_tiles_are_copied_together(schedule: str, barriers: int) -> None:
    made = check_program(lambda x, y: x @ y, [A, B], schedule, A @ B)
    assert count(made, ops.BARRIER) == barriers


def test_each_element_is_copied_once() -> None:
    made = program(lambda x, y: x @ y, [A, B], TILES[1][0])
    stores = [u for u in made.uops if u.op is ops.STORE and u.src[0].arg[0].startswith("in")]
    assert len(stores) == 2 and all(len(s.src) == 3 for s in stores)  # 64 elements, 64 threads: no mask
    assert not any(u.op is ops.RANGE and u.arg[0].startswith("c0") for u in made.uops)


def test_threads_that_read_the_same_element_copy_it_once() -> None:
    """A stride of 0: the tile has no dimension for threads that do not change the element."""
    made = check_program(
        lambda x, y: x * y, [ROWS, ROWS[0].copy()], "r0=t:b; r1=o,b/8:b; stage=in1@o", ROWS * ROWS[0]
    )
    (tile,) = [u for u in made.uops if u.op is ops.LOCAL]
    assert [n for n in tile.arg[1] if n] == [8] and count(made, ops.BARRIER) == 2


# -- barriers ----------------------------------------------------------------------------------------------


def faulty(made: Program, number: int) -> Program:
    """Return a program without one of its barriers."""
    at = [n for n, u in enumerate(made.uops) if u.op is ops.BARRIER][number]
    return replace(made, uops=made.uops[:at] + made.uops[at + 1 :])


@pytest.mark.parametrize("schedule", [TILES[0][0], TILES[3][0], TILES[7][0]])
def test_every_barrier_is_needed(schedule: str) -> None:
    made = program(lambda x, y: x @ y, [A, B], schedule)
    for number in range(count(made, ops.BARRIER)):
        with pytest.raises(AssertionError, match="threads in order"):
            run(faulty(made, number), [A, B], A @ B)


def test_the_fuzzer_finds_a_missing_barrier() -> None:
    """A compiler that leaves out the last barrier of each kernel does not pass."""
    named = usable_dtypes(BLOCKS)
    found = False
    for seed in range(60):
        graph = generate(seed, 8, named)
        if work(graph.roots) > 300:
            continue
        choose = random_choice(seed, BLOCKS, stages=True)
        assert check(graph, BLOCKS, choose) is None
        expected, bounds = evaluate(graph.roots, graph.data)

        def change(made: Program) -> Program:
            return faulty(made, -1) if count(made, ops.BARRIER) else made

        for done in execute_blocks(graph.roots, graph.data, choose, change):
            found = found or any(
                mismatches(v, e, b).any() for v, e, b in zip(done.values, expected, bounds, strict=True)
            )
        if found:
            return
    pytest.fail("every barrier could be left out")


def divergent(condition: str) -> list[UOp]:
    thread = UOp(ops.SPECIAL, dtypes.int32, (), ("block0", 8))
    block = UOp(ops.SPECIAL, dtypes.int32, (), ("grid0", 8))
    two = const(2, dtypes.int32)
    test = UOp(ops.CMPLT, dtypes.bool_, (thread if condition == "thread" else block, two))
    branch = UOp(ops.IF, dtypes.void, (test,))
    return [
        thread,
        block,
        two,
        test,
        branch,
        UOp(ops.BARRIER, dtypes.void),
        UOp(ops.ENDIF, dtypes.void, (branch,)),
    ]


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    verify_program(divergent("block"))
    with pytest.raises(VerifyError, match="BARRIER stands where not all threads of the block come"):
        verify_program(divergent("thread"))


# -- random schedules --------------------------------------------------------------------------------------


def test_random_schedules_on_a_grid() -> None:
    assert [str(f) for f in fuzz(BLOCKS, range(40), size=6, stages=True, schedules=True)] == []


# -- padding, width and slots of a stage -------------------------------------------------------------------

SPLIT = "r0=g:g,b/4:b; r1=h:g,c/8:b; r3=o,i/4; order=o,i"


def test_padding_spreads_columns_over_banks() -> None:
    made = check_program(
        lambda x, y: x @ y, [A, B], f"{SPLIT}; stage=in0@o[b,i+1]; stage=in1@o[i+3,c]", A @ B
    )
    shapes = [[n for n in u.arg[1] if n] for u in made.uops if u.op is ops.LOCAL and u.arg[2] == "local"]
    assert shapes == [[4, 5], [7, 8]]


def test_threads_copy_several_elements_at_a_time() -> None:
    x, y = rng.standard_normal((8, 16)).astype("f4"), rng.standard_normal((16, 16)).astype("f4")
    made = check_program(
        lambda x, y: x @ y, [x, y], f"{SPLIT}; stage=in0@o:local/4; stage=in1@o[i,c+4]:local/4", x @ y
    )
    copies = [u for u in made.uops if u.op is ops.STORE and u.src[0].arg[0].startswith("in")]
    assert [u.src[2].dtype.lanes for u in copies] == [4, 4]
    assert all(u.arg == 4 for u in made.uops if u.op is ops.LOAD and u.dtype.lanes == 4)
    check_program(lambda x, y: x @ y, [A, B], f"{SPLIT}; stage=in0@o:local/4; stage=in1@o:local/2", A @ B)


@pytest.mark.parametrize("slots", [2, 3, 5, 9])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_slots_are_filled_ahead(slots: int, width: int, asynchronous: bool) -> None:
    """One barrier an iteration, in which copies for a later one are in flight."""
    caps = (
        SMALL
        if asynchronous
        else SMALL._replace(async_copies=SMALL.barriers._replace(support=Support.UNSUPPORTED))
    )
    x, y = rng.standard_normal((8, 16)).astype("f4"), rng.standard_normal((16, 8)).astype("f4")
    stages = f"stage=in0@o[b,i+4]:local/{width}*{slots}; stage=in1@o:local/{width}*{slots}".replace("/1", "")
    made = check_program(lambda x, y: x @ y, [x, y], f"{SPLIT}; {stages}", x @ y, caps)
    assert count(made, ops.BARRIER) == 1
    assert count(made, ops.STAGE_COPY) == (2 * (min(slots - 1, 4) + (slots - 1 < 4)) if asynchronous else 0)
    assert (count(made, ops.STAGE_COMMIT) > 0) == asynchronous
    waits = [u.arg for u in made.uops if u.op is ops.STAGE_WAIT]
    assert waits == ([slots - 2] if asynchronous else [])
    ragged = check_program(lambda x, y: x @ y, [A, B], f"{SPLIT}; {stages}", A @ B, caps)
    assert count(ragged, ops.BARRIER) == 1


def test_slots_in_a_loop_that_runs_again() -> None:
    schedule = "r0=g:g,m/2,b/4:b; r1=h:g,c/8:b; r3=o,i/4; order=m,o,i; stage=in0@o:local*2"
    made = check_program(lambda x, y: x @ y, [A, B], schedule, A @ B)
    assert count(made, ops.BARRIER) == 2  # the second keeps the next rows' first copy off the last tile


def test_a_missing_wait_or_barrier_of_slots_shows() -> None:
    made = program(lambda x, y: x @ y, [A, B], f"{SPLIT}; stage=in0@o:local*3; stage=in1@o:local*3")
    with pytest.raises(AssertionError, match="threads in order"):
        run(faulty(made, 0), [A, B], A @ B)
    at = next(n for n, u in enumerate(made.uops) if u.op is ops.STAGE_WAIT)
    late = UOp(ops.STAGE_WAIT, dtypes.void, (), 2)
    with pytest.raises(AssertionError, match="threads in order"):
        run(replace(made, uops=(*made.uops[:at], late, *made.uops[at + 1 :])), [A, B], A @ B)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("in0@top:local*2", "a loop to go through them"),
        ("in0@o:register*2", "slots need local memory"),
        ("in0@g:local*2", "a loop to go through them"),
        ("in0@o:register/4", "copies that the threads of a block share"),
        ("in0@o:local/3", "3 does not divide the tile's last dimension, 4"),
        ("in0@o[i,b]:local/4", "the layout's last"),
        ("in0@o:local*2; stage=in1@o:local*3", r"have \[2, 3\] slots"),
        ("MUL@o:local*2", "only a buffer's tile"),
    ],
)
def test_what_has_no_width_or_slots(stage: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        program(lambda x, y: x @ y, [A, B], f"{SPLIT}; stage={stage}")


def test_the_text_of_a_stage() -> None:
    for text in (
        "stage=in0@o[b,i+1]", "stage=in0@o:local/4*3", "stage=in0@o[b+2,i]:local*2", "stage=in0@o:register",
        "stage=in0@o[b,i+4]:local/4",
    ):  # fmt: skip
        schedule = parse_schedule(text)
        assert str(schedule) == text and parse_schedule(str(schedule)) == schedule
    for text in ("stage=in0@o[b+]", "stage=in0@o:local/0", "stage=in0@o:local*0", "stage=in0@o[+1]"):
        with pytest.raises(ParseError):
            parse_schedule(text)
