"""Conformance levels 0 to 2 of the CUDA backend, which need no GPU: NVRTC compiles what the matrix has.

Everything is rendered for each architecture.  One architecture compiles all of it; of the others, what the
architectures differ in.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

import pytest
from gpu_programs import nvrtc

from retarget.conformance.suite import Suite

pytestmark = pytest.mark.usefixtures("nvrtc")
__all__ = ["nvrtc"]  # a fixture
#: Checks that are compiled for all architectures: functions, conversions, narrow floats, every kind of axis.
EVERYWHERE = (
    "L2/hook/*", "L2/function/*", "L2/conversion/*", "L2/cast/float32/*", "L2/axis/*",
    "L2/reduce/MAXIMUM/*/last", "L2/multi-reduce/*/float16", "L2/contraction/*", "L2/schedule/?",
)  # fmt: skip
GROUPS = (
    "alu", "axis", "bitcast", "cast", "const", "contraction", "conversion", "function", "gather", "hook",
    "movement", "multi-output", "multi-reduce", "random", "reduce", "scan", "schedule", "shape",
)  # fmt: skip


@functools.cache
def suite(target: str) -> Suite:
    return Suite(target, 2)


def failures(target: str, *patterns: str) -> list[str]:
    """Run the checks that match; there must be some."""
    ids = [id for id in suite(target).ids() if any(fnmatchcase(id, p) for p in patterns)]
    assert ids
    results = [suite(target).result(id) for id in ids]
    return [f"{r.id}: {r.message}" for r in results if not r.good]


@pytest.mark.parametrize("target", ["cuda/sm_75", "cuda/sm_80", "cuda/sm_90a", "cuda/sm_100"])
def test_everything_is_rendered(target: str) -> None:
    assert failures(target, "L0/*", "L1/*") == []


@pytest.mark.parametrize("group", GROUPS)
def test_everything_is_compiled_for_one_architecture(group: str) -> None:
    assert failures("cuda/sm_90a", f"L2/{group}/*", f"L2/{group}") == []


def test_no_group_is_forgotten() -> None:
    found = {id.split("/")[1] for id in suite("cuda/sm_90a").ids() if id.startswith("L2/")}
    assert found == set(GROUPS)


@pytest.mark.parametrize("target", ["cuda/sm_75", "cuda/sm_80", "cuda/sm_100"])
@pytest.mark.parametrize("pattern", EVERYWHERE)
def test_what_architectures_differ_in_is_compiled_for_each(target: str, pattern: str) -> None:
    assert failures(target, pattern) == []
