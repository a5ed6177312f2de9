"""The compiler's stages as functions: graph to kernels, kernel to source, source to binary, binary to
executable.

Everything here works for any target without a device; only `load` needs one.  What a target consists of
(its backend's capabilities, renderer and compiler, and the hooks over them) is gathered once in a
`Toolchain`.

The stages are imported when they are first used: a process that finds its plans in the cache lowers nothing.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from . import debug, registry
from .errors import DTypeError, ScheduleError
from .ir import ops
from .ir.uop import UOp
from .runtime.tuned import find, records_of

if TYPE_CHECKING:
    from .array.array import Array
    from .codegen.hooks import ResolvedHooks
    from .codegen.program import Program
    from .optimize.schedule import Schedule
    from .registry import Backend, Binary, Capabilities, Compiler, Executable, Source
    from .schedule.kernel import Kernel

_pinned: ContextVar[Schedule | None] = ContextVar("retarget_schedule", default=None)
_fast: ContextVar[bool] = ContextVar("retarget_fast_math", default=False)


class Toolchain:
    """Everything that turns kernels into binaries for one target; each part is loaded when it is first used.

    Attributes
    ----------
    target
        The target's full name.
    """

    def __init__(self, target: str) -> None:
        self.target = target

    @functools.cached_property
    def backend(self) -> Backend:
        """The target's backend."""
        return registry.backend(self.target.partition("/")[0])

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """What the target can do."""
        return self.backend.capabilities(self.target)

    @functools.cached_property
    def renderer(self) -> Any:
        """The backend's renderer."""
        return self.backend.renderer(self.target)

    @functools.cached_property
    def hooks(self) -> ResolvedHooks:
        """The renderer's hooks and those of the extensions over it."""
        return _resolve_hooks(self.target)

    @functools.cached_property
    def compiler(self) -> Compiler:
        """The backend's compiler."""
        return self.backend.compiler(self.target)

    def identity(self) -> str:
        """Return what, besides the kernel, decides the binary: part of every cache key.

        Renderer and extensions count by their files, and are not loaded for it.  An extension counts as long
        as it is not known to be broken: what was rendered is to be stored under the identity that holds then.
        """
        plugins = registry.registry().identity(self.target)
        return "\n".join((code_identity(), self.target, plugins, self.compiler.identity()))


_toolchains: dict[tuple[str, int], Toolchain] = {}
_lock = threading.Lock()


def toolchain(target: str) -> Toolchain:
    """Return the toolchain of a target ("clang/native", or "clang" for the backend's default target)."""
    key = (target, registry.registry().epoch)
    found = _toolchains.get(key)
    if found is None:
        made = Toolchain(registry.target(target))
        with _lock:
            found = _toolchains.setdefault(key, made)
    return found


@debug.stage("plugins", lambda hooks: f"{hooks.target}\n{hooks.identity()}")
def _resolve_hooks(target: str) -> ResolvedHooks:
    return registry.hooks(target)


@functools.cache
def code_identity() -> str:
    """Return a text that changes when Retarget's own code does."""
    from . import __version__
    from .registry.files import files_identity

    return f"{__version__}\n{files_identity([os.path.dirname(__file__)])}"  # noqa: PTH120 - spares pathlib


def lower(*arrays: Array) -> list[Kernel]:
    """Return the kernels that compute some lazy arrays, in an order in which they can run.

    Arrays that are already computed need none.
    """
    from .array.array import Array

    for a in arrays:
        if not isinstance(a, Array):
            raise DTypeError(f"lower takes lazy arrays, got {type(a).__name__}; make one with rt.asarray")
    roots = [a.node for a in arrays if a.node.op is not ops.BUFFER]
    return [k for _, k in lower_graph(roots)]


@debug.stage("kernels", lambda made: "\n\n".join(str(kernel) for _, kernel in made))
def lower_graph(roots: Sequence[UOp]) -> list[tuple[tuple[UOp, ...], Kernel]]:
    """Return (stored nodes, the kernel that computes them) for each kernel, in running order."""
    from .schedule.fusion import fuse
    from .schedule.lower import lower_group

    roots = [strip_reshape(r) for r in roots]
    roots = [r for r in dict.fromkeys(roots) if r.op is not ops.BUFFER]
    fusion = fuse(roots)
    return [(g, lower_group(g, fusion.stored)) for g in fusion.groups if 0 not in g[0].shape]


def strip_reshape(node: UOp) -> UOp:
    """Return the node whose buffer `node` can share: reshapes cost nothing."""
    while node.op is ops.RESHAPE:
        node = node.src[0]
    return node


@debug.stage("schedule", str)
def schedule_for(kernel: Kernel, tools: Toolchain) -> Schedule:
    """Return the schedule to use: pinned by the caller, chosen by a plugin, tuned, or the heuristics'."""
    pinned = _pinned.get()
    if pinned is not None:
        return pinned
    chosen = extension_schedule(kernel, tools)
    if chosen is not None:
        return chosen
    tuned = find(kernel, records_of(tools))
    if not tuned:
        return heuristic_schedule(kernel, tools)
    from .optimize.schedule import parse_schedule

    return parse_schedule(tuned)


def extension_schedule(kernel: Kernel, tools: Toolchain) -> Schedule | None:
    """Return the schedule that an extension plugin chooses, or None if none does."""
    if not tools.hooks.has("choose_schedule"):
        return None
    chosen = tools.hooks.chain("choose_schedule")(kernel, tools.target)
    if not isinstance(chosen, str):
        return chosen  # type: ignore[no-any-return]
    from .optimize.schedule import parse_schedule

    return parse_schedule(chosen)


def heuristic_schedule(kernel: Kernel, tools: Toolchain) -> Schedule:
    """Return the schedule that the built-in heuristics choose."""
    from .optimize.heuristics import choose_schedule

    return choose_schedule(kernel, tools.capabilities)


@contextmanager
def with_schedule(schedule: str | Schedule) -> Iterator[Schedule]:
    """Pin the schedule of every kernel that is compiled inside the `with` block.

    Raises
    ------
    ParseError
        If the text is malformed.  A schedule that is illegal for a kernel raises `ScheduleError` when it is
        applied.
    """
    from .optimize.schedule import parse_schedule

    value = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    token = _pinned.set(value)
    try:
        yield value
    finally:
        _pinned.reset(token)


@contextmanager
def fast_math() -> Iterator[None]:
    """Allow shorter formulas in every kernel that is compiled inside the `with` block.

    They are less accurate, and hold for a smaller range of arguments: `docs/accuracy.md` has their bounds.
    Functions under `rt.jit` keep what they were captured with.
    """
    token = _fast.set(True)
    try:
        yield
    finally:
        _fast.reset(token)


def is_fast_math() -> bool:
    """Whether `fast_math` is in force here."""
    return _fast.get()


def compile_options() -> str:
    """Return what `with_schedule` and `fast_math` ask for here, as a part of cache keys."""
    pinned, fast = _pinned.get(), _fast.get()
    if pinned is None and not fast:
        return ""
    # An empty schedule that is pinned is not the same as none: the heuristics do not choose then.
    return f"{'chosen' if pinned is None else f'pinned {pinned}'}{', fast math' if fast else ''}"


def _listing(program: Program) -> str:
    from .ir.text import dump_program

    return f"{program.name}\n{dump_program(program.uops)}"


@debug.stage("uops", _listing)
def program_of(kernel: Kernel, tools: Toolchain) -> Program:
    """Return a kernel's linear program for a target.

    Should the heuristics choose what is illegal, which is a bug of ours, the kernel gets plain loops and
    the user a warning: the result is right, and slow.
    """
    from .linearize.linearize import linearize
    from .optimize.apply import apply_schedule
    from .optimize.schedule import Schedule

    def lowered(schedule: Schedule) -> Program:
        scheduled = apply_schedule(kernel, schedule, tools.capabilities.tensor_cores)
        return linearize(scheduled, tools.capabilities, fast_math=_fast.get())

    schedule = schedule_for(kernel, tools)
    try:
        return lowered(schedule)
    except ScheduleError as error:
        if _pinned.get() is not None or schedule != heuristic_schedule(kernel, tools):
            raise
        program = lowered(Schedule())
        warnings.warn(
            f"{program.name} runs in plain loops, since its schedule is illegal, which is a bug of Retarget: "
            f"{schedule}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return program


@debug.stage("source", lambda source: source.text)
def source_of(program: Program, tools: Toolchain, *, provenance: bool = False) -> Source:
    """Return a linear program's source for a target."""
    from .codegen.driver import emit

    return emit(program, tools.renderer, tools.hooks, provenance=provenance)


@debug.stage("compile", str)
def binary_of(source: Source, tools: Toolchain) -> Binary:
    """Return the binary of a source."""
    return tools.compiler.compile(source)


def build(kernel: Kernel, tools: Toolchain) -> Binary:
    """Return a kernel's binary, and tell the plugins that look at what was compiled."""
    source = source_of(program_of(kernel, tools), tools)
    binary = binary_of(source, tools)
    if tools.hooks.has("on_compiled"):
        tools.hooks.chain("on_compiled")(kernel, source, binary)
    return binary


def render(kernel: Kernel, target: str, *, provenance: bool = False) -> Source:
    """Return a kernel's source for a target; no device is needed.

    Parameters
    ----------
    kernel
        One of `lower`'s.
    target
        "llvm/native", "clang" ...
    provenance
        Whether the result says for each line which uop, hook and plugin wrote it.
    """
    tools = toolchain(target)
    return source_of(program_of(kernel, tools), tools, provenance=provenance)


def compile(kernel: Kernel, target: str) -> Binary:
    """Return a kernel's binary for a target; no device is needed.

    Raises
    ------
    CompileError
        If the target's compiler is missing or refuses the source.
    """
    return build(kernel, toolchain(target))


def load(binary: Binary, device: str | None = None) -> Executable:
    """Return a binary as something to launch on a device (None: the default device)."""
    info = registry.device(device)
    executable: Executable = runtime(info.name).load(binary)
    return executable


def synchronize(device: str | None = None) -> None:
    """Wait until everything that was launched on a device (None: the default device) is done."""
    runtime(registry.device(device).name).synchronize()


@functools.cache
def runtime(device: str) -> Any:
    """Return the runtime of a device by its full name."""
    return registry.backend(device.partition(":")[0]).runtime(device)
