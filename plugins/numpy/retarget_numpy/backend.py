"""The backend "numpy": the reference that every other one is compared with.  It runs anywhere, slowly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from retarget.errors import UnknownNameError
from retarget.ir.dtypes import ARRAY_DTYPES
from retarget.ir.uop import UOp
from retarget.registry.backend import Backend, DeviceInfo, Probe
from retarget.registry.capabilities import Capabilities, Entry, Support

from .compiler import NumpyCompiler
from .graph import evaluate
from .interpreter import Interpreter, Order
from .renderer import NumpyRenderer
from .runtime import NumpyRuntime

TARGET = "numpy/uops"
DEVICE = "numpy:0"

_NARROW_FLOATS = tuple(d.name for d in ARRAY_DTYPES if d.is_float and d.bits < 32)
_SUPPORTED = Entry(Support.SUPPORTED)
# NumPy could compute in these, but then its programs would not be those that other targets run.
_EMULATED = Entry(Support.EMULATED, "computed in float32 and rounded, as on other targets")


@cache
def _capabilities() -> Capabilities:
    return Capabilities(
        target=TARGET,
        storage={d.name: _SUPPORTED for d in ARRAY_DTYPES},
        arithmetic={d.name: _EMULATED if d.name in _NARROW_FLOATS else _SUPPORTED for d in ARRAY_DTYPES},
        conversions=frozenset(_NARROW_FLOATS),
        vector_bits=256,  # NumPy has no vectors of its own; these make the programs look like other CPUs'
        vector_memory_bits=256,
        axis_kinds=frozenset({"grid", "block", "warp", "thread", "loop", "unroll", "vector"}),
        unroll="pragma",
        address_spaces=frozenset({"global", "local", "register"}),
        barriers=_SUPPORTED,
        images=_SUPPORTED,
        async_copies=_SUPPORTED,
        threads=1,
    )


class NumpyBackend(Backend):
    """Graphs evaluated op by op, and linear programs interpreted, with NumPy."""

    name = "numpy"

    def probe(self) -> Probe:
        return Probe((DeviceInfo(DEVICE, TARGET, f"NumPy {np.__version__}"),))

    def capabilities(self, target: str) -> Capabilities:
        if target != TARGET:
            raise UnknownNameError("target", target, [TARGET])
        return _capabilities()

    def renderer(self, target: str) -> NumpyRenderer:
        return NumpyRenderer(target, self.capabilities(target))

    def compiler(self, target: str) -> NumpyCompiler:
        return NumpyCompiler(self.capabilities(target))

    def runtime(self, device: str) -> NumpyRuntime:
        if device != DEVICE:
            raise UnknownNameError("device", device, [DEVICE])
        return NumpyRuntime(_capabilities())

    def interpret(
        self,
        program: Sequence[UOp],
        buffers: Mapping[str, np.ndarray[Any, Any]],
        variables: Mapping[str, int] | None = None,
        order: Order = "forward",
    ) -> None:
        """Execute a linear program over NumPy arrays; see `retarget_numpy.interpreter.Interpreter`."""
        Interpreter(program, _capabilities().tensor_cores)(buffers, variables, order)

    def evaluate_graph(
        self,
        roots: Sequence[UOp],
        buffers: Callable[[UOp], np.ndarray[Any, Any]],
        variables: Mapping[str, int] | None = None,
    ) -> list[np.ndarray[Any, Any]]:
        """Return the values of graph nodes, without any lowering; see `retarget_numpy.graph.evaluate`."""
        return evaluate(roots, buffers, variables)
