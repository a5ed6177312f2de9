"""text.py: every op prints and parses to the same node, at every level it stands at."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retarget.errors import InternalError, ParseError
from retarget.ir import dtypes, index, ops
from retarget.ir.dtypes import ARRAY_DTYPES, DType
from retarget.ir.ops import OPS, Op
from retarget.ir.text import dump, dump_program, expr, parse, parse_program
from retarget.ir.uop import UOp, const, toposort
from retarget.ir.verify import verify, verify_program

INTEGERS = tuple(d for d in ARRAY_DTYPES if d.is_int)
NAMES = st.text(min_size=1, max_size=6)
Draw = Any

# -- a well-typed node of every op -------------------------------------------------------------------------


def leaf(draw: Draw, dtype: DType, level: str) -> UOp:
    """An operand of `dtype`: a constant or something that is read."""
    if draw(st.booleans()) and dtype.lanes == 1:
        if dtype.kind == "bool":
            return const(draw(st.booleans()), dtype)
        if dtype.is_int:
            return const(draw(st.integers(int(dtype.min), int(dtype.max))), dtype)
        return const(draw(st.floats()), dtype)
    if level == "g":
        return UOp(ops.BUFFER, dtype, (), (draw(st.integers(0, 9)), (2, 3), "numpy"))
    buffer = UOp(ops.PARAM, dtype.scalar, (), ("x" + str(dtype.scalar), (8, 16), False))
    if level == "l":
        return UOp(ops.LOAD, dtype, (buffer, const(draw(st.integers(0, 99)), dtypes.int32)))
    i, j = index.irange(8, "r0"), index.irange(16, "r1")
    mask = draw(st.sampled_from([index.TRUE, index.less_than(i, 5)]))
    return UOp(ops.LOAD, dtype, (buffer, mask, i, index.combine(((j, 1),), 0)))


def some_index(draw: Draw) -> UOp:
    """An index expression that is neither constant nor known to be within bounds."""
    i, j = index.irange(8, "r0"), index.irange(16, "r1")
    k, m, c = draw(st.integers(1, 20)), draw(st.integers(-9, -1)), draw(st.integers(-5, 5))
    return index.divmod_(index.combine(((i, k), (j, m)), c), 7)[draw(st.integers(0, 1))]


def elementwise(draw: Draw, op: Op, level: str) -> UOp:
    """A node of an elementwise op over operands of any dtypes that its rule takes."""
    lanes = draw(st.sampled_from([1, 4])) if level == "l" else 1
    order = list(ARRAY_DTYPES)
    random.Random(draw(st.integers(0, 99))).shuffle(order)
    for scalar in order:
        dtype = scalar.vector(lanes)
        if op is ops.CAST:
            src = (leaf(draw, draw(st.sampled_from(ARRAY_DTYPES)).vector(lanes), level),)
        elif op is ops.BITCAST:
            sizes = [d for d in ARRAY_DTYPES if d.bits == scalar.bits]
            src = (leaf(draw, draw(st.sampled_from(sizes)).vector(lanes), level),)
        elif op is ops.WHERE:
            condition = dtypes.bool_.vector(draw(st.sampled_from([1, lanes])))
            src = (leaf(draw, condition, level), leaf(draw, dtype, level), leaf(draw, dtype, level))
        else:
            src = tuple([leaf(draw, dtype, level) for _ in op.operands])
            if op in ops.COMPARISONS:
                dtype = dtypes.bool_.vector(lanes)
        if op.rule(dtype, src, None) is None:
            return UOp(op, dtype, src)
    raise AssertionError(f"no dtype suits {op}")


def graph_node(draw: Draw) -> UOp:
    return UOp(ops.BUFFER, draw(st.sampled_from(ARRAY_DTYPES)), (), (3, (2, 1, 3), draw(NAMES)))


def fold_op(draw: Draw, dtype: DType) -> Op:
    fitting = [op for op in ops.REDUCE_OPS if op.rule(dtype, (const(0, dtype),) * 2, None) is None]
    return draw(st.sampled_from(fitting))  # type: ignore[no-any-return]


def size(draw: Draw) -> int:
    return draw(st.integers(2, 9))  # type: ignore[no-any-return]


def local(dtype: DType = dtypes.float32) -> UOp:
    return UOp(ops.LOCAL, dtype, (), ("tile", (4, 0, 8), "local"))


def param(dtype: DType = dtypes.float32, writable: bool = True) -> UOp:
    return UOp(ops.PARAM, dtype, (), ("out", (4, 8), writable))


def flat(draw: Draw, lanes: int = 1) -> UOp:
    i = UOp(ops.RANGE, draw(st.sampled_from([dtypes.int32, dtypes.int64])), (), ("i", size(draw), "loop"))
    return i if lanes == 1 else UOp(ops.BROADCAST, i.dtype.vector(lanes), (i,))


def linear_load(draw: Draw) -> UOp:
    lanes = draw(st.sampled_from([1, 4]))
    i = flat(draw, draw(st.sampled_from([1, lanes])))
    gate = draw(st.sampled_from([(), (leaf(draw, dtypes.bool_, "l"),)]))
    alignment = draw(st.sampled_from([None, 1, 4]))
    return UOp(ops.LOAD, dtypes.float32.vector(lanes), (param(), i, *gate), alignment)


def linear_store(draw: Draw) -> UOp:
    lanes = draw(st.sampled_from([1, 4]))
    value = leaf(draw, dtypes.float32.vector(lanes), "l")
    i = flat(draw, draw(st.sampled_from([1, lanes])))
    gate = draw(st.sampled_from([(), (leaf(draw, dtypes.bool_, "l"),)]))
    return UOp(ops.STORE, dtypes.void, (param(), i, value, *gate))


def kernel_access(draw: Draw, op: Op) -> UOp:
    dtype = draw(st.sampled_from(ARRAY_DTYPES))
    mask = draw(st.sampled_from([index.TRUE, index.ge0(some_index(draw))]))
    idx = (some_index(draw), some_index(draw))
    if op is ops.LOAD:
        return UOp(op, dtype, (param(dtype), mask, *idx))
    return UOp(op, dtypes.void, (param(dtype), mask, leaf(draw, dtype, "k"), *idx))


def kernel_range(draw: Draw) -> UOp:
    if draw(st.booleans()):
        arg = (draw(NAMES), size(draw), draw(st.sampled_from(["loop", "vector"])))
        return UOp(ops.RANGE, dtypes.index, (), arg)
    return UOp(ops.RANGE, dtypes.index, (variable(draw, dtypes.index),), ("r7", None, "loop"))


def variable(draw: Draw, dtype: DType) -> UOp:
    return UOp(ops.VAR, dtype, (), ("n", draw(st.integers(-9, 0)), draw(st.integers(1, 9))))


def opened(draw: Draw) -> UOp:
    return UOp(ops.IF, dtypes.void, (leaf(draw, dtypes.bool_, "l"),))


def vector(draw: Draw) -> UOp:
    return leaf(draw, draw(st.sampled_from(ARRAY_DTYPES)).vector(4), "l")


def gep(draw: Draw) -> UOp:
    x, lanes = vector(draw), draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    return UOp(ops.GEP, x.dtype.scalar.vector(len(lanes)), (x,), tuple(lanes))


def vectorize(draw: Draw) -> UOp:
    dtype, lanes = draw(st.sampled_from(ARRAY_DTYPES)), size(draw)
    src = tuple([leaf(draw, dtype, "l") for _ in range(lanes)])
    return UOp(ops.VECTORIZE, dtype.vector(lanes), src)


def broadcast(draw: Draw) -> UOp:
    dtype = draw(st.sampled_from(ARRAY_DTYPES))
    return UOp(ops.BROADCAST, dtype.vector(size(draw)), (leaf(draw, dtype, "l"),))


def fold(draw: Draw) -> UOp:
    x = vector(draw)
    return UOp(ops.FOLD, x.dtype.scalar, (x,), fold_op(draw, x.dtype.scalar))


def reduce(draw: Draw) -> UOp:
    x = leaf(draw, draw(st.sampled_from(ARRAY_DTYPES)), "k")
    src = (x, index.irange(8, "r0"), index.irange(16, "r1"))
    return UOp(ops.REDUCE, x.dtype, src, fold_op(draw, x.dtype))


def reduce_axis(draw: Draw) -> UOp:
    x = graph_node(draw)
    arg = (fold_op(draw, x.dtype), draw(st.sampled_from([(0,), (2, 0), ()])))
    return UOp(ops.REDUCE_AXIS, x.dtype, (x,), arg)


def gather(draw: Draw) -> UOp:
    x = graph_node(draw)
    i = UOp(ops.BUFFER, draw(st.sampled_from(INTEGERS)), (), (4, (5,), "numpy"))
    return UOp(ops.GATHER, x.dtype, (x, i, *([i] * draw(st.integers(0, 2)))))


def moved(op: Op, *args: Any) -> Any:
    def build(draw: Draw) -> UOp:
        x = graph_node(draw)
        return UOp(op, x.dtype, (x,), draw(st.sampled_from(args)))

    return build


def copied(draw: Draw) -> UOp:
    x = graph_node(draw)
    return UOp(ops.COPY, x.dtype, (x,), draw(NAMES))


def masks(draw: Draw) -> UOp:
    i, j = index.irange(8, "r0"), index.irange(16, "r1")
    return index.all_of(index.less_than(i, draw(st.integers(1, 7))), index.less_than(j, size(draw)))


def imul(draw: Draw) -> UOp:
    return UOp(ops.IMUL, dtypes.index, (index.irange(8, "r0"), variable(draw, dtypes.index)))


def ivalue(draw: Draw) -> UOp:
    value = leaf(draw, draw(st.sampled_from(INTEGERS)), "k")
    return UOp(ops.IVALUE, dtypes.index, (value,), (draw(st.integers(-9, 0)), size(draw)))


def stage_copy(draw: Draw) -> UOp:
    return UOp(ops.STAGE_COPY, dtypes.void, (local(), flat(draw), param(), flat(draw)), size(draw))


def wmma(draw: Draw) -> UOp:
    a, c = (leaf(draw, d, "l") for d in (dtypes.float16.vector(8), dtypes.float32.vector(4)))
    return UOp(ops.WMMA, c.dtype, (a, a, c), "mma_m16n8k16")


def kernel_wmma(draw: Draw) -> UOp:
    axes = [index.irange(n, f"r{n}", "fragment") for n in (8, 4, 2)]
    a, b = (leaf(draw, dtypes.float16, "k") for _ in "ab")
    return UOp(ops.WMMA, dtypes.float32, (a, b, *axes), "mma_m16n8k16")


def shuffle(draw: Draw) -> UOp:
    x = leaf(draw, dtypes.float32, "l")
    return UOp(ops.SHUFFLE, x.dtype, (x,), size(draw))


def number(op: Op, arg: Any = None) -> Any:
    return lambda draw: UOp(op, dtypes.void, (), arg)


TEXEL = dtypes.float32.vector(4)


def image() -> UOp:
    return UOp(ops.IMAGE, dtypes.float16, (), ("image", (3, 5), True))


def image_store(draw: Draw) -> UOp:
    return UOp(ops.IMAGE_STORE, dtypes.void, (image(), flat(draw), flat(draw), leaf(draw, TEXEL, "l")))


#: (op, level) -> builder, for the ops that are not elementwise.
CASES: dict[tuple[Op, str], Any] = {
    (ops.BUFFER, "g"): graph_node,
    (ops.IOTA, "g"): lambda draw: UOp(ops.IOTA, draw(st.sampled_from(INTEGERS)), (), size(draw)),
    (ops.REDUCE_AXIS, "g"): reduce_axis,
    (ops.GATHER, "g"): gather,
    (ops.CONTIGUOUS, "g"): moved(ops.CONTIGUOUS, None),
    (ops.COPY, "g"): copied,
    (ops.RESHAPE, "g"): moved(ops.RESHAPE, (6,), (1, 6, 1)),
    (ops.PERMUTE, "g"): moved(ops.PERMUTE, (2, 0, 1), (0, 1, 2)),
    (ops.EXPAND, "g"): moved(ops.EXPAND, (2, 5, 3), (2, 0, 3)),
    (ops.PAD, "g"): moved(ops.PAD, ((0, 1), (2, 0), (0, 0))),
    (ops.SHRINK, "g"): moved(ops.SHRINK, ((0, 1), (0, 1), (3, 3))),
    (ops.FLIP, "g"): moved(ops.FLIP, (), (0, 2)),
    (ops.VAR, "g"): lambda draw: variable(draw, dtypes.int64),
    (ops.VAR, "k"): lambda draw: variable(draw, dtypes.index),
    (ops.VAR, "l"): lambda draw: variable(draw, dtypes.int32),
    (ops.RANGE, "k"): kernel_range,
    (ops.RANGE, "l"): flat,
    (ops.AFFINE, "k"): lambda draw: index.combine(((some_index(draw), 3),), size(draw)),
    (ops.IDIV, "k"): lambda draw: UOp(ops.IDIV, dtypes.index, (some_index(draw),), size(draw)),
    (ops.IMOD, "k"): lambda draw: UOp(ops.IMOD, dtypes.index, (some_index(draw),), size(draw)),
    (ops.IMUL, "k"): imul,
    (ops.IVALUE, "k"): ivalue,
    (ops.GE0, "k"): lambda draw: UOp(ops.GE0, dtypes.bool_, (some_index(draw),)),
    (ops.ALL, "k"): masks,
    (ops.PARAM, "k"): lambda draw: param(draw(st.sampled_from(ARRAY_DTYPES)), draw(st.booleans())),
    (ops.PARAM, "l"): lambda draw: param(draw(st.sampled_from(ARRAY_DTYPES)), draw(st.booleans())),
    (ops.LOCAL, "k"): lambda draw: local(draw(st.sampled_from(ARRAY_DTYPES))),
    (ops.LOCAL, "l"): lambda draw: local(draw(st.sampled_from(ARRAY_DTYPES)).vector(size(draw))),
    (ops.LOAD, "k"): lambda draw: kernel_access(draw, ops.LOAD),
    (ops.LOAD, "l"): linear_load,
    (ops.STORE, "k"): lambda draw: kernel_access(draw, ops.STORE),
    (ops.STORE, "l"): linear_store,
    (ops.REDUCE, "k"): reduce,
    (ops.END, "l"): lambda draw: UOp(ops.END, dtypes.void, (flat(draw),)),
    (ops.IF, "l"): opened,
    (ops.ENDIF, "l"): lambda draw: UOp(ops.ENDIF, dtypes.void, (opened(draw),)),
    (ops.IMAGE, "l"): lambda draw: image(),
    (ops.IMAGE_LOAD, "l"): lambda draw: UOp(ops.IMAGE_LOAD, TEXEL, (image(), flat(draw), flat(draw))),
    (ops.IMAGE_STORE, "l"): image_store,
    (ops.SPECIAL, "l"): lambda draw: UOp(ops.SPECIAL, dtypes.int32, (), (draw(NAMES), size(draw))),
    (ops.BARRIER, "l"): number(ops.BARRIER),
    (ops.BROADCAST, "l"): broadcast,
    (ops.VECTORIZE, "l"): vectorize,
    (ops.GEP, "l"): gep,
    (ops.FOLD, "l"): fold,
    (ops.SHUFFLE, "l"): shuffle,
    (ops.WMMA, "k"): kernel_wmma,
    (ops.WMMA, "l"): wmma,
    (ops.STAGE_COPY, "l"): stage_copy,
    (ops.STAGE_COMMIT, "l"): number(ops.STAGE_COMMIT),
    (ops.STAGE_WAIT, "l"): number(ops.STAGE_WAIT, 1),
    **{(ops.CONST, level): lambda draw: const_of_any_dtype(draw) for level in "gkl"},
}


def const_of_any_dtype(draw: Draw) -> UOp:
    dtype = draw(st.sampled_from(ARRAY_DTYPES))
    if dtype.kind == "float":
        return const(draw(st.floats()), dtype)
    return const(draw(st.integers()), dtype)


ALL_CASES = [(op, level) for op in OPS.values() for level in op.levels]


@pytest.mark.parametrize(("op", "level"), ALL_CASES, ids=lambda v: str(v))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_op_round_trips(op: Op, level: str, data: st.DataObject) -> None:
    build = CASES.get((op, level))
    if build is None:
        assert op in ops.ALU_OPS or op.group == "cast", f"{op} has no case at level {level}"
        u = elementwise(data.draw, op, level)
    else:
        u = build(data.draw)
    assert u.op is op
    assert parse(dump(u)) is u
    assert parse(dump((u, u))) == (u, u)
    if level == "l":
        program = program_of(u)
        verify_program(program, "test")
        assert parse_program(dump_program(program)) == program
    else:
        verify(u, "graph" if level == "g" else "kernel", "test")
    assert 0 < len(expr(u)) <= 240


def program_of(u: UOp) -> list[UOp]:
    """A linear program that ends with `u` and closes its blocks."""
    nodes = sorted(toposort((u,)), key=lambda n: n.op.effect is not ops.Effect.DEFINE)
    closed = {n.src[0] for n in nodes if n.op in (ops.END, ops.ENDIF)}
    closers = {ops.RANGE: ops.END, ops.IF: ops.ENDIF}
    still_open = [n for n in nodes if n.op in closers and n not in closed]
    return nodes + [UOp(closers[n.op], dtypes.void, (n,)) for n in reversed(still_open)]


# -- programs ----------------------------------------------------------------------------------------------

X = UOp(ops.PARAM, dtypes.float32, (), ("x", (4,), True))
I = UOp(ops.RANGE, dtypes.int32, (), ("i", 4, "loop"))  # noqa: E741
ZERO = const(0, dtypes.int32)
LOAD = UOp(ops.LOAD, dtypes.float32, (X, ZERO))
END = UOp(ops.END, dtypes.void, (I,))


def store(value: UOp) -> UOp:
    return UOp(ops.STORE, dtypes.void, (X, ZERO, value))


def test_a_uop_that_stands_twice_has_two_names() -> None:
    program = [X, ZERO, LOAD, I, store(LOAD), LOAD, store(LOAD), END, store(LOAD)]
    text = """\
%0 = PARAM float32 ("x", (4,), True)
%1 = CONST int32 0
%2 = LOAD float32 %0 %1
%3 = RANGE int32 ("i", 4, "loop")
  %4 = STORE void %0 %1 %2
  %5 = LOAD float32 %0 %1
  %6 = STORE void %0 %1 %5
%7 = END void %3
%8 = STORE void %0 %1 %2"""
    assert dump_program(program) == text
    assert parse_program(text) == program


def test_an_operand_that_does_not_stand_is_named() -> None:
    program = [X, store(LOAD), END, END]
    text = dump_program(program)
    assert text.count("let ") == 3
    assert parse_program(text) == program


@given(st.lists(st.sampled_from([X, ZERO, LOAD, I, store(LOAD), END, store(ZERO)]), max_size=12))
def test_any_list_of_uops_round_trips(program: list[UOp]) -> None:
    assert parse_program(dump_program(program)) == program


def test_indentation_blank_lines_and_comments_are_ignored() -> None:
    text = "# by hand\n\n      %a = CONST int32 1  # one\n\t%b = ADD int32 %a\t%a\r\n\nreturn %b # done\n"
    one = const(1, dtypes.int32)
    assert parse(text) is UOp(ops.ADD, dtypes.int32, (one, one))


def test_arguments() -> None:
    arg = (
        1, -2, True, None, 0.5, -0.0, math.inf, -math.inf, 1e300, 1e-7, "a\"\n\u00e9%", (), ((3,),),
        ops.ADD, dtypes.float32.vector(4), dtypes.void,
    )  # fmt: skip
    u = UOp(ops.COPY, dtypes.float32, (X,), arg)
    parsed = parse(dump(u))
    assert parsed is u
    assert [type(a) for a in parsed.arg] == [type(a) for a in arg]
    assert math.copysign(1.0, parsed.arg[5]) < 0
    with pytest.raises(InternalError, match="set"):
        dump(UOp(ops.COPY, dtypes.float32, (X,), frozenset()))


def test_roots() -> None:
    assert parse(dump([X])) == (X,)
    assert parse(dump(())) == ()
    assert dump([X, ZERO]).endswith("return (%0, %1)")


def test_a_deep_graph_prints_and_parses() -> None:
    u = const(1, dtypes.int32)
    for _ in range(20_000):
        u = UOp(ops.NEG, dtypes.int32, (u,))
    assert parse(dump(u)) is u
    assert len(expr(u)) < 250
    assert repr(u).endswith("...>")


def test_a_shared_graph_prints_once_per_node() -> None:
    u = const(1, dtypes.int32)
    for _ in range(200):
        u = UOp(ops.ADD, dtypes.int32, (u, u))
    assert len(dump(u).split("\n")) == 202
    assert len(expr(u, limit=50)) == 50


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("%0 = CNST float32 1.0", "unknown op 'CNST' (did you mean 'CONST'?)", 1, 5),
        ("%0 = add float32 1.0", "unknown op 'add' (did you mean 'ADD'?)", 1, 5),
        ("%0 = CONST flot32 1.0", "unknown dtype 'flot32' (did you mean 'float32'?)", 1, 11),
        ("%0 = CONST bool Tru", "unknown value 'Tru' (did you mean 'True'?)", 1, 16),
        ("%0 = CONST int32 1\n%1 = NEG int32 %2", "%2 is used before it is defined", 2, 15),
        ("%0 = CONST int32 1\n%0 = CONST int32 1", "%0 is defined twice", 2, 0),
        ("%0 = CONST int32 1\n%1 = ADD int32 %0", "ADD has 1 operands; it takes x y", 2, 5),
        ("%0 = CONST int32 1 2", "expected the end of the line, found '2'", 1, 19),
        ("%0 CONST int32 1", "expected '=', found 'CONST'", 1, 3),
        ("%0 = CONST int32 @", "unexpected character '@'", 1, 17),
        ('%0 = PARAM int32 ("x", (1 2), True)', "expected ',' or ')', found '2'", 1, 26),
        ('%0 = PARAM int32 "\\x"', "malformed string", 1, 18),
        ("%0 = PERMUTE int32", "PERMUTE has 0 operands", 1, 5),
        ("%0 = AFFINE index 3", "AFFINE cannot be built with argument 3", 1, 18),
        ("%0 = CONST int32 1\nreturn %0\n%1 = CONST int32 1", "text after the 'return' line", 3, 0),
        ("%0 = CONST int32 1", "expected a last line such as 'return %0'", 1, 18),
        ("return 3", "expected a %name, found '3'", 1, 7),
        ("%0 = CONST", "expected a dtype, found the end", 1, 10),
        ("", "expected a last line", 1, 0),
    ],
)
def test_errors_show_the_place(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    shown = str(caught.value).split("\n")
    assert shown[0].startswith(message)
    source = shown[1]
    assert source.startswith(f"  line {line}: ")
    assert shown[2].index("^") - source.index(": ") - 2 == column


def test_expressions_for_people() -> None:
    x = UOp(ops.PARAM, dtypes.float32, (), ("x", (4, 16), False))
    i, j = index.irange(4, "r0"), index.irange(4, "r1")
    whole = UOp(ops.LOAD, dtypes.float32, (x, index.TRUE, i, index.combine(((j, 4),), 2)))
    masked = UOp(ops.LOAD, dtypes.float32, (x, index.less_than(i, 3), i, j))
    two = const(2.0, dtypes.float32)
    product = UOp(ops.MUL, dtypes.float32, (whole, two))
    assert expr(product) == "x[r0, 4*r1+2] * 2.0"
    assert expr(UOp(ops.EXP, dtypes.float32, (product,))) == "exp(x[r0, 4*r1+2] * 2.0)"
    assert expr(masked) == "x[r0, r1 if -r0+2 >= 0]"
    assert expr(UOp(ops.STORE, dtypes.void, (x, index.TRUE, two, i, j))) == "x[r0, r1] = 2.0"
    assert expr(UOp(ops.REDUCE, dtypes.float32, (whole, j), ops.ADD)) == "reduce(x[r0, 4*r1+2], r1, ADD)"
    assert expr(UOp(ops.CAST, dtypes.int8, (two,))) == "int8(2.0)"
    q, r = index.divmod_(index.combine(((i, 3), (j, 1))), 5)
    assert expr(q) == "(3*r0+r1)//5"
    assert expr(index.combine(((r, 2),), 1)) == "2*((3*r0+r1)%5)+1"
    assert expr(store(LOAD)) == "x[0] = x[0]"
    gate = UOp(ops.LOAD, dtypes.float32, (X, ZERO, const(False, dtypes.bool_)))
    assert expr(gate) == "x[0 if False]"
