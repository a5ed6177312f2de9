"""The registry: which plugins there are, which devices they bring, and which one to use.

Nothing is read before the first question.  "auto" asks backends in order of priority, and stops at the first
that is ready; what is skipped because it is broken is warned about once.  A device, backend or target that is
asked for by name is that one or an error, never another.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from ..errors import (
    BackendUnavailableError,
    DeviceError,
    PluginError,
    UnknownNameError,
    UserError,
    closest_match,
)
from .backend import Backend, DeviceInfo
from .plugins import Plugin, PluginWarning, State
from .versions import API_VERSION, IR_VERSION

if TYPE_CHECKING:
    from ..codegen.hooks import HookPlugin, ResolvedHooks
    from .discovery import Settings

_context_device: ContextVar[str | None] = ContextVar("retarget_default_device", default=None)


class Explanation(NamedTuple):
    """Why a plugin is used, or not: one row of `retarget doctor`."""

    name: str
    kind: str
    distribution: str
    version: str
    state: State
    reason: str
    traceback: str
    devices: tuple[DeviceInfo, ...]
    priority: int
    chosen: bool
    verdict: str


class _Extension(NamedTuple):
    """An extension's hooks, and what its order depends on."""

    plugin: HookPlugin
    targets: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


class Registry:
    """Plugins, devices and hooks of one process.

    Parameters
    ----------
    path
        Directories to search for installed plugins, instead of sys.path (from which they are still imported).
    environment
        Variables to read instead of the process's own.

    Attributes
    ----------
    epoch
        Grows when an extension is registered or unregistered, after which `hooks` returns other objects.
    """

    def __init__(
        self, path: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.epoch = 0
        self._path = path
        self._environment = environment
        self._lock = threading.RLock()
        self._settings: Settings | None = None
        self._plugins: tuple[Plugin, ...] | None = None
        self._default: str | None = None
        self._by_name: dict[str, DeviceInfo] = {}
        self._warned: set[str] = set()
        self._registered: dict[str, _Extension] = {}
        self._hooks: dict[str, ResolvedHooks] = {}

    # Plugins

    @property
    def settings(self) -> Settings:
        """What the environment said at first use."""
        with self._lock:
            if self._settings is None:
                from .discovery import Settings

                environment = os.environ if self._environment is None else self._environment
                self._settings = Settings.from_environment(environment)
            return self._settings

    def plugins(self) -> tuple[Plugin, ...]:
        """Return all installed plugins, sorted by name.  Nothing is imported."""
        if self._plugins is None:
            with self._lock:
                if self._plugins is None:
                    from .discovery import discover

                    found = tuple(discover(self.settings, API_VERSION, IR_VERSION, self._path))
                    self._warn_unknown(found)
                    self._plugins = found
        return self._plugins

    def plugin(self, name: str) -> Plugin:
        """Return an installed plugin by name.

        Raises
        ------
        UnknownNameError
            There is none of that name.
        """
        for plugin in self.plugins():
            if plugin.name == name:
                return plugin
        raise UnknownNameError("plugin", name, {plugin.name for plugin in self.plugins()})

    def backend(self, name: str) -> Backend:
        """Return a backend by name, loaded, whether or not it has a device here.

        Raises
        ------
        UnknownNameError
            There is no backend of that name.
        BackendUnavailableError, PluginError
            It cannot be loaded; the cause is the original error.
        """
        backend: Backend = self._backend_plugin("backend", name).load()
        return backend

    def target(self, name: str) -> str:
        """Return the full name of a target: "clang" is the backend's default, "clang/native" itself."""
        plugin = self._backend_plugin("target", name.partition("/")[0])
        manifest = plugin.manifest
        if manifest is None:
            raise plugin.failure(f"target {name!r} cannot be used")
        if "/" not in name:
            return manifest.default_target
        if not manifest.matches(name):
            raise UnknownNameError("target", name, manifest.targets)
        return name

    # Devices

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of all backends that are ready, the preferred ones first."""
        return [device for plugin in self._backends() for device in plugin.probe()]

    def device(self, name: str | None = None) -> DeviceInfo:
        """Return the device with a name.

        Parameters
        ----------
        name
            "cuda:1"; "cuda", its first device; "auto", the first device of the ready backend with the highest
            priority; None, the default (`default_device`, `set_default_device`, RETARGET_DEVICE, "auto").

        Raises
        ------
        UnknownNameError
            There is no such backend or device.
        BackendUnavailableError, PluginError
            The backend is not ready; the cause is the original error.
        DeviceError
            "auto" found no device at all.
        """
        if name is None:
            name = _context_device.get() or self._default or self._environment_device()
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = self._choose() if name == "auto" else self._named(name)
        return found

    def select(
        self,
        *,
        dtypes: Sequence[str] = (),
        tensor_cores: bool = False,
        memory: int = 0,
        prefer: Sequence[str] = (),
        target: str = "*",
    ) -> DeviceInfo:
        """Return the best device that meets requirements.

        Parameters
        ----------
        dtypes
            Names of dtypes that it must store and compute in.
        tensor_cores
            Whether it must have tensor cores, for one of `dtypes` if any are given.
        memory
            Bytes of memory that it must have.
        prefer
            Backends or devices to take first, in this order; then priority decides.
        target
            Pattern that its target must match, such as "cuda/*".

        Raises
        ------
        UnknownNameError
            There is no dtype of that name.
        DeviceError
            No device meets them; the text says why for each.
        """
        from ..ir import dtypes as table

        scalars = {value.name for value in vars(table).values() if isinstance(value, table.DType)}
        for dtype in dtypes:
            if dtype not in scalars:
                raise UnknownNameError("dtype", dtype, scalars)
        refusals: list[str] = []
        fitting: list[DeviceInfo] = []
        for plugin in self._backends():
            if not plugin.probe():
                refusals.append(f"{plugin.name}: {plugin.state.value}: {plugin.reason}")
            for device in plugin.devices:
                refusal = _refusal(plugin, device, dtypes, tensor_cores, memory, target)
                if refusal:
                    refusals.append(f"{device.name}: {refusal}")
                else:
                    fitting.append(device)
        if not fitting:
            raise DeviceError("\n  ".join(["no device meets the requirements:", *refusals]))
        wanted = list(prefer)

        def rank(device: DeviceInfo) -> int:
            named = [wanted.index(name) for name in (device.name, _owner(device)) if name in wanted]
            return min(named, default=len(wanted))

        return min(fitting, key=rank)

    @contextmanager
    def default_device(self, name: str) -> Iterator[DeviceInfo]:
        """Make a device the default inside a `with` block, in this thread or task only."""
        device = self.device(name)
        token = _context_device.set(device.name)
        try:
            yield device
        finally:
            _context_device.reset(token)

    def set_default_device(self, name: str | None) -> None:
        """Make a device the default of the process; None: RETARGET_DEVICE again, or "auto"."""
        self._default = None if name is None else self.device(name).name

    def explain_devices(self) -> list[Explanation]:
        """Return, for each installed plugin, its state and why the default device is or is not its own."""
        try:
            chosen: DeviceInfo | None = self.device()
            failure = ""
        except (DeviceError, PluginError, UnknownNameError) as error:
            chosen, failure = None, str(error)
        owner = _owner(chosen) if chosen else ""
        rows = []
        for plugin in [*self._backends(), *(p for p in self.plugins() if p.kind == "extension")]:
            verdict = self._verdict(plugin, owner, failure)
            rows.append(
                Explanation(
                    name=plugin.name,
                    kind=plugin.kind,
                    distribution=plugin.distribution,
                    version=plugin.version,
                    state=plugin.state,
                    reason=plugin.reason,
                    traceback=plugin.traceback,
                    devices=plugin.devices,
                    priority=plugin.priority,
                    chosen=plugin.name == owner,
                    verdict=verdict,
                )
            )
        return rows

    # Hooks

    def hooks(self, target: str) -> ResolvedHooks:
        """Return the resolved hooks of a target: its backend's renderer, and the extensions over it.

        Raises
        ------
        UnknownNameError
            No backend has that target.
        BackendUnavailableError, PluginError
            The backend, or an extension that RETARGET_PLUGINS names, cannot be loaded or breaks the contract.
        """
        found = self._hooks.get(target)
        while found is None:
            epoch = self.epoch
            resolved = self._resolve(self.target(target))
            with self._lock:
                if epoch == self.epoch:  # else an extension came or went meanwhile
                    found = self._hooks[target] = resolved
        return found

    def identity(self, target: str) -> str:
        """Return what decides about the code for a target, as far as plugins do; part of cache keys.

        Installed extensions count by their files and are not imported, so one that turns out to be broken
        counts until then.  Those that were registered in this process count by the code of their hooks.
        """
        target = self.target(target)
        plugin = self._backend_plugin("target", target.partition("/")[0])
        parts = [plugin.code()]
        for extension in self._installed_extensions(target):
            if extension.state in (State.DISCOVERED, State.READY):
                parts.append(extension.code())
        if None in parts or any(_covers(each.targets, target) for each in self._registered.values()):
            parts.append(self.hooks(target).identity())
        return "\n".join([plugin.load().identity(target), *filter(None, parts)])

    def register(
        self,
        extension: object,
        name: str,
        *,
        targets: Sequence[str] = ("*",),
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> None:
        """Add an extension plugin to this process without installing it.

        Raises
        ------
        PluginError
            The name is taken, or the object's hook implementations break the contract.
        """
        from ..codegen.hooks import HookPlugin, check_plugin

        plugin = HookPlugin(name, extension, "registered in this process", f"{id(extension):x}")
        check_plugin(plugin)
        with self._lock:
            if name in self._registered or any(name == installed.name for installed in self.plugins()):
                raise PluginError(f"a plugin called {name!r} exists already")
            self._registered[name] = _Extension(plugin, tuple(targets), tuple(before), tuple(after))
            self._changed()

    def unregister(self, name: str) -> None:
        """Remove an extension that was added with `register`."""
        with self._lock:
            if name not in self._registered:
                raise UnknownNameError("registered plugin", name, self._registered)
            del self._registered[name]
            self._changed()

    # Internals

    def _changed(self) -> None:
        self._hooks.clear()
        self.epoch += 1

    def _backends(self) -> list[Plugin]:
        """Return the backends, the preferred ones first."""
        backends = [plugin for plugin in self.plugins() if plugin.kind == "backend"]
        return sorted(backends, key=lambda plugin: -plugin.priority)

    def _backend_plugin(self, wanted: str, name: str) -> Plugin:
        backends = {plugin.name: plugin for plugin in reversed(self.plugins()) if plugin.kind == "backend"}
        if name not in backends:
            raise UnknownNameError(wanted, name, backends)
        return backends[name]

    def _named(self, name: str) -> DeviceInfo:
        plugin = self._backend_plugin("device", name.partition(":")[0])
        devices = plugin.probe()
        if plugin.state is not State.READY:
            raise plugin.failure(f"device {name!r} cannot be used")
        for device in devices:
            if name in (device.name, plugin.name):
                return device
        raise UnknownNameError("device", name, [device.name for device in devices])

    def _environment_device(self) -> str:
        """Return RETARGET_DEVICE, having checked it with an error that names it, or "auto"."""
        name = self.settings.device or "auto"
        if name not in self._by_name and name != "auto":
            try:
                self._by_name[name] = self._named(name)
            except UserError as error:
                error.add_note("(RETARGET_DEVICE asks for it)")
                raise
        return name

    def _choose(self) -> DeviceInfo:
        skipped: list[Plugin] = []
        for plugin in self._backends():
            devices = plugin.probe()
            if devices:
                self._warn_skipped(skipped, f"using {devices[0].name}")
                return devices[0]
            skipped.append(plugin)
        reasons = [f"{plugin.name}: {plugin.state.value}: {plugin.reason}" for plugin in skipped]
        if not reasons:
            reasons = ["no backend is installed; is Retarget itself installed, or only on the path?"]
        raise DeviceError("no device is ready:\n  " + "\n  ".join(reasons))

    def _verdict(self, plugin: Plugin, owner: str, failure: str) -> str:
        """Find out how a plugin fares, and say it."""
        if plugin.kind == "extension":
            try:
                plugin.load()
            except (BackendUnavailableError, PluginError):
                return plugin.reason
            return f"extends {', '.join(plugin.manifest.targets if plugin.manifest else ())}"
        plugin.probe()
        if plugin.name == owner:
            return "the default device is its own"
        if plugin.state is not State.READY:
            return plugin.reason
        if not owner:
            return failure
        preferred = self._backend_plugin("device", owner)
        if plugin.priority > preferred.priority:
            return f"{owner} was asked for by name"
        return f"{owner} has priority {preferred.priority}, this one {plugin.priority}"

    def _warn_skipped(self, skipped: Sequence[Plugin], instead: str) -> None:
        for plugin in skipped:
            if plugin.state in (State.BROKEN, State.INCOMPATIBLE):
                self._warn_once(
                    plugin.origin + plugin.name,
                    f"{plugin.kind} {plugin.name!r} of {plugin.origin} is {plugin.state.value} and skipped, "
                    f"{instead}: {plugin.reason}",
                )

    def _warn_unknown(self, found: Sequence[Plugin]) -> None:
        names = {plugin.name for plugin in found}
        for pattern in self.settings.allowed or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                match = closest_match(pattern, names)
                hint = f"; did you mean {match!r}?" if match else ""
                self._warn_once(pattern, f"RETARGET_PLUGINS names {pattern!r}, which is not installed{hint}")

    def _warn_once(self, key: str, text: str) -> None:
        with self._lock:
            if key in self._warned:
                return
            self._warned.add(key)
        warnings.warn(text, PluginWarning, stacklevel=5)

    def _resolve(self, target: str) -> ResolvedHooks:
        from ..codegen.hooks import HookPlugin, resolve

        plugin = self._backend_plugin("target", target.partition("/")[0])
        renderer = plugin.load().renderer(target)
        first = HookPlugin(plugin.name, renderer, plugin.distribution, plugin.version)
        extensions = _in_call_order(self._extensions(target))
        return resolve([first, *(extension.plugin for extension in reversed(extensions))], target)

    def _installed_extensions(self, target: str) -> list[Plugin]:
        """Return the extensions for a target that are not blocked, sorted by name."""
        return [
            plugin
            for plugin in self.plugins()
            if plugin.kind == "extension"
            and plugin.state is not State.BLOCKED
            and (plugin.manifest is None or plugin.manifest.matches(target))
        ]

    def _extensions(self, target: str) -> list[_Extension]:
        """Return the extensions for a target that can be loaded."""
        from ..codegen.hooks import HookPlugin

        found = [each for each in self._registered.values() if _covers(each.targets, target)]
        for plugin in self._installed_extensions(target):
            manifest = plugin.manifest
            try:
                implementation = plugin.load()
            except (BackendUnavailableError, PluginError):
                if plugin.name in (self.settings.allowed or ()):
                    raise
                self._warn_skipped([plugin], f"rendering {target} without it")
                continue
            assert manifest is not None  # it was loaded
            hooks = HookPlugin(plugin.name, implementation, plugin.distribution, plugin.version)
            found.append(_Extension(hooks, manifest.targets, manifest.before, manifest.after))
        return found


def _owner(device: DeviceInfo) -> str:
    """Return the name of a device's backend."""
    return device.name.partition(":")[0]


def _covers(patterns: Sequence[str], target: str) -> bool:
    return any(fnmatchcase(target, pattern) for pattern in patterns)


def _in_call_order(extensions: Sequence[_Extension]) -> list[_Extension]:
    """Sort extensions by their before and after, and then by name."""
    from graphlib import CycleError, TopologicalSorter

    by_name = {extension.plugin.name: extension for extension in extensions}
    earlier: dict[str, set[str]] = {name: set() for name in sorted(by_name)}
    for name, extension in by_name.items():
        earlier[name].update(other for other in extension.after if other in by_name)
        for other in extension.before:
            if other in by_name:
                earlier[other].add(name)
    sorter = TopologicalSorter(earlier)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " before ".join(error.args[1])
        raise PluginError(f"plugins cannot be ordered; their 'before' and 'after' say: {cycle}") from error
    order: list[_Extension] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        name = ready.pop(0)
        order.append(by_name[name])
        sorter.done(name)
    return order


def _refusal(
    plugin: Plugin, device: DeviceInfo, dtypes: Sequence[str], tensor_cores: bool, memory: int, target: str
) -> str:
    """Return why a device does not meet requirements, "" if it does."""
    if not fnmatchcase(device.target, target):
        return f"target {device.target} does not match {target}"
    if memory and device.memory < memory:
        has = f"{device.memory} bytes of memory" if device.memory else "memory of unknown size"
        return f"{has}, {memory} wanted"
    try:
        capabilities = plugin.load().capabilities(device.target)
    except Exception as error:
        return f"its capabilities are unknown: {type(error).__name__}: {error}"
    for dtype in dtypes:
        for use, entries in (("storage", capabilities.storage), ("arithmetic", capabilities.arithmetic)):
            entry = entries.get(dtype)
            if not entry:
                reason = f" ({entry.reason})" if entry is not None and entry.reason else ""
                return f"no {dtype} {use}{reason}"
    if tensor_cores:
        cores = [core for core in capabilities.tensor_cores if not dtypes or core.dtype_in in dtypes]
        if not cores:
            return f"no tensor cores{' for ' + ', '.join(dtypes) if dtypes else ''}"
    return ""
