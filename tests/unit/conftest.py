"""Fixtures of the unit tests."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from retarget_numpy.graph import evaluate

from retarget import registry
from retarget.ir import dtypes, ops
from retarget.ir.uop import UOp, attach
from retarget.registry import DeviceInfo


@pytest.fixture(scope="module")
def oracle_runtime() -> Iterator[None]:
    """Make the array namespace compute with the NumPy oracle alone: no lowering, no device, no plugin."""
    numbers = itertools.count(1 << 40)

    def from_numpy(values: np.ndarray[Any, Any], device: str) -> UOp:
        assert values.dtype.isnative and values.flags.c_contiguous
        node = UOp(ops.BUFFER, dtypes.as_dtype(values.dtype), (), (next(numbers), values.shape, device))
        attach(node, values.copy())
        return node

    def to_numpy(node: UOp) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = node.data
        return values.copy()

    def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
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
