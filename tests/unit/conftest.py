"""Fixtures of the unit tests."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from retarget import registry
from retarget.ir import dtypes, ops
from retarget.ir.uop import UOp, new_buffer, numel, toposort
from retarget.registry import DeviceInfo
from retarget_numpy.graph import evaluate


def check_graph(roots: Sequence[UOp]) -> None:
    """Check what the op table says of each node, and the shapes of its operands."""
    for node in toposort(roots):
        problem = node.op.rule(node.dtype, node.src, node.arg)
        assert problem is None, f"{node.op}: {problem}"
        if node.op.group in ("alu", "cast"):
            assert [s.shape for s in node.src] == [node.shape] * len(node.src), node.op
        if node.op is ops.RESHAPE:
            assert numel(node.shape) == numel(node.src[0].shape)
        if node.op is ops.SHRINK:
            assert all(0 <= b <= e <= n for (b, e), n in zip(node.arg, node.src[0].shape, strict=True))
        if node.op is ops.PAD:
            assert all(b >= 0 and a >= 0 for b, a in node.arg)
        if node.op is ops.EXPAND:
            assert all(n in (1, m) for n, m in zip(node.src[0].shape, node.shape, strict=True))


@pytest.fixture(scope="module")
def oracle_runtime() -> Iterator[None]:
    """Make the array namespace compute with the NumPy oracle alone: no lowering, no device, no plugin."""
    numbers = itertools.count(1 << 40)

    def from_numpy(values: np.ndarray[Any, Any], device: str) -> UOp:
        assert values.dtype.isnative and values.flags.c_contiguous
        return new_buffer(dtypes.as_dtype(values.dtype), (next(numbers), values.shape, device), values.copy())

    def to_numpy(node: UOp) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = node.data
        return values.copy()

    def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
        check_graph(nodes)
        return [from_numpy(values, device) for values in evaluate(nodes, lambda node: node.data)]

    def device(name: str | None = None) -> DeviceInfo:
        found = "cpu:0" if name in (None, "auto") else f"{name}:0" if ":" not in str(name) else str(name)
        return DeviceInfo(found, "cpu/any")

    buffers = types.ModuleType("retarget.runtime.buffers")
    vars(buffers).update(
        from_numpy=from_numpy,
        to_numpy=to_numpy,
        from_dlpack=lambda x, name: from_numpy(np.ascontiguousarray(np.from_dlpack(x)), name),
        to_dlpack=lambda node, **options: node.data.__dlpack__(),
        dlpack_device=lambda name: (1, 0),
    )
    realizing = types.ModuleType("retarget.runtime.realize")
    vars(realizing).update(realize=realize)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, buffers.__name__, buffers)
        patch.setitem(sys.modules, realizing.__name__, realizing)
        patch.setattr(registry, "device", device)
        yield
