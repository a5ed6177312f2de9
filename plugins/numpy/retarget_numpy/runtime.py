"""Memory of this process, and the interpreter as its only core.  Handles are addresses.

The interpreter is Python code, so a launch holds the GIL and is complete when it returns.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from retarget.errors import DeviceError, LaunchError
from retarget.ir.dtypes import as_dtype, to_numpy
from retarget.ir.text import parse_program
from retarget.registry.backend import Binary
from retarget.registry.capabilities import Capabilities

from .interpreter import Interpreter


class NumpyRuntime:
    """The runtime of the device numpy:0."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._memory: dict[int, np.ndarray[Any, Any]] = {}

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory."""
        memory = np.empty(max(nbytes, 1), np.uint8)
        address = memory.ctypes.data
        self._memory[address] = memory
        return address

    def free(self, handle: int) -> None:
        """Give memory back.

        Raises
        ------
        DeviceError
            If it was not allocated here, or was freed before.
        """
        if self._memory.pop(handle, None) is None:
            raise DeviceError(f"{handle:#x} is not the address of memory allocated on this device")

    def copy_in(self, handle: int, data: memoryview) -> None:
        if data.nbytes:
            ctypes.memmove(handle, np.frombuffer(data, np.uint8).ctypes.data, data.nbytes)

    def copy_out(self, data: memoryview, handle: int) -> None:
        if data.nbytes:
            ctypes.memmove(np.frombuffer(data, np.uint8).ctypes.data, handle, data.nbytes)

    def load(self, binary: Binary) -> NumpyExecutable:
        """Parse and translate the program."""
        return NumpyExecutable(binary, self._capabilities)

    def synchronize(self) -> None:
        """Return at once: a launch is complete when it returns."""

    def host_address(self, handle: int) -> int:
        return handle


class NumpyExecutable:
    """A loaded program."""

    def __init__(self, binary: Binary, capabilities: Capabilities) -> None:
        self._interpreter = Interpreter(parse_program(binary.data.decode()), capabilities.tensor_cores)
        buffers = [a for a in binary.arguments if a.kind in ("buffer", "image")]
        self._buffers = buffers[: len(buffers) - binary.launch.scratch]
        self._scratch = buffers[len(self._buffers) :]
        self._variables = [a.name for a in binary.arguments if a.kind == "variable"]
        self._phases = binary.launch.phases
        self._phase = self._variables.pop() if self._phases else ""
        self._entry = binary.entry

    def __call__(self, buffers: Sequence[int], variables: Sequence[int] = ()) -> None:
        """Execute the program on memory at the given addresses.

        Raises
        ------
        LaunchError
            If the number of buffers or variables is wrong.
        ExecutionError
            If the program does something undefined.
        """
        if len(buffers) != len(self._buffers) or len(variables) != len(self._variables):
            raise LaunchError(
                f"{self._entry} takes {len(self._buffers)} buffers and {len(self._variables)} variables; "
                f"{len(buffers)} and {len(variables)} were given"
            )
        arrays = {
            a.name: _array_at(address, a.dtype, a.shape)
            for a, address in zip(self._buffers, buffers, strict=True)
        }
        values = dict(zip(self._variables, variables, strict=True))
        for a in self._scratch:
            arrays[a.name] = np.empty(a.shape, to_numpy(as_dtype(a.dtype)))
        for phase in range(max(len(self._phases), 1)):
            self._interpreter(arrays, {**values, self._phase: phase} if self._phases else values)

    def time(self, buffers: Sequence[int], variables: Sequence[int] = ()) -> float:
        """Execute the program once and return how long that took, in seconds."""
        start = time.perf_counter()
        self(buffers, variables)
        return time.perf_counter() - start


def _array_at(address: int, dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the memory at an address as an array."""
    element, size = to_numpy(as_dtype(dtype)), math.prod(shape)
    memory = (ctypes.c_uint8 * (size * element.itemsize)).from_address(address)
    return np.ndarray(size, element, memoryview(memory))
