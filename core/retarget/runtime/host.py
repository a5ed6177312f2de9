"""The runtime of CPU devices: host memory, and kernels as functions of this process.

A kernel is `void NAME(void **buffers, int64_t *variables, int64_t begin, int64_t end)`: it runs the pieces
[begin, end) of its `Launch.chunks`.  `Binary.data` is a relocatable object file that defines NAME.  A
launch is one direct call without the GIL; with more than one chunk, the thread pool makes it.  Handles are
addresses.
"""

from __future__ import annotations

import ctypes
import functools
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from _cffi_backend import FFI

from ..errors import DeviceError, LaunchError
from ..ir.dtypes import as_dtype
from .allocator import Allocator, host_allocator
from .objects import load_object
from .pool import MAX_CHUNKS, thread_pool

if TYPE_CHECKING:
    from ..registry.backend import Binary

__all__ = ["HostExecutable", "HostRuntime"]

_ffi = FFI()
_KERNEL = _ffi.typeof("void(*)(void *, void *, int64_t, int64_t)")


def _address(array: Any) -> int:
    return int(_ffi.cast("uintptr_t", array))


class HostExecutable:
    """A loaded CPU kernel.

    Attributes
    ----------
    binary
        What it was loaded from.
    """

    def __init__(self, binary: Binary) -> None:
        chunks = binary.launch.chunks
        if not 1 <= chunks <= MAX_CHUNKS:
            raise LaunchError(f"kernel {binary.entry!r} has {chunks} chunks; 1 to {MAX_CHUNKS} are possible")
        self.binary = binary
        self._object = load_object(binary.data)
        self._address = self._object.symbol(binary.entry)
        self._function: Any = _ffi.cast(_KERNEL, self._address)
        self._chunks = chunks
        buffers = [a for a in binary.arguments if a.kind == "buffer"]
        self._phases = binary.launch.phases
        self._aligned = binary.launch.aligned
        self._buffer_count = len(buffers) - binary.launch.scratch
        self._variable_count = len(binary.arguments) - len(buffers) - (1 if self._phases else 0)
        scratch = buffers[self._buffer_count :]
        self._scratch = [math.prod(a.shape) * as_dtype(a.dtype).itemsize for a in scratch]
        # Argument arrays for reuse, one per call that is under way: taken and given back by one atomic
        # operation each, so that threads and calls within calls (from a finalizer, say) never share one.
        self._spare: list[_Arguments] = []

    def __call__(self, buffers: Sequence[int], variables: Sequence[int] = ()) -> None:
        """Launch on raw handles in the order of `binary.arguments`, and return when the kernel is done.

        Raises
        ------
        LaunchError
            If the number of buffers or variables is not the kernel's, or one of them is no 64-bit integer,
            or an output has to be aligned and is not.
        """
        if self._aligned:
            self._check_alignment(buffers)
        try:
            arguments = self._spare.pop()
        except IndexError:
            arguments = _Arguments(self._buffer_count, self._variable_count, self._scratch)
        try:
            # A slice assignment checks the number of values.
            arguments.buffers[0 : self._buffer_count] = buffers
            if variables or self._variable_count:
                arguments.variables[0 : self._variable_count] = variables
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            raise self._mismatch(buffers, variables, error) from error
        if self._phases:
            _run_phases(self._function, self._address, arguments, self._phases)
        elif self._chunks == 1:
            self._function(arguments.buffers, arguments.variables, 0, 1)
        else:
            _run_parallel(self._address, arguments, self._chunks)
        self._spare.append(arguments)

    def bind(self, buffers: Sequence[int], variables: Sequence[int] = ()) -> Callable[[], None]:
        """Pack the arguments once; return a function without parameters that launches on them each time.

        The function keeps the kernel loaded, not the buffers.  Calls of it may overlap, unless the kernel has
        scratch buffers: they are the function's own.
        """
        if self._aligned:
            self._check_alignment(buffers)
        arguments = _Arguments(self._buffer_count, self._variable_count, self._scratch)
        try:
            arguments.buffers[0 : self._buffer_count] = buffers
            arguments.variables[0 : self._variable_count] = variables
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            raise self._mismatch(buffers, variables, error) from error
        launch: functools.partial[None]
        if self._phases:
            launch = functools.partial(_run_phases, self._function, self._address, arguments, self._phases)
        elif self._chunks == 1:  # no Python frame: a replay spends its time in the kernel
            launch = functools.partial(self._function, arguments.buffers, arguments.variables, 0, 1)
        else:
            launch = functools.partial(_run_parallel, self._address, arguments, self._chunks)
        launch.__dict__["executable"] = self  # keeps the code in memory
        return launch

    def time(self, buffers: Sequence[int], variables: Sequence[int] = ()) -> float:
        """Launch once; return the seconds from the start of the call to its end."""
        launch = self.bind(buffers, variables)
        start = time.perf_counter()
        launch()
        return time.perf_counter() - start

    def _check_alignment(self, buffers: Sequence[int]) -> None:
        for n, address in enumerate(buffers[: self._aligned]):
            if address % 64:
                raise LaunchError(
                    f"output {n} of kernel {self.binary.entry!r} is at {address:#x} and has to be aligned to "
                    "64 bytes: it is stored past the caches; memory of the runtime's allocator is"
                )

    def _mismatch(self, buffers: Sequence[int], variables: Sequence[int], error: Exception) -> LaunchError:
        given = [a for a in self.binary.arguments if a.kind == "buffer"][: self._buffer_count]
        given += [a for a in self.binary.arguments if a.kind == "variable"][: self._variable_count]
        wanted = ", ".join(f"{a.name}: {a.dtype} {a.kind}" for a in given)
        return LaunchError(
            f"kernel {self.binary.entry!r} takes {self._buffer_count} buffers and {self._variable_count} "
            f"variables ({wanted}); got {len(buffers)} and {len(variables)} ({error})"
        )


class _Arguments:
    """The two arrays that a kernel reads its arguments from, and its scratch memory.

    Behind the buffers stand those of `scratch`, and behind the variables the number of a phase.
    """

    __slots__ = ("__weakref__", "buffers", "buffers_address", "variables", "variables_address")

    def __init__(self, buffers: int, variables: int, scratch: Sequence[int] = ()) -> None:
        self.buffers: Any = _ffi.new("uintptr_t[]", buffers + len(scratch))
        self.variables: Any = _ffi.new("int64_t[]", variables + 1)
        if scratch:
            allocator = host_allocator()
            for n, size in enumerate(scratch, buffers):
                self.buffers[n] = address = allocator.allocate(size)
                weakref.finalize(self, allocator.free, address).atexit = False
        self.buffers_address = _address(self.buffers)
        self.variables_address = _address(self.variables)


def _run_parallel(kernel: int, arguments: _Arguments, chunks: int) -> None:
    thread_pool().run(kernel, arguments.buffers_address, arguments.variables_address, chunks)


def _run_phases(function: Any, address: int, arguments: _Arguments, phases: Sequence[int]) -> None:
    variables = arguments.variables
    at = len(variables) - 1
    for n, chunks in enumerate(phases):
        variables[at] = n
        if chunks == 1:
            function(arguments.buffers, variables, 0, 1)
        else:
            _run_parallel(address, arguments, chunks)


class HostRuntime:
    """Memory and launch on the CPU; implements `retarget.registry.Runtime`.

    Parameters
    ----------
    allocator
        Where memory comes from; all runtimes share the process's by default.
    """

    def __init__(self, allocator: Allocator | None = None) -> None:
        self.allocator = host_allocator() if allocator is None else allocator
        self.allocate = self.allocator.allocate

    def free(self, handle: int) -> None:
        """Take back a block; raises `DeviceError` if none in use starts there."""
        self.allocator.free(handle)

    def copy_in(self, handle: int, data: memoryview) -> None:
        """Copy contiguous host data to the start of a block."""
        if data.nbytes:
            self._check(handle, data, "into")
            _memmove(handle, _address(_ffi.from_buffer(data)), data.nbytes)

    def copy_out(self, data: memoryview, handle: int) -> None:
        """Copy as many bytes as `data` has from the start of a block."""
        if data.nbytes:
            self._check(handle, data, "out of")
            if data.readonly:
                raise DeviceError("cannot copy out of device memory: the host memory is read-only")
            _memmove(_address(_ffi.from_buffer(data)), handle, data.nbytes)

    def load(self, binary: Binary) -> HostExecutable:
        """Load a kernel; raises `CompileError` if its object file cannot be loaded."""
        return HostExecutable(binary)

    def synchronize(self) -> None:
        """Return at once: launches return only when they are done."""

    def host_address(self, handle: int) -> int:
        """Return the handle: it is an address."""
        return handle

    def _check(self, handle: int, data: memoryview, direction: str) -> None:
        if not data.c_contiguous:
            raise DeviceError(f"cannot copy {direction} device memory: the host data is not contiguous")
        size = self.allocator.size(handle)  # None for memory that others own
        if size is not None and data.nbytes > size:
            raise DeviceError(f"cannot copy {data.nbytes} bytes {direction} a block of {size} bytes")


# By cffi, whose calls release the GIL.
_memmove: Any = _ffi.cast(
    "void *(*)(uintptr_t, uintptr_t, size_t)", ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
