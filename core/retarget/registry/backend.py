"""The contract between the core and a backend: one typed class, and the small types that pass between them.

These, and the records of other modules that every process imports, are named tuples: a new process makes such
a class in a fifth of the time that a frozen dataclass takes.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .capabilities import Capabilities


class DeviceInfo(NamedTuple):
    """One device that a backend found.

    Attributes
    ----------
    name
        "cuda:0"; the part before the colon is the backend's name.
    target
        The target that code for it is generated for, e.g. "cuda/sm_90a".
    description
        What a person calls it, e.g. "AMD EPYC 7763, 2 cores".
    memory
        Bytes of memory, 0 if unknown.
    """

    name: str
    target: str
    description: str = ""
    memory: int = 0


class Probe(NamedTuple):
    """What `Backend.probe` found: devices, or the reason why there are none and what would help."""

    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""


class Argument(NamedTuple):
    """One parameter of a kernel, in call order.

    `kind` is "buffer" (a pointer to `dtype` elements), "image" (of `shape` height, width and four elements a
    texel; on a device where images are memory, in that order) or "variable" (an integer bound at launch).
    Sizes that depend on variables stand in `shape` as the largest that they can be.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    writable: bool = False


class Launch(NamedTuple):
    """How a kernel is started.

    `grid` and `block` are the sizes on a device with a grid; `chunks` is the number of independent pieces
    that a CPU kernel's thread axis has (1: not parallel).  A kernel that clears no output itself needs
    nothing else.  A size that depends on variables is the text of a Python expression of their names.

    A block on a device with a grid has `local_bytes` of local memory; `linearize.local` says where its arrays
    lie, should they be one piece.

    A CPU kernel with `phases` is run once for each, one after the other, with that many chunks: its last
    variable is the number of the phase, and its last `scratch` buffers are memory that the runtime provides
    and that keeps its content from one phase to the next.  The first `aligned` buffers have to be aligned to
    64 bytes.
    """

    grid: tuple[int | str, ...] = ()
    block: tuple[int | str, ...] = ()
    chunks: int = 1
    phases: tuple[int, ...] = ()
    scratch: int = 0
    aligned: int = 0
    local_bytes: int = 0

    def sizes(self, variables: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the grid and the block along x, y, z for one launch."""
        return (
            tuple([n if isinstance(n, int) else _evaluate(n, variables) for n in self.grid]),
            tuple([n if isinstance(n, int) else _evaluate(n, variables) for n in self.block]),
        )


def _evaluate(text: str, variables: Mapping[str, int]) -> int:
    """Return the value of an expression made of names, integers and + - * // %."""
    import ast

    def value(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(n)):
                return n
            case ast.Name(id=name):
                return variables[name]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -value(x)
            case ast.BinOp(left=x, op=op, right=y) if type(op) in operators:
                return operators[type(op)](value(x), value(y))
        raise ValueError(f"{text!r} is no launch size: it is made of names, integers and + - * // %")

    operators: dict[type, Callable[[int, int], int]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    }  # fmt: skip
    return value(ast.parse(text, mode="eval").body)


class Source(NamedTuple):
    """Rendered code.  `entry` is the symbol; `provenance` says who wrote each line, when asked for."""

    text: str
    entry: str
    target: str
    arguments: tuple[Argument, ...]
    launch: Launch
    provenance: tuple[Any, ...] = ()


class Binary(NamedTuple):
    """Compiled code, ready to load on any device of `target`.  `data` is what the disk cache keeps."""

    data: bytes
    entry: str
    target: str
    arguments: tuple[Argument, ...]
    launch: Launch
    log: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})


class Compiler(Protocol):
    """Turns source into binary.  Must be safe to call from several threads at once."""

    def identity(self) -> str:
        """Return all that changes the output (name, version, flags, CPU features); part of cache keys."""
        ...

    def compile(self, source: Source) -> Binary:
        """Compile, or raise `CompileError` with the compiler's log."""
        ...

    def assembly(self, binary: Binary) -> str:
        """Return the binary as assembly text, or raise `CompileError` saying which tool is missing."""
        ...


class Executable(Protocol):
    """A loaded kernel.  Calling it launches it on raw buffer handles, outputs first, and releases the GIL."""

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None: ...

    def time(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> float:
        """Launch once, wait, and return the device's time in seconds."""
        ...


class Runtime(Protocol):
    """Memory and launch on one device.  Handles are opaque to the core (an address on a CPU)."""

    def allocate(self, nbytes: int) -> Any: ...
    def free(self, handle: Any) -> None: ...
    def copy_in(self, handle: Any, data: memoryview) -> None: ...
    def copy_out(self, data: memoryview, handle: Any) -> None: ...
    def load(self, binary: Binary) -> Executable: ...
    def synchronize(self) -> None: ...
    def host_address(self, handle: Any) -> int | None:
        """Return the address by which the host can read the memory, or None where it cannot."""
        ...


class Backend(ABC):
    """What a backend package provides; the manifest's `provides` names a subclass.

    Instances are made once per process, without arguments, after the manifest's versions were
    checked.  `probe` may be slow or fail; everything else is called only if it found a device, except
    `capabilities`, `renderer` and `compiler`, which must work for any target in the manifest with no device
    present.
    """

    name: str

    @abstractmethod
    def probe(self) -> Probe:
        """Look for devices.  Return a reason instead of raising when there are none."""

    @abstractmethod
    def capabilities(self, target: str) -> Capabilities: ...

    @abstractmethod
    def renderer(self, target: str) -> Any:
        """Return a `retarget.codegen.Renderer` for the target, whose methods implement the render hooks."""

    def identity(self, target: str) -> str:
        """Return what, besides its code and its compiler, changes the code for a target; part of cache keys.

        By default that is the renderer's identity, which takes the renderer to say.  A backend that can tell
        without importing it spares that to processes that find all they need in the cache.
        """
        identity: str = self.renderer(target).identity()
        return identity

    @abstractmethod
    def compiler(self, target: str) -> Compiler: ...

    @abstractmethod
    def runtime(self, device: str) -> Runtime: ...
