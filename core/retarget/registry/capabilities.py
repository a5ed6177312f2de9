"""What a target can do, as data: all that the lowering, the conformance suite and `rt.select` know of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Literal, NamedTuple


class Support(Enum):
    """How a target has a capability.  EMULATED works more slowly, expanded in the IR or the plugin."""

    SUPPORTED = "supported"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class Entry(NamedTuple):
    """One capability: how it is supported, and why when it is not plainly so."""

    support: Support
    reason: str = ""

    def __bool__(self) -> bool:
        return self.support in (Support.SUPPORTED, Support.EMULATED)


class Limits(NamedTuple):
    """Hard limits of a target; zero or an empty tuple means that there is none.

    Attributes
    ----------
    arguments
        Buffers and variables that one kernel may take.
    grid, block
        Largest launch size along x, y, z.
    block_threads
        Largest number of threads in a block.
    local_bytes
        Local (shared) memory that one block may use, in bytes; on a CPU, stack that one kernel may use.
    warp
        Threads that run together and exchange values by SHUFFLE: warp axes hold at most that many.
    image
        Most texels of an image along x and y.
    """

    arguments: int = 0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    block_threads: int = 0
    local_bytes: int = 0
    warp: int = 0
    image: tuple[int, ...] = ()


class TensorCore(NamedTuple):
    """A matrix instruction D = A @ B + C as data: dims, dtypes and where each element of each fragment lives.

    A dot-product instruction of a CPU is one with `threads` 1: its fragments are vector registers.

    Lane `l`'s element `e` of fragment A is A[row, k] with (row, k) = `a_layout(l, e)`; of B, B[k, col] with
    (k, col) = `b_layout(l, e)`; of C and D, C[row, col] with (row, col) = `c_layout(l, e)`.  Layouts are
    given as the full table, indexed [lane][element].
    """

    name: str
    dims: tuple[int, int, int]  # N, M, K, as the instruction sees them
    dtype_in: str
    dtype_out: str
    threads: int
    a_layout: tuple[tuple[tuple[int, int], ...], ...]
    b_layout: tuple[tuple[tuple[int, int], ...], ...]
    c_layout: tuple[tuple[tuple[int, int], ...], ...]
    dtype_b: str = ""  # of B, where it is not that of A
    loses: str = ""  # what exact products summed in dtype_out have and this has not; needs rt.fast_math()


class Capabilities(NamedTuple):
    """Everything that the core needs to know about a target.

    Attributes
    ----------
    target
        The target's name, e.g. "llvm/x86-64-v3".
    storage, arithmetic
        By dtype name: whether arrays of it can live in memory, and whether the target computes in
        it.  Arithmetic that is EMULATED is done by the core: each operation in float32, rounded back.
    functions
        Native functions: op name -> dtype name -> accuracy in ULP.  An op that is absent is expanded in the
        IR.
    conversions
        Dtypes besides float32 and float64 that the target converts to and from float32 with its own CAST; the
        core converts the others with integer arithmetic on their bits.
    vector_bits
        Width of the vector ALU in bits, 0 where there is none (a GPU thread): sets how wide `vector` axes
        are.
    vector_memory_bits
        Widest single load or store in bits.
    registers
        Vector registers (CPU) or 32-bit registers a thread (GPU) that a register tile may count on.
    caches
        Data cache sizes in bytes, from the first level outward, per core.
    axis_kinds
        Schedule axis kinds that the target can map, of: grid, block, warp, thread, loop, unroll, vector.
    unroll
        How unrolled loops are emitted: "pragma" (a loop that the compiler unrolls) or "replay" (the driver
        repeats the body with the index bound to a constant).
    address_spaces
        Of: global, local, register, constant.
    barriers, images, async_copies, fork_safe
        Whether blocks can synchronise; whether image buffers exist; whether memory can be copied to local
        memory in the background; whether a forked child may go on using it.
    threads
        Host threads that one launch may use.
    """

    target: str
    storage: Mapping[str, Entry]
    arithmetic: Mapping[str, Entry]
    functions: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    conversions: frozenset[str] = frozenset()
    vector_bits: int = 0
    vector_memory_bits: int = 0
    registers: int = 16
    caches: tuple[int, ...] = ()
    axis_kinds: frozenset[str] = frozenset({"loop", "unroll", "vector"})
    unroll: Literal["pragma", "replay"] = "pragma"
    address_spaces: frozenset[str] = frozenset({"global", "register"})
    limits: Limits = Limits()
    barriers: Entry = Entry(Support.UNSUPPORTED, "no blocks")
    images: Entry = Entry(Support.UNSUPPORTED, "no image units")
    async_copies: Entry = Entry(Support.UNSUPPORTED, "copies to local memory go through registers")
    fork_safe: bool = True
    threads: int = 1
    tensor_cores: tuple[TensorCore, ...] = ()
