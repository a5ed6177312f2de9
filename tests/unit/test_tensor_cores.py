"""Tensor cores: sums of products as matrix instructions on fragments, for the descriptors of every family.

Programs run in the interpreter, which executes the descriptors; results are those of the graph evaluator.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from vendor_tensor_cores import FAMILIES

import retarget as rt
from retarget.codegen.program import Program
from retarget.errors import ScheduleError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.optimize.tensor_cores import holds
from retarget.registry.capabilities import Capabilities, Entry, Limits, Support, TensorCore
from retarget.registry.layouts import by_lane, dot_product
from retarget_numpy.interpreter import Interpreter

Values = np.ndarray[Any, Any]
YES = Entry(Support.SUPPORTED)
#: Narrow floats are computed in float32, as on most devices.
ARITHMETIC = {
    d.name: Entry(Support.EMULATED) if d.is_float and d.bits < 32 else YES for d in dtypes.ARRAY_DTYPES
}
CORES = {c.name: c for family in FAMILIES.values() for c in family()}
MMA = CORES["mma_m16n8k16_float16_float32"]
RNG = np.random.default_rng(11)


def target(*cores: TensorCore) -> Capabilities:
    """Return a device with a grid and some tensor cores."""
    return Capabilities(
        "grid/cores", {d.name: YES for d in dtypes.ARRAY_DTYPES}, ARITHMETIC, vector_bits=0,
        axis_kinds=frozenset({"grid", "block", "warp", "loop", "unroll"}),
        address_spaces=frozenset({"global", "local", "register"}), barriers=YES,
        limits=Limits(grid=(1 << 20, 65535, 65535), block=(1024, 1024, 64), block_threads=1024,
                      local_bytes=48 << 10, warp=max(c.threads for c in cores)),
        tensor_cores=cores,
    )  # fmt: skip


def small(shape: tuple[int, ...], dtype: str) -> Values:
    """Return whole numbers whose products and sums are exact in every dtype."""
    low = 0 if dtype.startswith("u") else -3
    return RNG.integers(low, 4, shape).astype(dtypes.to_numpy(dtypes.as_dtype(dtype)))


Expression = Callable[..., rt.Array]


def program(f: Expression, inputs: Sequence[Values], schedule: str, *cores: TensorCore) -> Program:
    """Return the program of an expression; "K" in the schedule is its reduction."""
    (kernel,) = rt.lower(f(*[rt.asarray(a, device="numpy") for a in inputs]))
    reduction = next(u.src[-1].arg[0] for u in kernel.nodes if u.op is ops.REDUCE)
    made = parse_schedule(schedule.replace("K=", f"{reduction}="))
    return linearize(apply_schedule(kernel, made, cores), target(*cores))


def check(
    f: Expression, inputs: Sequence[Values], schedule: str, *cores: TensorCore, rtol: float = 0.0
) -> Program:
    right = np.asarray(f(*[rt.asarray(a, device="numpy") for a in inputs]))
    made = program(f, inputs, schedule, *cores)
    assert any(u.op is ops.WMMA for u in made.uops)
    meets = any(u.op is ops.BARRIER for u in made.uops)
    for order in ("forward", "reverse", 1) if meets else (2,):
        out = np.full(made.arguments[0].shape, 77).astype(right.dtype)
        Interpreter(made.uops, cores)([out, *map(np.ascontiguousarray, inputs)], {}, order)
        got, want = (np.asarray(x, np.float64).reshape(right.shape) for x in (out, right))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=f"{order}: {schedule}")
    return made


def flipped(x: rt.Array, flip: bool) -> rt.Array:
    return rt.permute_dims(x, (1, 0)) if flip else x


def product(core: TensorCore, flip_a: bool = False, flip_b: bool = False) -> Expression:
    """Return a @ b with the dtype that a core accumulates in."""
    out = rt.int32 if core.dtype_out == "int32" else rt.float32
    return lambda a, b: rt.matmul(
        rt.astype(flipped(a, flip_a), out), rt.astype(flipped(b, flip_b), out)
    )


def splits(core: TensorCore, rows: str = "r0o", columns: str = "r1o", terms: str = "ko") -> str:
    """Return a schedule whose innermost digits the instruction covers."""
    n, m, k = core.dims
    where = ",".join(x if size > 1 else "-" for x, size in (("m", m), ("n", n), ("k", k)))
    digits = (f"{x}/{size}" if size > 1 else "" for x, size in (("m", m), ("n", n), ("k", k)))
    axes = (",".join(filter(None, each)) for each in zip((rows, columns, terms), digits, strict=True))
    return "r0={}; r1={}; K={}; tc={}@{}; ".format(*axes, core.name, where)


# -- every family ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORES)
def test_whole_and_padded_shapes(name: str) -> None:
    core = CORES[name]
    n, m, k = core.dims
    for rows, columns, terms in ((m + 3, n + 5, k + 7), (m, n, k)):
        inputs = [small((rows, terms), core.dtype_in), small((terms, columns), core.dtype_in)]
        check(product(core), inputs, splits(core) + "order=r0o,r1o,ko", core)


@pytest.mark.parametrize("name", [next(iter(f())).name for f in FAMILIES.values()])
@pytest.mark.parametrize(("flip_a", "flip_b"), list(itertools.product((False, True), repeat=2)))
def test_operand_layouts(name: str, flip_a: bool, flip_b: bool) -> None:
    core = CORES[name]
    n, m, k = core.dims
    a, b = small((m + 3, k), core.dtype_in), small((k, n), core.dtype_in)
    inputs = [a.T.copy() if flip_a else a, b.T.copy() if flip_b else b]
    made = check(product(core, flip_a, flip_b), inputs, splits(core) + "order=r0o,r1o,ko", core)
    if (flip_a, flip_b) == (False, True) and name.startswith("mma"):  # pairs of terms lie together
        loads = [u for u in made.uops if u.op is ops.LOAD and u.src[0].op is ops.PARAM]
        assert {u.dtype.lanes for u in loads} == {2} and {u.arg for u in loads} == {2}


# -- what stands around the instruction --------------------------------------------------------------------

TILES = splits(MMA, "r0g:g,r0b/2:b,r0u/2:u", "r1g:g,r1u/2:u") + "order=ko,r0u,r1u"


def test_several_instructions_a_warp_carry_their_sums_across_the_loop() -> None:
    made = check(product(MMA), [small((40, 34), "float16"), small((34, 20), "float16")], TILES, MMA)
    assert made.launch.block == (32, 2, 1)
    (accumulator,) = (u for u in made.uops if u.op is ops.LOCAL)
    assert accumulator.arg[1:] == ((2, 2), "register") and accumulator.dtype is dtypes.float32.vector(4)
    loops: list[str] = []
    for u in made.uops:
        if u.op is ops.RANGE:
            loops.append(u.arg[0])
        elif u.op is ops.END:
            loops.pop()
        elif u.op is ops.WMMA:
            assert loops == ["ko", "r0u", "r1u"]


def gelu(x: rt.Array) -> rt.Array:
    return x * 0.5 * (1 + rt.tanh(x * 0.797 * (1 + 0.0447 * x * x)))


def test_bias_and_gelu_on_the_result_fragment() -> None:
    inputs = [small((40, 50), "float16"), small((50, 30), "float16"), RNG.standard_normal(30).astype("f4")]
    made = check(lambda a, b, c: gelu(product(MMA)(a, b) * 0.1 + c), inputs, TILES, MMA, rtol=1e-6)
    stored = [u.src[2].dtype for u in made.uops if u.op is ops.STORE and u.src[0].op is ops.PARAM]
    assert set(stored) <= {dtypes.float32, dtypes.float32.vector(2)}


@pytest.mark.parametrize(
    "f",
    [
        lambda a: rt.maximum(a, 0), lambda a: a + 1, lambda a: 1 - a * 2, lambda a: rt.where(a > 0, a, 2),
    ],
)  # fmt: skip
def test_prologues_are_zero_where_the_operands_are_padded(f: Callable[[rt.Array], rt.Array]) -> None:
    inputs = [small((20, 21), "float16"), small((21, 11), "float16")]
    check(lambda a, b: product(MMA)(f(a), f(b)), inputs, TILES, MMA, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float8_e5m2"])
def test_a_cast_that_keeps_every_value_is_done_on_the_fragment(dtype: str) -> None:
    a = small((20, 21), "int8").astype(dtypes.to_numpy(dtypes.as_dtype(dtype)))
    check(product(MMA), [a, small((21, 11), "float16")], TILES, MMA)


def test_results_in_a_narrower_dtype() -> None:
    inputs = [small((20, 21), "float16"), small((21, 11), "float16")]
    check(lambda a, b: rt.matmul(a, b), inputs, TILES, MMA)


@pytest.mark.parametrize("stages", [
    "stage=in0@ko", "stage=in1@ko", "stage=in0@ko; stage=in1@ko", "stage=in0@ko[k,r0b,r0u,m]; stage=in1@top",
    "stage=in1@ko[r1u,n,k]:register",
])  # fmt: skip
def test_fragments_come_from_stages(stages: str) -> None:
    inputs = [small((40, 34), "float16"), small((34, 20), "float16")]
    if "top" in stages:
        inputs[1] = inputs[1][:, :14]
    made = check(product(MMA), inputs, f"{TILES}; {stages}", MMA)
    assert any(u.op is ops.BARRIER for u in made.uops) is (":register" not in stages)


def test_warps_that_share_the_reduction() -> None:
    schedule = splits(MMA, "r0g:g", "r1g:g", "kb/2:b,ko") + "order=ko"
    check(product(MMA), [small((20, 70), "float16"), small((70, 11), "float16")], schedule, MMA)


def test_batches() -> None:
    text = f"r0=r0g:g; r1=r1o,m/16; r2=r2o,n/8; K=ko,k/16; tc={MMA.name}@m,n,k; order=r1o,r2o,ko"
    check(product(MMA), [small((3, 20, 21), "float16"), small((3, 21, 11), "float16")], text, MMA)


def test_a_convolution() -> None:
    def f(x: rt.Array, w: rt.Array) -> rt.Array:
        return rt.conv2d(rt.astype(x, rt.float32), rt.astype(w, rt.float32), padding=1)

    inputs = [small((1, 17, 4, 20), "float16"), small((10, 17, 3, 3), "float16")]
    (kernel,) = rt.lower(f(*[rt.asarray(a, device="numpy") for a in inputs]))
    channels = next(u for u in kernel.nodes if u.op is ops.REDUCE).src[1].arg[0]
    text = f"r1=co,n/8; r3=xo,m/16; {channels}=ko,k/16; tc={MMA.name}@m,n,k; order=r2,co,xo"
    check(f, inputs, text, MMA)


# -- dot products of a CPU ---------------------------------------------------------------------------------

DOTS = {
    ("int8", "int8"): dot_product("ss", 8, 4, ("int8", "int8"), "int32"),
    ("int8", "uint8"): dot_product("su", 8, 4, ("int8", "uint8"), "int32"),
    ("uint8", "int8"): dot_product("us", 8, 4, ("uint8", "int8"), "int32"),
    ("int16", "int16"): dot_product("words", 8, 2, ("int16", "int16"), "int32"),
}


@pytest.mark.parametrize("core", DOTS.values(), ids=lambda c: c.name)
@pytest.mark.parametrize("a", ["int8", "uint8"])
@pytest.mark.parametrize("b", ["int8", "uint8"])
def test_bytes_of_either_sign(core: TensorCore, a: str, b: str) -> None:
    inputs = [
        RNG.integers(np.iinfo(d).min, np.iinfo(d).max, shape, endpoint=True).astype(d)
        for d, shape in ((a, (7, 13)), (b, (13, 21)))
    ]
    schedule = splits(core, "r0o,r0u/3:u") + "order=r1o,r0o,ko,r0u; stage=in1@r1o[ko,n,k]"
    differs = [x != y for x, y in ((a, core.dtype_in), (b, core.dtype_b or core.dtype_in))]
    if core.dtype_in != "int16" and all(differs):
        with pytest.raises(ScheduleError, match="both operands have the other sign than"):
            program(product(core), inputs, schedule, core)
        return
    made = check(product(core), inputs, schedule, core)
    # The correction is a sum of its own, outside of the loop over rows.
    assert sum(u.op is ops.WMMA for u in made.uops) == (2 if any(differs) and core.dtype_in != "int16" else 1)
    panel = [u for u in made.uops if u.op is ops.LOAD and u.src[0].op is ops.LOCAL and u.dtype.lanes > 8]
    assert panel, "a packed panel is loaded as whole vectors"


# -- errors ------------------------------------------------------------------------------------------------

INPUTS = [small((32, 32), "float16"), small((32, 32), "float16")]


@pytest.mark.parametrize(("schedule", "message"), [
    ("r0=a,m/8; r1=b,n/8; K=c,k/16; tc={}@m,n,k", "m has size 8, the rows of .* are 16"),
    ("r0=a,m/16; r1=b,n/8; K=c,k/16; tc={}@m,n,-", "has reduction of size 16; name an axis"),
    ("r0=a,m/16; r1=b,n/8; K=c,k/16; tc={}@m,n,q", "there is no axis q for the reduction"),
    ("r0=a,m/16:u; r1=b,n/8; K=c,k/16; tc={}@m,n,k", "m is of kind unroll; leave its kind out"),
    ("r0=a,m/16,q/8; r1=b,n/8; K=c,k/16; tc={}@m,q,k", "one operand of the product must vary with m alone"),
    ("r0=a,m/16; r1=b,n/8; K=c,k/16; tc={}@k,n,m", "the rows"),
    ("r0=lane,m/16; r1=b,n/8; K=c,k/16; tc={}@m,n,k", "an axis is called lane"),
    ("r0=a,m/16; r1=b,v/2:v,n/8; K=c,k/16; tc={}@m,n,k", "a vector axis meets the fragments"),
    ("r0=a,m/16; r1=b,n/8; K=c,w/2:w,k/16; tc={}@m,n,k", "warp"),
])  # fmt: skip
def test_what_the_instruction_cannot_do(schedule: str, message: str) -> None:
    schedule = schedule.format(MMA.name)
    if "@k,n,m" in schedule:
        message = "no sums over m"
    with pytest.raises(ScheduleError, match=message):
        program(product(MMA), INPUTS, schedule, MMA)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=MMA.name):
        program(product(MMA), INPUTS, splits(MMA).replace("tc=mma", "tc=mna"), MMA)


def test_operands_whose_values_the_instruction_does_not_hold() -> None:
    wide = [small((32, 32), "float32"), small((32, 32), "float16")]
    with pytest.raises(ScheduleError, match=r"takes float16, which does not hold every value of .* float32"):
        program(product(MMA), wide, splits(MMA), MMA)


def test_other_sums() -> None:
    with pytest.raises(ScheduleError, match=r"the sum is of float32, .* gives int32"):
        core = CORES["mma_m16n8k32_int8_int32"]
        program(product(MMA), INPUTS, splits(core), core)
    with pytest.raises(ScheduleError, match="no product of two operands"):
        program(lambda a, b: rt.sum(rt.astype(a[:, None, :] + b[None, :, :], rt.float32), axis=2), INPUTS,
                splits(MMA), MMA)  # fmt: skip


def test_a_layout_that_is_no_sum_of_bits() -> None:
    odd = MMA._replace(c_layout=(MMA.c_layout[1], MMA.c_layout[0], *MMA.c_layout[2:]))
    with pytest.raises(ScheduleError, match="is no sum over the bits"):
        program(product(odd), INPUTS, splits(odd), odd)
    three = MMA._replace(a_layout=by_lane(32, 3, lambda lane, e: (lane % 16, e)))
    with pytest.raises(ScheduleError, match="both must be powers of two"):
        program(product(three), INPUTS, splits(three), three)


def test_which_dtypes_hold_which() -> None:
    names = [(a.name, b.name) for a in dtypes.ARRAY_DTYPES for b in dtypes.ARRAY_DTYPES if holds(a, b)]
    assert ("float16", "int8") in names and ("bfloat16", "uint8") in names and ("int16", "uint8") in names
    assert ("float16", "float8_e5m2") in names and ("bfloat16", "float8_e4m3") in names
    for wrong in (("float16", "bfloat16"), ("bfloat16", "int16"), ("int8", "uint8"), ("uint16", "int8")):
        assert wrong not in names


# -- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["m,n,k", "-,n,k", "m,-,-"])
def test_the_clause_parses_back(where: str) -> None:
    schedule = parse_schedule(f"r0=a,m/16; tc=mma_16@{where}")
    assert parse_schedule(str(schedule)) == schedule and str(schedule).endswith(f"tc=mma_16@{where}")
    assert schedule.tensor is not None and schedule.tensor.axes == tuple(where.replace("-,", "").split(","))[
        : where.count(",") + 1 - where.count("-")]  # fmt: skip


# -- random ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_and_schedules(seed: int) -> None:
    rng = random.Random(seed)
    core = CORES[rng.choice(sorted(CORES))]
    n, m, k = core.dims
    rows, columns, terms = (rng.randint(1, 2 * size) + size // 2 for size in (m, n, k))
    flip_a, flip_b = rng.random() < 0.5, rng.random() < 0.5
    shapes = ((terms, rows) if flip_a else (rows, terms), (columns, terms) if flip_b else (terms, columns))
    inputs = [small(s, core.dtype_in) for s in shapes]
    upcast = rng.choice(("", ",r0u/2:u")), rng.choice(("", ",r1u/2:u"))
    grid = rng.choice(("r0o", "r0o:g", "r0o:g,r0b/2:b")), rng.choice(("r1o", "r1o:g", "r1o:b"))
    text = splits(core, grid[0] + upcast[0], grid[1] + upcast[1]) + "order=r0o,r1o,ko,r0u,r1u".replace(
        ",r0u", ",r0u" if upcast[0] else ""
    ).replace(",r1u", ",r1u" if upcast[1] else "")
    for buffer in ("in0", "in1"):
        if rng.random() < 0.5:
            text += f"; stage={buffer}@{rng.choice(('ko', 'ko', 'top'))}"
    try:
        check(product(core, flip_a, flip_b), inputs, text, core)
    except ScheduleError as error:
        assert "bytes in local memory" in str(error) or "'ko'" in str(error), text
