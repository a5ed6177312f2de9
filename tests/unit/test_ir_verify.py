"""verify.py: one ill-formed program for every rule, and what a failure says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retarget.errors import VerifyError
from retarget.ir import dtypes, index, ops
from retarget.ir.dtypes import DType
from retarget.ir.ops import Op
from retarget.ir.text import dump, parse, parse_program
from retarget.ir.uop import UOp, const
from retarget.ir.verify import verify, verify_program

F32, I32, I64, BOOL, VOID = dtypes.float32, dtypes.int32, dtypes.int64, dtypes.bool_, dtypes.void
INDEX = dtypes.index
F32X4, I32X4, BOOLX4 = F32.vector(4), I32.vector(4), BOOL.vector(4)


@pytest.fixture(autouse=True)
def _reproducers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_REPRODUCER_DIR", str(tmp_path))


# -- graphs ------------------------------------------------------------------------------------------------


def graph(shape: tuple[Any, ...] = (2, 1, 3), dtype: DType = F32) -> UOp:
    return UOp(ops.BUFFER, dtype, (), (0, shape, "numpy"))


def on(op: Op, arg: Any, *src: UOp) -> UOp:
    src = src or (graph(),)
    return UOp(op, src[0].dtype, src, arg)


I = index.irange(8, "r0")  # noqa: E741
J = index.irange(16, "r1")
P = UOp(ops.PARAM, F32, (), ("x", (8, 16), False))
OUT = UOp(ops.PARAM, F32, (), ("out", (8, 16), True))
ONE = const(1.0, F32)
LOAD = UOp(ops.LOAD, F32, (P, index.TRUE, I, J))
N = UOp(ops.VAR, INDEX, (), ("n", 1, 9))

BAD_GRAPHS = {
    "does not stand at the graph level": on(ops.REDUCE, ops.ADD, graph(), I),
    "operand 1 has shape (4,), expected (2, 1, 3)": on(ops.ADD, None, graph(), graph((4,))),
    "operand 2 has shape (4,), expected (2,) or ()": UOp(
        ops.WHERE, F32, (graph((), BOOL), graph((2,)), graph((4,)))),
    "operand 1 is int32, expected float32": on(ops.ADD, None, graph(), graph(dtype=I32)),
    "is not (number, shape, device)": UOp(ops.BUFFER, F32, (), (0, (2, -1), "numpy")),
    "its length is -1": UOp(ops.IOTA, I64, (), -1),
    "axes (0, 3) are not distinct axes of shape (2, 1, 3)": on(ops.REDUCE_AXIS, (ops.ADD, (0, 3))),
    "axes (1, 1) are not distinct axes of shape (2, 1, 3)": on(ops.REDUCE_AXIS, (ops.ADD, (1, 1))),
    "folds with SUB": on(ops.REDUCE_AXIS, (ops.SUB, (0,))),
    "dtype float32 is not one of bool, int, uint": on(ops.REDUCE_AXIS, (ops.XOR, (0,))),
    "index 0 has dtype float32, expected an integer": on(ops.GATHER, None, graph(), graph((5,))),
    "index 1 has shape (6,), the first one (5,)": on(
        ops.GATHER, None, graph(), graph((5,), I32), graph((6,), I32)),
    "has 4 indices for shape (2, 1, 3)": on(ops.GATHER, None, graph(), *[graph((5,), I32)] * 4),
    "its device is 3": on(ops.COPY, 3),
    "makes 5 elements, shape (5,), of 6": on(ops.RESHAPE, (5,)),
    "its shape is (-6,)": on(ops.RESHAPE, (-6,)),
    "only axes of length 1 repeat": on(ops.EXPAND, (4, 1, 3)),
    "expands shape (2, 1, 3) to (2, 3)": on(ops.EXPAND, (2, 3)),
    "are no permutation": on(ops.PERMUTE, (0, 1, 1)),
    "axes (0, 1) are no permutation": on(ops.PERMUTE, (0, 1)),
    "which is not all non-negative": on(ops.PAD, ((0, 0), (-1, 0), (0, 0))),
    "is not inside (2, 1, 3)": on(ops.SHRINK, ((0, 2), (0, 1), (0, 4))),
    "the window ((1, 0), (0, 1), (0, 3)) is not inside": on(ops.SHRINK, ((1, 0), (0, 1), (0, 3))),
    "axes (3,) are not distinct axes": on(ops.FLIP, (3,)),
    "vectors stand in linear programs only": on(ops.NEG, None, graph(dtype=F32X4)),
    "value 1 does not suit float32": UOp(ops.CONST, F32, (), 1),
    "value 300 is out of range of uint8": UOp(ops.CONST, dtypes.uint8, (), 300),
    "is not (name, lowest, highest)": UOp(ops.VAR, I64, (), ("n", 3, 2)),
    "has 1 operands; it takes x y": UOp(ops.ADD, F32, (graph(),)),
    "size of float32 differs from that of int8": UOp(ops.BITCAST, dtypes.int8, (graph(),)),
    "gives float32, expected bool": UOp(ops.CMPLT, F32, (graph(), graph())),
    "condition is float32": on(ops.WHERE, None, graph(), graph(), graph()),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_GRAPHS)
def test_bad_graph(message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(BAD_GRAPHS[message], "graph", "test")


def test_good_graph() -> None:
    x = graph()
    verify([on(ops.ADD, None, x, ONE), on(ops.SUB, None, ONE, x), on(ops.EXPAND, (2, 5, 3), x)], "graph")


# -- kernels -----------------------------------------------------------------------------------------------


def affine(constant: int, coefficients: tuple[int, ...], *atoms: UOp) -> UOp:
    return UOp(ops.AFFINE, INDEX, atoms, (constant, coefficients))


def load(*src: UOp) -> UOp:
    return UOp(ops.LOAD, F32, src)


def store(*src: UOp) -> UOp:
    return UOp(ops.STORE, VOID, src)


ONE_INT = const(1, I32)
BAD_KERNELS = {
    "RESHAPE does not stand at the kernel level": on(ops.RESHAPE, (1, 1), ONE),
    "the name 'r0' is also that of another RANGE": UOp(
        ops.ADD, F32, (load(P, index.TRUE, I, J), load(P, index.TRUE, index.irange(4, "r0"), J))),
    "the name 'x' is also that of another PARAM": UOp(
        ops.ADD, F32, (LOAD, load(UOp(ops.PARAM, F32, (), ("x", (8,), False)), index.TRUE, I))),
    "has dtype int32, expected index": UOp(ops.RANGE, I32, (), ("r0", 4, "loop")),
    "is not (name, size or None, axis kind)": UOp(ops.RANGE, INDEX, (), ("r0", 4, None)),
    "either in its argument or its operand": UOp(ops.RANGE, INDEX, (N,), ("r0", 4, "loop")),
    "its size is -4": UOp(ops.RANGE, INDEX, (), ("r0", -4, "loop")),
    "VAR has dtype int32, expected index": UOp(ops.VAR, I32, (), ("n", 1, 2)),
    "is not (name, shape, ...)": UOp(ops.PARAM, F32, (), ("x", (-1,), False)),
    "the last part of its argument, 'rw', is no bool": UOp(ops.PARAM, F32, (), ("x", (1,), "rw")),
    "the last part of its argument, True, is no str": UOp(ops.LOCAL, F32, (), ("x", (1,), True)),
    "accesses CONST, expected PARAM or LOCAL": load(ONE, index.TRUE),
    "has 1 indices for a buffer of shape (8, 16)": load(P, index.TRUE, I),
    "its mask is int32, expected bool": load(P, ONE_INT, I, J),
    "index 1 is int32, expected index": load(P, index.TRUE, I, ONE_INT),
    "loads int32 from a buffer of float32": UOp(ops.LOAD, I32, (P, index.TRUE, I, J)),
    "STORE has no mask and value": store(OUT, index.TRUE),
    "STORE has 1 indices for a buffer": store(OUT, index.TRUE, ONE, I),
    "stores to x, which is read only": store(P, index.TRUE, ONE, I, J),
    "stores int32 to a buffer of float32": store(OUT, index.TRUE, ONE_INT, I, J),
    "a store has dtype float32": UOp(ops.STORE, F32, (OUT, index.TRUE, ONE, I, J)),
    "does not fold over one or more distinct ranges": UOp(ops.REDUCE, F32, (LOAD, J, J), ops.ADD),
    "REDUCE does not fold over": UOp(ops.REDUCE, F32, (LOAD,), ops.ADD),
    "REDUCE folds with EXP": UOp(ops.REDUCE, F32, (LOAD, J), ops.EXP),
    "REDUCE dtype float32 is not one of": UOp(ops.REDUCE, F32, (LOAD, J), ops.AND),
    "is float32 of an operand of int32": UOp(ops.REDUCE, F32, (ONE_INT, J), ops.ADD),
    "a coefficient is 0": affine(0, (0, 1), I, J),
    "one atom alone stands for itself": affine(0, (1,), I),
    "operand 0 is a sum, which has to be merged": affine(1, (2,), affine(1, (2,), I)),
    "operands 0 and 1 are not in canonical order": affine(0, (1, 1), J, I),
    "IMOD divides by -3": UOp(ops.IMOD, INDEX, (I,), -3),
    "AFFINE operand 0 is int32, expected index": affine(0, (2,), ONE_INT),
    "GE0 operand 0 is int32, expected index": UOp(ops.GE0, BOOL, (ONE_INT,)),
    "index arithmetic has dtype int32": UOp(ops.IDIV, I32, (I,), 4),
    "its operand is float32, expected an integer": UOp(ops.IVALUE, INDEX, (LOAD,), (0, 1)),
    "has fewer than two masks": UOp(ops.ALL, BOOL, (index.less_than(I, 3),)),
    "operand 1 is ALL bool, expected a single mask": UOp(
        ops.ALL, BOOL, (index.less_than(I, 3), index.in_bounds(index.ishift(J, -2), 5))),
    "mask has dtype int32": UOp(ops.GE0, I32, (index.ishift(I, -3),)),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_KERNELS)
def test_bad_kernel(message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(BAD_KERNELS[message], "kernel", "test")


def test_good_kernel() -> None:
    total = UOp(ops.REDUCE, F32, (load(P, index.less_than(J, 9), I, J), J), ops.ADD)
    row = UOp(ops.PARAM, F32, (), ("row", (8,), True))
    verify((store(row, index.TRUE, total, I), store(OUT, index.TRUE, LOAD, I, J)), "kernel")


# -- linear programs ---------------------------------------------------------------------------------------

X = UOp(ops.PARAM, F32, (), ("x", (64,), True))
ZERO = const(0, I32)
LOOP = UOp(ops.RANGE, I32, (), ("i", 4, "loop"))
INNER = UOp(ops.RANGE, I32, (), ("j", 4, "loop"))
TILE = UOp(ops.LOCAL, F32, (), ("tile", (4,), "local"))
WIDE = UOp(ops.LOCAL, F32X4, (), ("wide", (4,), "register"))
VALUE = UOp(ops.LOAD, F32, (X, ZERO))
WIDE_VALUE = UOp(ops.LOAD, F32X4, (X, ZERO))
LANES = UOp(ops.BROADCAST, I32X4, (ZERO,))
TRUE = index.TRUE
TRUES = UOp(ops.BROADCAST, BOOLX4, (TRUE,))
BRANCH = UOp(ops.IF, VOID, (TRUE,))


def end(u: UOp) -> UOp:
    return UOp(ops.END, VOID, (u,))


def at(i: UOp, value: UOp, *gate: UOp) -> UOp:
    return UOp(ops.STORE, VOID, (X, i, value, *gate))


def access(dtype: DType, *src: UOp, arg: Any = None) -> UOp:
    return UOp(ops.LOAD, dtype, src, arg)


HALF_LOOP = UOp(ops.RANGE, dtypes.int8, (), ("i", 4, "loop"))
BAD_PROGRAMS: dict[str, list[UOp]] = {
    "does not stand in a linear program": [X, UOp(ops.CONTIGUOUS, F32, (X,))],
    "ADD has 1 operands": [X, ZERO, VALUE, UOp(ops.ADD, F32, (VALUE,))],
    "LOAD has 4 operands": [X, ZERO, TRUE, access(F32, X, ZERO, TRUE, TRUE)],
    "operand 1 is int32, expected float32": [X, ZERO, VALUE, UOp(ops.ADD, F32, (VALUE, ZERO))],
    "operand 1, <CONST int32 0>, does not stand before it": [X, VALUE],
    "stands in a block that is closed": [X, ZERO, LOOP, VALUE, end(LOOP), at(ZERO, VALUE)],
    "operand 1, <RANGE int32 i>, stands in a block that is closed": [
        X, ZERO, VALUE, LOOP, end(LOOP), at(LOOP, VALUE)],
    "does not close the innermost open block, of <RANGE int32 j>": [X, LOOP, INNER, end(LOOP)],
    "the program ends inside the block of <RANGE int32 i>": [X, LOOP],
    "opens its block inside itself": [X, LOOP, LOOP],
    "closes RANGE, expected IF": [X, LOOP, UOp(ops.ENDIF, VOID, (LOOP,))],
    "closes IF, expected RANGE": [TRUE, BRANCH, end(BRANCH)],
    "PARAM is declared inside a block": [LOOP, X],
    "the name 'x' is also that of another PARAM": [X, UOp(ops.PARAM, F32, (), ("x", (4,), False))],
    "the name 'tile' is also that of another LOCAL": [
        TILE, UOp(ops.LOCAL, F32, (), ("tile", (9,), "local"))],
    "accesses LOAD, expected PARAM or LOCAL": [X, ZERO, VALUE, access(F32, VALUE, ZERO)],
    "stores to x, which is read only": [
        p := UOp(ops.PARAM, F32, (), ("x", (4,), False)), ZERO, one := const(1.0, F32),
        UOp(ops.STORE, VOID, (p, ZERO, one))],
    "stores int32 to a buffer of float32": [X, ZERO, at(ZERO, ZERO)],
    "loads int32 from a buffer of float32": [X, ZERO, access(I32, X, ZERO)],
    "its index is float32, expected int32 or int64": [X, ONE, access(F32, X, ONE)],
    "its index is int8, expected int32 or int64": [X, c8 := const(1, dtypes.int8), access(F32, X, c8)],
    "accesses 1 lanes at 4 indices": [X, ZERO, LANES, access(F32, X, LANES)],
    "accesses float32 in a buffer of float32x4": [WIDE, ZERO, access(F32, WIDE, ZERO)],
    "accesses float32x4 in a buffer of float32x4 at an index of int32x4": [
        WIDE, ZERO, LANES, access(F32X4, WIDE, LANES)],
    "its gate is int32, expected bool with 1 or 1 lanes": [X, ZERO, access(F32, X, ZERO, ZERO)],
    "its gate is boolx4, expected bool with 1 or 1 lanes": [
        X, ZERO, TRUE, TRUES, access(F32, X, ZERO, TRUES)],
    "its alignment is 0": [X, ZERO, access(F32, X, ZERO, arg=0)],
    "has dtype int8, expected int32 or int64": [HALF_LOOP, end(HALF_LOOP)],
    "its size is int64, expected int32": [
        n := UOp(ops.VAR, I64, (), ("n", 1, 9)), UOp(ops.RANGE, I32, (n,), ("i", None, "loop"))],
    "SPECIAL has dtype float32": [UOp(ops.SPECIAL, F32, (), ("blockIdx.x", 4))],
    "is not (name, size)": [UOp(ops.SPECIAL, I32, (), ("blockIdx.x",))],
    "VAR has dtype float32": [UOp(ops.VAR, F32, (), ("n", 1, 9))],
    "has dtype index; the linearizer picks": [UOp(ops.LOCAL, INDEX, (), ("tile", (4,), "local"))],
    "its condition is int32, expected bool": [ZERO, UOp(ops.IF, VOID, (ZERO,))],
    "has dtype int32, expected void": [UOp(ops.BARRIER, I32)],
    "a constant is a scalar": [UOp(ops.CONST, F32X4, (), 1.0)],
    "broadcasts float32x4 to float32x4": [X, ZERO, WIDE_VALUE, UOp(ops.BROADCAST, F32X4, (WIDE_VALUE,))],
    "builds float32x4 from 1 operands": [X, ZERO, VALUE, UOp(ops.VECTORIZE, F32X4, (VALUE,))],
    "lane out of range": [X, ZERO, WIDE_VALUE, UOp(ops.GEP, F32, (WIDE_VALUE,), (4,))],
    "FOLD folds with SUB": [X, ZERO, WIDE_VALUE, UOp(ops.FOLD, F32, (WIDE_VALUE,), ops.SUB)],
    "folds float32x4 to int32": [X, ZERO, WIDE_VALUE, UOp(ops.FOLD, I32, (WIDE_VALUE,), ops.ADD)],
    "its bit mask is None": [X, ZERO, VALUE, UOp(ops.SHUFFLE, F32, (VALUE,))],
    "copies from LOCAL to PARAM": [X, TILE, ZERO, UOp(ops.STAGE_COPY, VOID, (X, ZERO, TILE, ZERO), 4)],
    "its number of elements is 0": [X, TILE, ZERO, UOp(ops.STAGE_COPY, VOID, (TILE, ZERO, X, ZERO), 0)],
    "copies float32 to int8": [
        X, t8 := UOp(ops.LOCAL, dtypes.int8, (), ("t", (4,), "local")), ZERO,
        UOp(ops.STAGE_COPY, VOID, (t8, ZERO, X, ZERO), 4)],
    "its number of groups is -1": [UOp(ops.STAGE_WAIT, VOID, (), -1)],
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_PROGRAMS)
def test_bad_program(message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify_program(BAD_PROGRAMS[message], "test")


def test_good_program() -> None:
    again = [LOOP, VALUE, at(LOOP, VALUE), end(LOOP)]  # uops may stand again, loops too
    verify_program([
        X, WIDE, ZERO, TRUE, LANES, TRUES, VALUE, WIDE_VALUE,
        at(ZERO, VALUE, TRUE), at(ZERO, WIDE_VALUE, TRUES),
        at(LANES, WIDE_VALUE, TRUES), at(LANES, WIDE_VALUE, TRUE), access(F32X4, X, LANES, TRUES),
        access(F32X4, WIDE, ZERO), *again, *again, LOOP, TILE, INNER, BRANCH, access(F32, TILE, INNER),
        UOp(ops.ENDIF, VOID, (BRANCH,)), end(INNER), end(LOOP), UOp(ops.BARRIER, VOID),
    ])  # fmt: skip


def test_a_name_is_free_again_when_its_block_is_closed() -> None:
    other = UOp(ops.LOCAL, F32, (), ("tile", (9,), "local"))
    verify_program([LOOP, TILE, end(LOOP), LOOP, other, end(LOOP)])


# -- what a failure says -----------------------------------------------------------------------------------


def reproducer(error: VerifyError) -> str:
    found = re.search(r"reproducer: (.*)", str(error))
    assert found is not None
    return Path(found[1]).read_text(encoding="utf-8")


def test_a_failure_names_the_pass_and_marks_the_line() -> None:
    program = [X, ZERO, LOOP, VALUE, at(LOOP, ZERO), end(LOOP)]
    with pytest.raises(VerifyError) as caught:
        verify_program(program, "linearize sum_64")
    text = str(caught.value)
    assert text.startswith("linearize sum_64: line 5: STORE stores int32 to a buffer of float32\n")
    assert "\n  ->   %4 = STORE void %0 %2 %1\n" in text
    assert parse_program(reproducer(caught.value)) == program


def test_the_reproducer_of_a_graph_parses() -> None:
    x = graph()
    bad = on(ops.ADD, None, x, on(ops.SHRINK, ((0, 2), (0, 1), (0, 4)), x))
    with pytest.raises(VerifyError, match=r"fusion: line 2: SHRINK the window") as caught:
        verify(bad, "graph", "fusion")
    assert "  -> %1 = SHRINK" in str(caught.value)
    assert parse(reproducer(caught.value)) is bad
    assert dump(bad) in reproducer(caught.value)


def test_a_long_program_is_shown_in_part() -> None:
    values = [const(n, I32) for n in range(500)]
    with pytest.raises(VerifyError) as caught:
        verify_program([*values[:250], UOp(ops.NEG, F32, (values[0],)), *values[250:]])
    lines = str(caught.value).split("\n")
    assert len(lines) == 45
    assert lines[1] == "     ... 230 lines"
    assert lines[-2] == "     ... 230 lines"
    assert len(parse_program(reproducer(caught.value))) == 501


def test_a_wide_line_is_shown_in_part() -> None:
    many = UOp(ops.VECTORIZE, I32X4, tuple([ZERO] * 99))
    with pytest.raises(VerifyError) as caught:
        verify_program([ZERO, many])
    assert max(len(line) for line in str(caught.value).split("\n")[1:-1]) <= 165


def test_a_folder_that_cannot_be_written_is_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_REPRODUCER_DIR", str(tmp_path / "absent"))
    with pytest.raises(VerifyError, match=r"\(no reproducer was written: .*absent"):
        verify_program([VALUE])
