"""The tuned schedules that were kept, by the place where they were measured.

They are one entry of the disk cache: `{"places": {place: {"about": ..., "kernels": {kernel: record}}}}`.  A
*place* is all that decides how fast a schedule is: Retarget's code, the target, the plugins over it, the
compiler, and the model of the processor.  Each process reads the entry once, when it first lowers a kernel;
where there is none, that is one file that is not found.  `RETARGET_TUNED=0` ignores it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import CompileError
from .diskcache import DiskCache, digest, disk_cache

if TYPE_CHECKING:
    from ..pipeline import Toolchain
    from ..schedule.kernel import Kernel

#: The kind of the entry in the disk cache.
KIND = "tuned"
_KEY = digest("tuned schedules")
#: Places that are kept; those that were written to last stay.
_PLACES = 64

_lock = threading.RLock()
_read: dict[DiskCache, dict[str, Any]] = {}
_keys: WeakKeyDictionary[Toolchain, str] = WeakKeyDictionary()


class Place(NamedTuple):
    """Where a schedule was measured, and with what."""

    code: str
    target: str
    plugins: str
    compiler: str
    machine: str

    @property
    def key(self) -> str:
        return digest("place", *self)

    def differences(self, other: Place) -> list[str]:
        """Return what differs from another place, each with both sides where a person can read them."""
        found = []
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine != theirs:
                readable = max(len(mine), len(theirs)) < 80 and "\n" not in mine + theirs
                found.append(f"{name}: {theirs} instead of {mine}" if readable else f"{name} differs")
        return found


def place_of(tools: Toolchain) -> Place:
    """Return the place that this machine is for a target."""
    from .. import registry
    from ..pipeline import code_identity
    from . import cpu

    plugins = registry.registry().identity(tools.target)
    if "thread" in tools.capabilities.axis_kinds:
        machine = f"{cpu.name()}, {tools.capabilities.threads} threads"
    else:
        machine = ", ".join(d.description for d in registry.devices() if d.target == tools.target)
    return Place(code_identity(), tools.target, plugins, tools.compiler.identity(), machine)


def records_of(tools: Toolchain) -> dict[str, Any]:
    """Return the records of a target on this machine, by `kernel_key`; empty if there are none."""
    if os.environ.get("RETARGET_TUNED", "").strip().lower() in ("0", "off", "no", "false"):
        return {}
    places = _places(disk_cache())
    if not any(each["about"]["target"] == tools.target for each in places.values()):
        return {}
    try:
        found = places.get(_key_of(tools))
    except CompileError:  # no compiler here: what it would make of a schedule was not measured
        return {}
    return {} if found is None else found["kernels"]


def kernel_key(kernel: Kernel) -> str:
    """Return the key of a kernel's record."""
    return digest("kernel", str(kernel))


def find(kernel: Kernel, records: dict[str, Any]) -> str:
    """Return the line of a kernel's tuned schedule, or nothing."""
    record = records.get(kernel_key(kernel)) if records else None
    return "" if record is None else record["schedule"]


def state(records: dict[str, Any]) -> str:
    """Return a text that changes with the schedules of some records; empty where there are none."""
    if not records:
        return ""
    lines = [f"{key} {record['schedule']}" for key, record in sorted(records.items())]
    return f"tuned {digest(*lines)}"


def keep(kernel: Kernel, place: Place, record: dict[str, Any] | None) -> bool:
    """Keep the record of a kernel, which has at least its "schedule" (None: drop it); return whether the
    cache took it.

    Plans that are in memory are forgotten, so that what is computed next uses the schedule.  Functions under
    `rt.jit` go on with what they were captured with.
    """
    cache = disk_cache()
    if cache.folder is None:
        return False
    with _lock, _alone(cache):
        places = _load(cache)
        about = {"target": place.target, "machine": place.machine}
        kernels = places.pop(place.key, {"kernels": {}})["kernels"]
        kernels.pop(kernel_key(kernel), None)
        if record is not None:
            kernels[kernel_key(kernel)] = record
        places[place.key] = {"about": about, "kernels": kernels}
        while len(places) > _PLACES:
            del places[next(iter(places))]
        cache.put(_KEY, KIND, {"places": places}, b"")
        _read[cache] = places
    from .realize import clear_memory_cache

    clear_memory_cache()
    return cache.get(_KEY, KIND) is not None


def count(cache: DiskCache | None = None) -> int:
    """Return how many schedules are kept, for all places."""
    return sum(len(each["kernels"]) for each in _load(cache or disk_cache()).values())


def forget() -> None:
    """Read the entry again when it is needed next: another process may have changed it."""
    with _lock:
        _read.clear()


def _key_of(tools: Toolchain) -> str:
    """Return the key of this machine as a place, remembered once it is known which extensions work."""
    key = _keys.get(tools)
    if key is None:
        key = place_of(tools).key
        if "hooks" in vars(tools):
            _keys[tools] = key
    return key


def _places(cache: DiskCache) -> dict[str, Any]:
    found = _read.get(cache)
    if found is None:
        with _lock:
            found = _read[cache] = _load(cache)
    return found


def _load(cache: DiskCache) -> dict[str, Any]:
    entry = cache.get(_KEY, KIND)
    return {} if entry is None else entry[0]["places"]


@contextlib.contextmanager
def _alone(cache: DiskCache) -> Iterator[None]:
    """Keep other processes from changing the entry meanwhile, where the system can."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = os.open(cache.folder / "tuned.lock", os.O_RDWR | os.O_CREAT, 0o600)  # type: ignore[operator]
    except OSError:  # cannot be written: then the entry cannot either
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)

