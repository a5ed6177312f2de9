"""Schedules as text: they parse back, and malformed or illegal ones are errors that say where and why."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import ParseError, ScheduleError, UnknownNameError
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import AXIS_KINDS, SPACES, Axis, Schedule, Stage, parse_schedule

names = st.from_regex(r"[A-Za-z_]\w{0,5}", fullmatch=True).filter(str.isascii)
kinds = st.sampled_from(sorted(AXIS_KINDS.values()))


@st.composite
def splits(draw: st.DrawFn) -> tuple[Axis, ...]:
    axes = draw(st.lists(st.builds(Axis, names, st.integers(1, 4096), kinds), min_size=1, max_size=4))
    if draw(st.booleans()):
        axes[draw(st.integers(0, len(axes) - 1))] = Axis(draw(names), None, draw(kinds))
    return tuple(axes)


CLAUSES = ("order", "stage", "image", "stream")
schedules = st.builds(
    Schedule,
    st.dictionaries(names.filter(lambda n: n not in CLAUSES), splits(), max_size=3).map(
        lambda d: tuple(d.items())
    ),
    st.lists(names, max_size=4).map(tuple),
    st.lists(
        st.builds(
            Stage, names, names, st.lists(names, max_size=3).map(tuple), st.sampled_from(SPACES),
            turned=st.sampled_from((0, 2, 8)),
        ),
        max_size=2,
    ).map(tuple),
    streams=st.lists(names, max_size=2).map(tuple),
)


@given(schedules)
def test_round_trip(schedule: Schedule) -> None:
    text = str(schedule)
    assert parse_schedule(text) == schedule
    spaced = re.sub(r"([;,=])", r" \1 ", text)
    assert str(parse_schedule(spaced)) == text


def test_registers_transpose_powers_of_two() -> None:
    with pytest.raises(ParseError, match="a power of two of lanes, not 6"):
        parse_schedule("stage=in0@r0^6")


def test_examples() -> None:
    text = (
        "r1=nb,p/2,j/2:u,v/16:v; r0=m,i/8:u; order=nb,m,p,r2,i,j,v; stage=in1@nb[p,r2,j,v]; stage=EXP@r0:out"
    )
    assert str(parse_schedule(text)) == text
    assert parse_schedule("") == parse_schedule(" ; ;") == Schedule() and str(Schedule()) == ""


#: (text, where the caret points, what the message says)
MALFORMED = [
    ("r0", 0, "a schedule clause is"),
    ("r0=a; 0x=b", 5, "a schedule clause is"),
    ("r0=a/2:q", 3, "unknown axis kind 'q'"),
    ("r0=a,b/2:z", 5, "unknown axis kind 'z'"),
    ("r0=a,,b", 5, "an axis is"),
    ("r0=a/-1", 3, "an axis is"),
    ("r0=", 3, "an axis is"),
    ("r0=a,b/0:u", 5, "at least 1"),
    ("r0=a,b", 0, "may leave out its size"),
    ("r0=a; r0=b", 5, "split twice"),
    ("order=a; order=b", 8, "given twice"),
    ("stage=in0", 6, "a stage is"),
    ("r0=a; stage=in0@a[", 12, "a stage is"),
    ("stage=in0@a:attic", 6, "unknown space 'attic'"),
]


@pytest.mark.parametrize(("text", "caret", "message"), MALFORMED)
def test_malformed(text: str, caret: int, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)) as caught:
        parse_schedule(text)
    assert caught.value.position == caret
    lines = str(caught.value).splitlines()
    for above, below in pairwise(lines):
        if below.strip() == "^":
            assert above[below.index("^") :] == text[caret:]
            break
    else:
        pytest.fail("no caret")


x = rt.asarray(np.ones((6, 8), "f4"), device="numpy")
(MAP,) = rt.lower(x + 1)
(SUMS,) = rt.lower(rt.sum(x, axis=1))
(SOFTMAX,) = rt.lower(rt.softmax(x, axis=1))
(PRODUCT,) = rt.lower(x @ rt.asarray(np.ones((8, 5), "f4"), device="numpy"))

#: (kernel, schedule, what the message says)
ILLEGAL = [
    (MAP, "r7=a,b/2", "splits r7, but the kernel's ranges are r0, r1"),
    (MAP, "order=r0,r9", "order names 'r9'"),
    (MAP, "r0=r1,a/2", "two axes are called r1"),
    (MAP, "r0=a,a/2", "two axes are called a"),
    (MAP, "r0=a/2,b/2", "cover 4 of the 6 values of r0"),
    (MAP, "r0=a:t; r1=b:t", "both of kind thread"),
    (SUMS, "r2=a:t; r0=b:w", "must be the outermost loop"),
    (SUMS, "r2=a:g", "cannot hold a reduction"),
    (MAP, "r0=a:t; order=r1,a", "must be the outermost loop"),
    (MAP, "r0=a,b/2:v; r1=c,d/2:v", "two vector axes, b and d"),
    (PRODUCT, "r0=a,b/2:v; r1=c,d/4:v", "two vector axes"),
    (MAP, "stream=in0", "in0"),
    (MAP, "r0*r7=a,b/2", "splits r7"),
    (MAP, "r0*r1=a; r1=b", "split alone, and merged"),
    (SUMS, "r0*r2=a,b/2", "r2 is reduced, and cannot merge"),
    (SOFTMAX, "stage=EXP@r0:out; stream=out0", "reads out0 again"),
    (MAP, "stage=in0@nowhere", "nowhere"),
    (MAP, "stage=in7@r0", "in7"),
    (MAP, "stage=TANH@r0", "TANH"),
    (SOFTMAX, "stage=in0@r0[r0]", "layout must name each dimension"),
    (SOFTMAX, "stage=EXP@r0[r1]", "only a buffer's tile has a layout"),
    (PRODUCT, "stage=in0@r3", "only one element"),
]


@pytest.mark.parametrize(("kernel", "text", "message"), ILLEGAL, ids=[t for _, t, _ in ILLEGAL])
def test_illegal(kernel: rt.lower, text: str, message: str) -> None:  # type: ignore[valid-type]
    with pytest.raises((ScheduleError, UnknownNameError)) as caught:
        apply_schedule(kernel, parse_schedule(text))
    assert message in str(caught.value)


def test_what_is_legal_after_all() -> None:
    """A surplus is masked, axes of size 1 have no loop, and `order` may leave axes out."""
    with rt.with_schedule("r0=a,b/4; r1=c/1,d,e/3; order=e,c"):
        assert (x + 1).numpy().tolist() == [[2] * 8] * 6
        assert rt.sum(x, axis=1).numpy().tolist() == [8] * 6


def test_pinning_nests() -> None:
    from retarget.pipeline import compile_options

    with rt.with_schedule("r0=a") as outer:
        with rt.with_schedule(Schedule()) as inner:
            assert compile_options() == f"pinned {inner}"
        assert compile_options() == f"pinned {outer}"
    assert compile_options() == ""


def test_a_pinned_empty_schedule_has_its_own_plan() -> None:
    """Neither the plan in memory nor the one on disk of the heuristics' schedule serves it."""
    from retarget.runtime.realize import _find_plan, normal_form

    values = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    x = rt.asarray(values, device="llvm")
    y = x * 2 + 1
    key, inputs = normal_form([y.node])
    chosen = _find_plan([y.node], key, inputs, "llvm:0")
    with rt.with_schedule(Schedule()):
        pinned = _find_plan([y.node], key, inputs, "llvm:0")
        np.testing.assert_array_equal(np.asarray(x * 2 + 1), values * 2 + 1)
    assert chosen is not None and pinned is not None
    assert chosen.steps[0].executable is not pinned.steps[0].executable


@pytest.mark.parametrize(
    "text", ["r0*r1=a:t,b/8:v", "r0*r1=a,b/5:u", "r1*r0=a,b/4", "r0*r1=a/7:t,b; stream=out0"]
)
@pytest.mark.parametrize("device", ["llvm", "clang", "numpy"])
def test_merged_ranges(device: str, text: str) -> None:
    values = np.arange(48, dtype="f4").reshape(6, 8)
    bias = np.arange(8, dtype="f4")
    with rt.with_schedule(text):
        got = rt.asarray(values, device=device) * rt.asarray(bias, device=device) + 1
        assert (got.numpy() == values * bias + 1).all()
    assert str(parse_schedule(text)) == text
