"""Compute graphs: look up or make a plan for the graph's normal form, then run it.

A *plan* is a list of launches over numbered slots; it depends on a graph's structure, not on its buffers, so
it serves every graph of that form.  Plans are kept in memory, and on disk with their binaries: a new process
that finds its graph there lowers nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ..errors import DeviceError, InternalError, ShapeError
from ..ir import ops
from ..ir.dtypes import DType, parse_dtype
from ..ir.sizes import evaluate
from ..ir.text import dump, format_arg, parse_arg
from ..ir.uop import UOp, numel, toposort
from ..pipeline import (
    build,
    compile_options,
    lower_graph,
    runtime,
    strip_reshape,
    toolchain,
)
from ..registry import Argument, Binary, Launch, registry
from ..registry import device as find_device
from . import buffers
from .buffers import Buffer
from .diskcache import digest, disk_cache
from .tuned import find, records_of
from .tuned import state as tuned_state

T = TypeVar("T")


class Step(NamedTuple):
    """One launch: `executable` on the buffers in `slots`, outputs first."""

    executable: Any
    slots: tuple[int, ...]


class Plan(NamedTuple):
    """How to compute a graph.

    Attributes
    ----------
    inputs
        Number of inputs; they take slots 0, 1 ...
    sizes
        Bytes of each further slot.
    steps
        The launches, in order.
    results
        For each root: slot, dtype, shape.
    last_use
        For each step, the slots that nothing needs after it.
    variables
        For each step, the names of the variables that it takes, in order; empty where no size is bound at
        launch.  Only `bind` of such a plan gives one that runs.
    """

    inputs: int
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[tuple[int, DType, tuple[int, ...]], ...]
    last_use: tuple[tuple[int, ...], ...]
    variables: tuple[tuple[str, ...], ...] = ()

    def bind(self, values: Mapping[str, int]) -> Plan:
        """Return the plan for these values of the variables: its sizes and shapes are ints."""
        steps = []
        for step, names in zip(self.steps, self.variables, strict=True):
            bound = tuple([values[n] for n in names])
            executable = functools.partial(step.executable, variables=bound) if names else step.executable
            steps.append(Step(executable, step.slots))
        sizes = tuple([evaluate(n, values) for n in self.sizes])
        results = tuple([(s, d, tuple([evaluate(n, values) for n in shape])) for s, d, shape in self.results])
        return Plan(self.inputs, sizes, tuple(steps), results, self.last_use)

    def run(self, inputs: Sequence[Buffer], device: str) -> list[Buffer | None]:
        """Launch everything; return the slots' buffers (results are there, temporaries may be gone)."""
        on = runtime(device)
        allocate, free = on.allocate, on.free
        slots: list[Buffer | None] = list(inputs)
        slots += [None] * len(self.sizes)
        first = self.inputs
        sizes = self.sizes
        for step, dead in zip(self.steps, self.last_use, strict=True):
            handles = []
            for n in step.slots:
                b = slots[n]
                if b is None:
                    size = sizes[n - first]
                    b = slots[n] = Buffer(allocate(size), size, device, free)
                handles.append(b.handle)
            step.executable(handles)
            for n in dead:
                slots[n] = None
        for n, _, _ in self.results:
            if slots[n] is None:  # nothing to compute: a zero-size result
                slots[n] = Buffer(allocate(0), 0, device, free)
        return slots


class Once:
    """A cache whose entries are made once, by whichever thread asks first; the others wait for it."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        return self._values.get(key)

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value for `key`, calling `make` if there is none; a failure is not kept."""
        found: T | None = self._values.get(key)
        if found is not None:
            return found
        with self._lock:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            found = self._values.get(key)
            if found is None:
                found = self._values[key] = make()
        self._making.pop(key, None)
        return found

    def clear(self) -> None:
        self._values.clear()


_plans = Once()
_kernels = Once()


def clear_memory_cache() -> None:
    """Forget plans and kernels of this process; the disk cache stays."""
    _plans.clear()
    _kernels.clear()


def normal_form(roots: Sequence[UOp]) -> tuple[tuple[Any, ...], list[UOp]]:
    """Return (a hashable key of the graph's structure, its BUFFER nodes in the order in which the key numbers
    them).

    This runs for every evaluation, so it is one loop.  Constants stand in the key as themselves: they are
    interned.
    """
    number: dict[UOp, int] = {}
    inputs: list[UOp] = []
    key: list[Any] = []
    stack = list(reversed(roots))
    pop, push, append = stack.pop, stack.append, key.append
    buffer, constant, expand = ops.BUFFER, ops.CONST, ops.EXPAND
    while stack:
        u = pop()
        if u in number:
            continue
        src = u.src
        if not src:
            if u.op is buffer:
                inputs.append(u)
                append((u.dtype, u.arg[1]))
            else:
                append(u)
        elif u.op is expand and (src[0].op is constant or (src[0].src and src[0].src[0].op is constant)):
            append(u)
        else:
            numbers = []
            for s in src:
                n = number.get(s)
                if n is None:
                    break
                numbers.append(n)
            else:
                append((u.op, u.dtype, u.arg, *numbers))
                number[u] = len(number)
                continue
            push(u)
            for s in reversed(src):
                if s not in number:
                    push(s)
            continue
        number[u] = len(number)
    key.append(tuple([number[r] for r in roots]))
    return tuple(key), inputs


def _key_text(key: tuple[Any, ...], symbolic: bool) -> str:
    """Return a key as text that means the same in every process."""
    form = format_arg if symbolic else repr  # alike, but for sizes
    return "\n".join([dump(k) if isinstance(k, UOp) else form(k) for k in key])


def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """Compute graph nodes on a device and return a BUFFER node for each.

    Parameters
    ----------
    nodes
        Graph nodes; BUFFER nodes are returned as they are.
    device
        The device's full name.

    Raises
    ------
    DeviceError
        If an input lives on another device, and no COPY brings it here.
    """
    roots = [n for n in dict.fromkeys(nodes) if n.op is not ops.BUFFER]
    if not roots:
        return list(nodes)
    if _state.capturing:
        from .jit import CaptureError

        raise CaptureError(
            "a function under rt.jit asked for a value: it may only build arrays; move that outside"
        )
    key, inputs = normal_form(roots)
    for u in inputs:
        if u.arg[2] != device:
            moved = _copies(nodes, device)
            if moved == list(nodes):
                raise DeviceError(
                    f"an operand is on {u.arg[2]}, the result on {device}; use x.to_device({device!r})"
                )
            return realize(moved, device)
    plan = _find_plan(roots, key, inputs, device)
    if plan is None:  # copies of constants, or there and back; looking for them costs other graphs nothing
        return realize(_copies(nodes, device), device)
    if plan.variables:
        raise _unbound()
    slots = plan.run([buffers.data_of(u) for u in inputs], device)
    done = {}
    for root, (slot, dtype, shape) in zip(roots, plan.results, strict=True):
        buffer = slots[slot]
        if buffer is None:
            raise InternalError(f"no kernel computed {root.op} of shape {shape}")
        done[root] = buffers.buffer_node(buffer, dtype, shape)
    return [done.get(n, n) for n in nodes]


def _unbound() -> ShapeError:
    return ShapeError("an array of a size bound at launch is computed outside rt.jit(f, symbolic=...)")


def plan_for(roots: Sequence[UOp], device: str, symbolic: bool = False) -> tuple[Plan, list[UOp]]:
    """Return the plan for graph nodes, and the BUFFER nodes that are its inputs, in order.

    With `symbolic`, sizes may be bound at launch, and the plan has to be bound before it runs.
    """
    key, inputs = normal_form(roots)
    for u in inputs:
        if u.arg[2] != device:
            raise DeviceError(
                f"an array on {u.arg[2]} is used in a function captured on {device}; move it first"
            )
    plan = _find_plan(roots, key, inputs, device, symbolic)
    if plan is None:
        raise DeviceError(f"a function captured on {device} copies between devices; move that outside")
    return plan, inputs


def _find_plan(
    roots: Sequence[UOp], key: tuple[Any, ...], inputs: Sequence[UOp], device: str, symbolic: bool = False
) -> Plan | None:
    """Return the plan for graph nodes, or None if the graph copies between devices."""
    options = compile_options()
    full_key = (device, options, registry().epoch, key)
    plan: Plan | None = _plans.get(full_key)
    if plan is None:
        if any(u.op is ops.COPY for u in toposort(roots)):
            return None
        plan = _plans.get_or_make(full_key, lambda: _make_plan(roots, key, inputs, device, options, symbolic))
    return plan


class _State(threading.local):
    capturing = False


_state = _State()


@contextmanager
def capturing() -> Iterator[None]:
    """Forbid computing in this thread inside the `with` block: a function is being captured."""
    before = _state.capturing
    _state.capturing = True
    try:
        yield
    finally:
        _state.capturing = before


def _copies(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """Return the graph with COPY nodes replaced by buffers on `device`, each computed where it comes from."""
    done: dict[UOp, UOp] = {}
    stack = list(nodes)
    while stack:
        u = stack[-1]
        if u.op is ops.COPY and u not in done:
            if u.arg != device:
                raise DeviceError(
                    f"an operand is on {u.arg}, the result on {device}; use x.to_device({device!r})"
                )
            done[u] = _copied(u.src[0], device)  # what is behind it is the other device's business
        waiting = [] if u in done else [s for s in u.src if s not in done]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if u not in done:
            src = tuple([done[s] for s in u.src])
            done[u] = u if src == u.src else u.replace(src)
    return [done[n] for n in nodes]


def _copied(node: UOp, device: str) -> UOp:
    """Return a buffer on `device` with the values of another's node; constants are the same everywhere."""
    source = _device_of(node)
    if source is None:
        return node
    (there,) = realize([node], source)
    return buffers.from_numpy(buffers.to_numpy(there), device)


def _device_of(node: UOp) -> str | None:
    """Return the device that computes a graph: its nearest COPY's or its buffers'; None for constants."""
    stack, seen = [node], set()
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        if u.op is ops.COPY:
            return u.arg  # type: ignore[no-any-return]
        if u.op is ops.BUFFER:
            return u.arg[2]  # type: ignore[no-any-return]
        stack.extend(u.src)
    return None


# -- plans ---------------------------------------------------------------------------------------------------


def _make_plan(
    roots: Sequence[UOp],
    key: tuple[Any, ...],
    inputs: Sequence[UOp],
    device: str,
    options: str,
    symbolic: bool,
) -> Plan:
    tools = toolchain(find_device(device).target)
    text = _key_text(key, symbolic)
    identity = tools.identity()
    records = {} if options.startswith("pinned") else records_of(tools)
    state = f"{options}{tuned_state(records)}"
    plan = _stored_plan(digest("plan", identity, state, text), device)
    if plan is not None:
        return plan
    tools.hooks.has("choose_schedule")  # loads the extensions; one that is broken now counts no more
    if identity != (identity := tools.identity()):
        records = {} if options.startswith("pinned") else records_of(tools)
        state = f"{options}{tuned_state(records)}"
        plan = _stored_plan(digest("plan", identity, state, text), device)
        if plan is not None:
            return plan
    steps: list[tuple[str, tuple[int, ...]]] = []
    slot_of: dict[UOp, int] = {u: n for n, u in enumerate(inputs)}
    sizes: list[int | UOp] = []
    variables: list[list[str]] = []

    def slot(node: UOp) -> int:
        found = slot_of.get(node)
        if found is None:
            found = slot_of[node] = len(inputs) + len(sizes)
            sizes.append(numel(node.shape) * node.dtype.itemsize)
        return found

    claims: dict[str, Any] = {}
    claims_any = tools.hooks.has("claim_kernel")
    for _, kernel in lower_graph(roots):
        if kernel.variables and not symbolic:
            raise _unbound()
        variables.append([v.arg[0] for v in kernel.variables])
        kernel_key = digest("kernel", identity, f"{options}{find(kernel, records)}", str(kernel))
        claimed = tools.hooks.chain("claim_kernel")(kernel, tools.target) if claims_any else None
        if claimed is not None:
            claims[kernel_key] = claimed
        else:
            _binary(kernel_key, device, functools.partial(build, kernel, tools))
        steps.append((kernel_key, (*[slot(n) for n in kernel.outputs], *[slot(n) for n in kernel.inputs])))
    results = [(slot(strip_reshape(r)), r.dtype.name, [_written(n) for n in r.shape]) for r in roots]
    header: dict[str, Any] = {"inputs": len(inputs), "sizes": [_written(n) for n in sizes]}
    header |= {"steps": steps, "results": results}
    if symbolic:
        header["variables"] = variables
    if not claims:  # an executable that a plugin made is this process's own
        disk_cache().put(digest("plan", identity, state, text), "plan", header, b"")
    plan = _load_plan(header, device, claims)
    if plan is None:
        raise InternalError("a kernel was compiled and is not there")
    return plan


def _written(size: int | UOp) -> int | str:
    """Return a size as a JSON value."""
    return size if type(size) is int else format_arg(size)


def _read(size: int | str) -> Any:
    return size if type(size) is int else parse_arg(str(size))


def _stored_plan(key: str, device: str) -> Plan | None:
    """Return the plan that is stored under a key, if it and all its kernels are."""
    stored = disk_cache().get(key, "plan")
    return None if stored is None else _load_plan(stored[0], device)


def _load_plan(header: dict[str, Any], device: str, claims: Mapping[str, Any] | None = None) -> Plan | None:
    """Return the plan that a cache entry describes, or None if one of its kernels is gone from the cache.

    `claims` has the executables of kernels that a plugin took.
    """
    steps = []
    for kernel_key, slots in header["steps"]:
        executable = claims.get(kernel_key) if claims else None
        if executable is None:
            executable = _binary(kernel_key, device, None)
        if executable is None:
            return None
        steps.append(Step(executable, tuple(slots)))
    inputs = header["inputs"]
    results = tuple(
        [(s, parse_dtype(d), tuple([_read(n) for n in shape])) for s, d, shape in header["results"]]
    )
    keep = {s for s, _, _ in results}
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        for s in step.slots:
            if s >= inputs and s not in keep:
                last[s] = n
    last_use = tuple(tuple(s for s, at in last.items() if at == n) for n in range(len(steps)))
    variables = tuple([tuple(names) for names in header.get("variables", ())])
    sizes = tuple([_read(n) for n in header["sizes"]])
    return Plan(inputs, sizes, tuple(steps), results, last_use, variables)


def _binary(key: str, device: str, make: Callable[[], Binary] | None) -> Any:
    """Return the loaded kernel for a key: from this process, the disk, or (if allowed) newly compiled."""

    def find() -> Any:
        entry = disk_cache().get(key, "kernel")
        if entry is not None:
            return runtime(device).load(_unpack(*entry))
        if make is None:
            return None
        binary = make()
        disk_cache().put(key, "kernel", describe_binary(binary), binary.data)
        return runtime(device).load(binary)

    found = _kernels.get((device, key))
    if found is not None:
        return found
    if make is None:
        found = find()
        return None if found is None else _kernels.get_or_make((device, key), lambda: found)
    return _kernels.get_or_make((device, key), find)


def describe_binary(binary: Binary) -> dict[str, Any]:
    """Return what a launch needs to know of a binary, as JSON values."""
    return {
        "entry": binary.entry,
        "target": binary.target,
        "arguments": [[a.name, a.kind, a.dtype, list(a.shape), a.writable] for a in binary.arguments],
        "launch": [list(n) if isinstance(n, tuple) else n for n in binary.launch],
    }


def _unpack(header: dict[str, Any], data: bytes) -> Binary:
    grid, block, chunks, phases, scratch, aligned, local = header["launch"]
    launch = Launch(tuple(grid), tuple(block), chunks, tuple(phases), scratch, aligned, local)
    arguments = tuple(Argument(n, k, d, tuple(s), w) for n, k, d, s, w in header["arguments"])
    return Binary(data, header["entry"], header["target"], arguments, launch)
