"""index.py against brute force: equal at every point, within the bounds, and recombining."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retarget.ir import dtypes, ops
from retarget.ir.index import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    all_of,
    combine,
    conjuncts,
    constant,
    divmod_,
    flatten,
    ge0,
    iadd,
    iconst,
    imul,
    in_bounds,
    irange,
    iscale,
    ishift,
    less_than,
    range_size,
    terms,
)  # fmt: skip
from retarget.ir.text import expr
from retarget.ir.uop import UOp, const
from retarget.ir.verify import verify

RANGES = [irange(n, f"r{i}") for i, n in enumerate((2, 3, 4, 5, 6))]
VARIABLE = UOp(ops.VAR, dtypes.index, (), ("n", -3, 4))
ATOMS = [*RANGES, VARIABLE]
Point = dict[UOp, int]


def evaluate(u: UOp, at: Point) -> int:
    """The value of an index expression or a mask, by its definition."""
    if u in at:
        return at[u]
    src = [evaluate(s, at) for s in u.src]
    match u.op:
        case ops.AFFINE:
            return int(u.arg[0]) + sum(k * v for k, v in zip(u.arg[1], src, strict=True))
        case ops.IDIV:
            return src[0] // int(u.arg)
        case ops.IMOD:
            return src[0] % int(u.arg)
        case ops.IMUL:
            return src[0] * src[1]
        case ops.GE0:
            return src[0] >= 0
        case ops.ALL:
            return all(src)
        case ops.CONST:
            return bool(u.arg)
    raise AssertionError(u.op)


def points(*expressions: UOp) -> Iterator[Point]:
    """Every point of the domain of the atoms that the expressions depend on."""
    used: dict[UOp, None] = {}
    stack = list(expressions)
    while stack:
        u = stack.pop()
        if u in ATOMS:
            used[u] = None
        stack.extend(u.src)
    atoms = list(used)
    for values in itertools.product(*[range(a.vmin, a.vmax + 1) for a in atoms]):
        yield dict(zip(atoms, values, strict=True))


# An expression is drawn as a function of a point next to the canonical node, so that the two are independent.
Drawn = tuple[UOp, Any]


@st.composite
def indices(draw: Any, depth: int = 4, atoms: int = 3) -> Drawn:
    kind = draw(st.integers(0, 6)) if depth else 0
    if kind == 0:
        a = draw(st.sampled_from([*ATOMS[:atoms], VARIABLE]))
        return a, lambda at: at[a]
    x, fx = draw(indices(depth - 1, atoms))
    if kind in (1, 2):
        y, fy = draw(indices(depth - 1, atoms))
        c, k, m = draw(st.integers(-9, 9)), draw(st.integers(-6, 6)), draw(st.integers(-6, 6))
        return combine(((x, k), (y, m)), c), lambda at: k * fx(at) + m * fy(at) + c
    n = draw(st.integers(1, 13))
    if kind in (3, 4):
        return divmod_(x, n)[0], lambda at: fx(at) // n
    if kind == 5:
        return divmod_(x, n)[1], lambda at: fx(at) % n
    y, fy = draw(indices(max(depth - 2, 0), atoms))
    return imul(x, y), lambda at: fx(at) * fy(at)


@given(indices())
@settings(max_examples=800, deadline=None)
def test_value_and_bounds(drawn: Drawn) -> None:
    u, f = drawn
    for at in points(*ATOMS[:3], VARIABLE):
        value = f(at)
        assert evaluate(u, at) == value, expr(u)
        assert u.vmin <= value <= u.vmax
    verify(u, "kernel", "index arithmetic")


@st.composite
def sums(draw: Any) -> UOp:
    """What movement ops make: sums, quotients and remainders, no range standing twice but in such a pair."""
    parts = [(a, draw(st.integers(-6, 12))) for a in draw(st.permutations(ATOMS))[: draw(st.integers(1, 4))]]
    x = combine(parts[:1], draw(st.integers(-9, 9)))
    for part in parts[1:]:
        for n in draw(st.lists(st.integers(1, 13), max_size=2)):
            x = divmod_(x, n)[draw(st.integers(0, 1))]
        x = combine(((x, draw(st.integers(-6, 12))), part), draw(st.integers(-9, 9)))
    return draw(st.sampled_from([x, *divmod_(x, draw(st.integers(1, 13)))]))  # type: ignore[no-any-return]


@given(sums(), st.integers(1, 30))
@settings(max_examples=800, deadline=None)
def test_divmod_recombines(x: UOp, n: int) -> None:
    q, r = divmod_(x, n)
    assert combine(((q, n), (r, 1))) is x, (expr(x), n, expr(q), expr(r))
    assert combine(((r, -3), (q, -3 * n)), 5) is combine(((x, -3),), 5)
    assert r.vmin >= 0
    assert r.vmax < n


@given(sums(), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_mixed_radix_digits_recombine(x: UOp, n: int, m: int) -> None:
    high, middle = divmod_(divmod_(x, n)[0], m)
    low = divmod_(x, n)[1]
    assert combine(((high, n * m), (middle, n), (low, 1))) is x


@given(st.lists(indices(depth=2), min_size=1, max_size=4), st.randoms())
@settings(max_examples=300, deadline=None)
def test_the_order_of_terms_does_not_matter(drawn: list[Drawn], random: Any) -> None:
    pairs = [(u, n + 1) for n, (u, _) in enumerate(drawn)]
    expected = combine(pairs, 3)
    random.shuffle(pairs)
    assert combine(pairs, 3) is expected
    one_by_one = iconst(3)
    for u, k in pairs:
        one_by_one = iadd(one_by_one, iscale(u, k))
    for at in points(one_by_one, expected):
        assert evaluate(one_by_one, at) == evaluate(expected, at)


@given(st.lists(st.tuples(indices(depth=3), st.integers(-8, 8)), min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_masks(drawn: list[tuple[Drawn, int]]) -> None:
    parts, functions = [], []
    for n, ((u, f), c) in enumerate(drawn):
        if n % 2:
            parts.append(in_bounds(u, 5))
            functions.append(lambda at, f=f: 0 <= f(at) < 5)
        else:
            parts.append(ge0(ishift(u, c)))
            functions.append(lambda at, f=f, c=c: f(at) + c >= 0)
    mask = all_of(*parts)
    for at in points(*[u for (u, _), _ in drawn], *ATOMS[:3], VARIABLE):
        assert bool(evaluate(mask, at)) == all(f(at) for f in functions), expr(mask)
    assert all_of(*reversed(parts)) is mask
    assert all_of(mask, mask) is mask
    assert all_of(*conjuncts(mask)) is mask
    verify(mask, "kernel", "masks")


SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(SHAPES, SHAPES)
@settings(max_examples=200, deadline=None)
def test_reshape_there_and_back(shape: list[int], other: list[int]) -> None:
    """Unflattening into any shape of the same size, and flattening again, gives the same index."""
    flat = flatten([irange(n, f"r{i}") for i, n in enumerate(shape)], shape)
    digits, rest = [], flat
    for n in reversed(other):
        rest, digit = divmod_(rest, n)
        digits.append(digit)
    assert flatten([rest, *reversed(digits)], [7, *other]) is flat


def test_worked_examples() -> None:
    i, j = irange(10, "r0"), irange(12, "r1")
    q, r = divmod_(flatten((i, j), (10, 12)), 24)
    assert expr(q) == "r0//2"
    assert expr(r) == "r1+12*(r0%2)"
    merged = combine(((divmod_(i, 2)[0], 5), (divmod_(i, 2)[1], 1)))  # more of the quotient than its share
    assert expr(merged) == "r0+3*(r0//2)"
    # A sliding window as movement ops make it: tiles of 8 repeated, cut into rows of 9.
    y, k = irange(6, "r0"), irange(3, "r1")
    repeated = divmod_(flatten((k, y), (3, 9)), 8)[1]
    assert expr(repeated) == "r0+r1"
    # The same window from its end: a step of 8 - 1 in the residue is one backward.
    backward = ishift(iscale(k, -1), 2)
    quotient, remainder = divmod_(flatten((backward, y), (3, 9)), 8)
    assert expr(remainder) == "r0-r1+2"
    assert quotient is backward


def test_simple_forms() -> None:
    i = irange(6, "r0")
    assert irange(1, "r1") is ZERO
    assert irange(iconst(4), "r1") is irange(4, "r1")
    assert range_size(irange(VARIABLE, "r1")) == 4
    assert constant(iconst(7)) == 7
    assert constant(i) is None
    assert combine(((i, 1),)) is i
    assert combine(((i, 2), (i, -2)), 3) is iconst(3)
    assert terms(combine(((i, 2),), 3)) == (3, [(i, 2)])
    assert imul(i, iconst(3)) is iscale(i, 3)
    assert imul(ONE, i) is i
    assert divmod_(i, 1) == (i, ZERO)
    assert divmod_(i, 6) == (ZERO, i)
    assert divmod_(iscale(i, 4), 4) == (i, ZERO)
    assert divmod_(divmod_(i, 2)[0], 2)[0] is divmod_(i, 4)[0]
    assert ge0(i) is TRUE
    assert less_than(i, 6) is TRUE
    assert less_than(i, 0) is FALSE
    assert ge0(combine(((i, 3),), -7)) is ge0(combine(((i, 1),), -3))
    assert all_of() is TRUE
    assert all_of(ge0(ishift(i, -2)), FALSE) is FALSE
    assert TRUE is const(True, dtypes.bool_)


def test_stride_0_dimensions_are_skipped() -> None:
    i, j = irange(4, "r0"), irange(5, "r1")
    assert flatten((i, j), (0, 5)) is j


@pytest.mark.parametrize("n", [2, 3, 8, 24, 120])
def test_ranges_of_one_name_are_told_apart(n: int) -> None:
    a, b = irange(7, "r0"), irange(n, "r0", "vector")
    assert combine(((a, 1), (b, 1))) is combine(((b, 1), (a, 1)))
