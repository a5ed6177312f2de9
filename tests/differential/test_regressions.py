"""Minimal graphs that were lowered wrongly once, found by random testing, on every CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from devices import require

from retarget.conformance.bounds import evaluate, mismatches
from retarget.conformance.execute import NOWHERE, execute
from retarget.conformance.generate import random_values
from retarget.ir import ops
from retarget.ir.text import parse
from retarget.ir.uop import toposort
from retarget.optimize.schedule import parse_schedule

DEVICES = ["llvm", "clang", "numpy"]

#: name -> (graph, schedule of every kernel or None for the heuristics')
GRAPHS: dict[str, tuple[str, str | None]] = {
    # A parameter whose only load is simplified away (x ^ x) was still passed at launch.
    "unused-parameter": (
        f"""
        %0 = BUFFER int32 (0, (5,), "{NOWHERE}")
        %1 = BUFFER int32 (1, (5,), "{NOWHERE}")
        %2 = XOR int32 %0 %0
        %3 = ADD int32 %2 %1
        return (%3,)
        """,
        None,
    ),
    # Beyond its end, an array of numbers that is computed and not loaded went on counting.
    "numbers-out-of-bounds": (
        f"""
        %0 = IOTA int64 12
        %1 = CONST int64 13
        %2 = BUFFER int64 (0, (3,), "{NOWHERE}")
        %3 = MUL int64 %2 %2
        %4 = ADD int64 %3 %1
        %5 = GATHER int64 %0 %4
        return (%5,)
        """,
        None,
    ),
    # Lanes of a type that the target does not compute in were folded by an instruction that it does not have.
    "fold-of-emulated-lanes": (
        f"""
        %0 = BUFFER float8_e4m3 (0, (3, 16), "{NOWHERE}")
        %1 = REDUCE_AXIS float8_e4m3 %0 (MAXIMUM, (1,))
        return (%1,)
        """,
        "r1=a,b/8:v",
    ),
    # A gated access wider than the CPU's vectors was split into a masked and a plain one.
    "gate-wider-than-vectors": (
        f"""
        %0 = BUFFER float32 (0, (2, 2, 2), "{NOWHERE}")
        %1 = REDUCE_AXIS float32 %0 (ADD, (2,))
        %2 = EXPAND float32 %1 (2, 2, 2)
        return (%2,)
        """,
        "r0=r0o,r0l/3; r2=r2o,r2v/16:v; r1=r1o,r1u/3:u; order=r2v,r1u,r1o",
    ),
    # The gate of a gather is a scalar where it does not vary with the lanes.
    "gather-with-scalar-gate": (
        f"""
        %0 = BUFFER bool (0, (4, 2), "{NOWHERE}")
        %1 = SHRINK bool %0 ((2, 4), (1, 2))
        %2 = PERMUTE bool %1 (1, 0)
        %3 = BUFFER int32 (1, (), "{NOWHERE}")
        %4 = GATHER bool %2 %3
        return (%4,)
        """,
        "r0=r0o,r0v/2:v; order=r0o,r0v",
    ),
    # A chain of 64 squares, each used twice, was written in place: 2**64 copies of the text.
    "scalar-integer-power": (
        f"""
        %0 = BUFFER int64 (0, (5,), "{NOWHERE}")
        %1 = BUFFER int64 (1, (5,), "{NOWHERE}")
        %2 = POW int64 %0 %1
        return (%2,)
        """,
        "r0=r0o,r0l/2",
    ),
    # A literal made a 64-bit scalar another type than the lanes of the vector beside it.
    "wide-literal-beside-a-vector": (
        f"""
        %0 = BUFFER int64 (0, (1, 1), "{NOWHERE}")
        %1 = PAD int64 %0 ((0, 0), (1, 0))
        %2 = RESHAPE int64 %1 (1, 2, 1)
        %3 = EXPAND int64 %2 (1, 2, 2)
        %4 = BUFFER int64 (1, (1, 2, 2), "{NOWHERE}")
        %5 = ADD int64 %3 %4
        return (%5,)
        """,
        "r1=r1o:t,r1l/2; r2=r2o,r2x/2:u,r2v/2:v; order=r2x,r2v,r2o",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GRAPHS)
def test_regression(name: str, device: str) -> None:
    text, schedule = GRAPHS[name]
    roots = parse(text)
    assert isinstance(roots, tuple)
    rng = np.random.default_rng(0)
    buffers = [u for u in toposort(roots) if u.op is ops.BUFFER]
    data = {u: random_values(rng, u.dtype, u.shape) for u in buffers}
    expected, bounds = evaluate(roots, data)
    choose = None if schedule is None else (lambda kernel: parse_schedule(schedule))
    done = execute(roots, data, require(device), choose)
    for values, right, bound in zip(done.values, expected, bounds, strict=True):
        assert not mismatches(values, right, bound).any(), f"{values!r}, expected {right!r}"
