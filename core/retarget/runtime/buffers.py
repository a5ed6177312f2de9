"""Buffers: memory on a device, owned by the BUFFER nodes of graphs, and the ways in and out of it.

A `Buffer` frees its memory when the last node that refers to it is gone.  Memory that came in through DLPack
is shared, and kept alive by holding on to the object that it came from.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..errors import CopyError, DeviceError, DTypeError
from ..ir import dtypes
from ..ir.dtypes import DType
from ..ir.uop import UOp, new_buffer, numel
from ..pipeline import runtime

if TYPE_CHECKING:
    import numpy as np

_numbers = itertools.count(1)
_CPU = (1, 0)  # DLPack's device type kDLCPU, and its number


class Buffer:
    """Memory on one device.

    Attributes
    ----------
    handle
        What the device's runtime calls it: an address on a CPU.
    nbytes
        Its size.
    device
        The device's name.
    owner
        The object whose memory it is, for shared memory; None when it was allocated by the runtime.
    """

    __slots__ = ("__weakref__", "_free", "device", "handle", "nbytes", "owner")

    def __init__(self, handle: Any, nbytes: int, device: str, free: Any = None, owner: Any = None) -> None:
        self.handle, self.nbytes, self.device, self._free, self.owner = handle, nbytes, device, free, owner

    def __del__(self) -> None:
        if self._free is not None:
            self._free(self.handle)


def allocate(nbytes: int, device: str) -> Buffer:
    """Return uninitialized memory on a device."""
    on = runtime(device)
    return Buffer(on.allocate(nbytes), nbytes, device, on.free)


def buffer_node(buffer: Buffer, dtype: DType, shape: tuple[int, ...]) -> UOp:
    """Return a new BUFFER node over a buffer."""
    return new_buffer(dtype, (next(_numbers), shape, buffer.device), buffer)


def placeholder_node(dtype: DType, shape: tuple[int, ...], device: str) -> UOp:
    """Return a new BUFFER node that stands for a buffer of which nothing but dtype and shape is known."""
    return new_buffer(dtype, (next(_numbers), shape, device), None)


def data_of(node: UOp) -> Buffer:
    """Return the buffer of a BUFFER node.

    Raises
    ------
    DeviceError
        If the node was parsed from text: it names a buffer, but holds none.
    """
    if node.data is None:
        raise DeviceError(
            f"buffer {node.arg[0]} is only a name, from parsed text or for an argument under rt.jit"
        )
    return node.data  # type: ignore[no-any-return]


def from_numpy(array: np.ndarray[Any, Any], device: str) -> UOp:
    """Return a BUFFER node with a copy of a NumPy array's values."""
    import numpy as np

    native = np.asarray(array, order="C")
    buffer = allocate(native.nbytes, device)
    if native.nbytes:
        runtime(device).copy_in(buffer.handle, native.reshape(-1).view(np.uint8).data)
    return buffer_node(buffer, dtypes.as_dtype(array.dtype), tuple(array.shape))


def to_numpy(node: UOp) -> np.ndarray[Any, Any]:
    """Return a BUFFER node's values as a new NumPy array."""
    import numpy as np

    buffer = data_of(node)
    out = np.empty(node.shape, dtypes.to_numpy(node.dtype))
    if out.nbytes:
        runtime(buffer.device).copy_out(out.reshape(-1).view(np.uint8).data, buffer.handle)
    return out


class _HostView:
    """Tells NumPy where a buffer's memory is; the array that NumPy makes of it keeps the buffer alive."""

    def __init__(self, buffer: Buffer, address: int, dtype: DType, shape: tuple[int, ...]) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": dtypes.to_numpy(dtype).str, "data": (address, False),
        }  # fmt: skip


def host_view(node: UOp) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the memory of a BUFFER node, without a copy.

    Raises
    ------
    DeviceError
        If the host cannot read the device's memory.
    """
    import numpy as np

    buffer = data_of(node)
    on = runtime(buffer.device)
    address = on.host_address(buffer.handle)
    if address is None:
        raise DeviceError(
            f"the memory of {buffer.device} cannot be read by the host; copy it with numpy.asarray(x)"
        )
    if not buffer.nbytes:
        return np.empty(node.shape, dtypes.to_numpy(node.dtype))
    plain = dtypes.to_numpy(node.dtype)
    if plain.kind == "V":  # ml_dtypes: NumPy's array interface has no name for them
        raw = dtypes.uint16 if node.dtype.bits == 16 else dtypes.uint8
        return np.asarray(_HostView(buffer, address, raw, node.shape)).view(plain)
    return np.asarray(_HostView(buffer, address, node.dtype, node.shape))


def from_dlpack(source: Any, device: str) -> UOp:
    """Return a BUFFER node over a `__dlpack__` object's memory, shared if contiguous and the host's."""
    import numpy as np

    try:
        array = np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError) as error:
        raise DTypeError(f"{type(source).__name__} cannot be shared with a CPU device: {error}") from error
    on = runtime(device)
    if (
        not array.flags.c_contiguous
        or not array.nbytes
        or on.host_address(array.ctypes.data) != array.ctypes.data
    ):
        return from_numpy(array, device)
    shared = Buffer(array.ctypes.data, array.nbytes, device, owner=array)
    return buffer_node(shared, dtypes.as_dtype(array.dtype), tuple(array.shape))


def to_dlpack(
    node: UOp, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """Return a DLPack capsule over a BUFFER node's memory."""
    if dl_device is not None and tuple(dl_device) != _CPU:
        raise CopyError(
            f"a copy to DLPack device {tuple(dl_device)} is not supported; export to the CPU, {_CPU}"
        )
    if stream is not None:
        raise DeviceError("CPU memory has no stream: pass stream=None")
    view = host_view(node)
    if copy:
        view = view.copy()
    try:
        return view.__dlpack__(max_version=max_version)
    except BufferError as error:
        raise DTypeError(
            f"DLPack cannot carry {node.dtype} through NumPy: cast it first ({error})"
        ) from error


def dlpack_device(device: str) -> tuple[int, int]:
    """Return DLPack's (type, number) of a device."""
    probe = allocate(1, device)
    if runtime(device).host_address(probe.handle) is None:
        raise DeviceError(f"{device} has no DLPack export")
    return _CPU


def nbytes_of(dtype: DType, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of an array."""
    return numel(shape) * dtype.itemsize
