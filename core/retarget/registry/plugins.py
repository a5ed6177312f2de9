"""One installed plugin: what is known about it, and the steps by which it becomes usable.

A plugin is *discovered* from metadata alone.  It is imported when it is needed, and a backend is probed when
its devices are.  Each step happens once; whatever a broken package does in it is caught, remembered, and
given as the cause each time the plugin is asked for.
"""

from __future__ import annotations

import re
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, PluginError, closest_match
from .backend import Backend, DeviceInfo, Probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .distributions import Distribution
    from .manifest import Kind, Manifest


class PluginWarning(UserWarning):
    """A plugin that is installed cannot be used, and something else was taken."""


class State(Enum):
    """How far a plugin is.  It is READY when it can be used; a backend also needs a device for that."""

    DISCOVERED = "discovered"
    BLOCKED = "blocked"
    INCOMPATIBLE = "incompatible"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"
    READY = "ready"


class Plugin:
    """A plugin and its state.  To be read: only `load` and `probe` change it, and they are safe in threads.

    Attributes
    ----------
    name, kind
        As the entry point has them.
    distribution, version
        What `pip list` calls the package that it came with.
    location
        The manifest's path, or where it was expected.
    manifest
        None if it cannot be read.
    state, reason
        The state, and why, where it is not READY or DISCOVERED.
    error
        The exception behind the state, if there was one.
    conflicting
        Whether another distribution claims the same name.
    devices
        What the probe found.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        distribution: Distribution,
        location: Path,
        manifest: Manifest | None = None,
        *,
        probe_timeout: float = 10.0,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.distribution = distribution.name
        self.version = distribution.version
        self.location = location
        self.manifest = manifest
        self.state = State.DISCOVERED
        self.reason = ""
        self.error: BaseException | None = None
        self.conflicting = False
        self.devices: tuple[DeviceInfo, ...] = ()
        self._installed = distribution
        self._probe_timeout = probe_timeout
        self._lock = threading.RLock()
        self._loading = False
        self._probed = False
        self._code: str | None = None
        self._object: Any = None

    def __repr__(self) -> str:
        return f"<Plugin {self.name} of {self.origin}: {self.state.value}>"

    @property
    def origin(self) -> str:
        """The distribution and its version, for people."""
        return f"{self.distribution} {self.version}"

    @property
    def priority(self) -> int:
        """The manifest's priority; 0 without a manifest."""
        return self.manifest.priority if self.manifest else 0

    @property
    def traceback(self) -> str:
        """The text of the traceback of `error`, "" without one."""
        import traceback

        return "".join(traceback.format_exception(self.error)) if self.error else ""

    def code(self) -> str | None:
        """Return what tells its code apart, without importing it: origin and files.  Part of cache keys.

        None if its files cannot be found: it is no ordinary package.
        """
        if self._code is None and self.manifest is not None:
            from .discovery import package_places
            from .files import files_identity

            package = self.manifest.provides.partition(":")[0].partition(".")[0]
            if places := package_places(package, None):
                files = files_identity([str(self.location), *map(str, places)])
                self._code = f"{self.name} {self.origin}\n{files}"
        return self._code

    def mark(self, state: State, reason: str, error: BaseException | None = None) -> None:
        """Set the state of a plugin that is not to be loaded."""
        self.state, self.reason, self.error = state, reason, error

    def failure(self, wanted: str) -> BackendUnavailableError | PluginError:
        """Return the error to raise when someone needs `wanted` and the plugin cannot give it."""
        text = f"{wanted}: {self.kind} {self.name!r} of {self.origin} is {self.state.value}: {self.reason}"
        by_contract = self.conflicting or self.kind == "extension"
        failure = PluginError(text) if by_contract else BackendUnavailableError(text)
        failure.__cause__ = self.error
        return failure

    def load(self) -> Any:
        """Import the plugin, once, and return what it provides: a `Backend`, or an object with hooks.

        Raises
        ------
        BackendUnavailableError, PluginError
            It cannot be loaded; the cause is the original error, each time.
        """
        with self._lock:
            if self._object is None:
                wanted = f"{self.name!r} cannot be loaded"
                if self._loading:
                    raise PluginError(f"{wanted}: it was asked for while it was being imported")
                if self.state is not State.DISCOVERED:
                    raise self.failure(wanted)
                self._loading = True
                try:
                    self._object = self._provide()
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # a broken package may raise anything, SystemExit included
                    self._fail(error)
                    raise self.failure(wanted) from error
                finally:
                    self._loading = False
                if self.kind == "extension":
                    self.state = State.READY
            return self._object

    def probe(self) -> tuple[DeviceInfo, ...]:
        """Look for devices, once, and return them; `state` and `reason` say why there are none."""
        with self._lock:
            if not self._probed and self.state is State.DISCOVERED:
                try:
                    backend = self.load()
                except (BackendUnavailableError, PluginError):
                    if self._loading:  # the plugin itself asks, while it is being imported
                        raise
                    return ()  # remembered in the state
                self._probed = True
                self._probe(backend)
            return self.devices

    def _provide(self) -> Any:
        import importlib

        assert self.manifest is not None  # without one, the state is not DISCOVERED
        module_name, _, path = self.manifest.provides.partition(":")
        found: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            if not hasattr(found, attribute):
                match = closest_match(attribute, dir(found))
                hint = f"; did you mean {match!r}?" if match else ""
                provides = self.manifest.provides
                raise PluginError(f"{self.location}: {provides!r} does not exist: no {attribute!r}{hint}")
            found = getattr(found, attribute)
        return self._backend(found) if self.kind == "backend" else self._extension(found)

    def _backend(self, found: Any) -> Backend:
        if not (isinstance(found, type) and issubclass(found, Backend)):
            raise PluginError(f"{self.location}: a backend must provide a subclass of Backend, not {found!r}")
        backend = found()
        if (name := getattr(backend, "name", None)) != self.name:
            wanted = f"{self.name!r}, as in the manifest"
            raise PluginError(f"{found.__qualname__}.name must be {wanted}, not {name!r}")
        return backend

    def _extension(self, found: Any) -> Any:
        from ..codegen.hooks import HookPlugin, check_plugin

        extension = found() if isinstance(found, type) else found
        check_plugin(HookPlugin(self.name, extension, self.distribution, self.version))
        return extension

    def _probe(self, backend: Backend) -> None:
        timeout = self._probe_timeout
        try:
            finished, probe = _call_bounded(backend.probe, timeout)
            if finished:
                self.devices = self._check_probe(probe)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(error)
            return
        if not finished:
            self.state, self.reason = State.UNAVAILABLE, f"probe did not answer in {timeout:g} s"
        elif self.devices:
            self.state = State.READY
        else:
            self.state, self.reason = State.UNAVAILABLE, probe.reason or "it found no device"

    def _check_probe(self, probe: object) -> tuple[DeviceInfo, ...]:
        if not isinstance(probe, Probe):
            raise PluginError(f"probe() must return a Probe, not {probe!r}")
        assert self.manifest is not None
        for device in probe.devices:
            if not re.fullmatch(rf"{re.escape(self.name)}:\d+", device.name):
                raise PluginError(f"probe() found {device.name!r}; devices are called '{self.name}:NUMBER'")
            if not self.manifest.matches(device.target):
                patterns = ", ".join(self.manifest.targets)
                raise PluginError(f"{device.name} has target {device.target!r}, which is none of {patterns}")
        return probe.devices

    def _fail(self, error: BaseException) -> None:
        """Remember a failure and what to do about it."""
        self.error = error
        self.state = State.BROKEN
        self.reason = f"{type(error).__name__}: {error}"
        assert self.manifest is not None
        own_package = self.manifest.provides.partition(":")[0].partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name:
            missing = error.name.partition(".")[0]
            if missing != own_package:
                self.state = State.UNAVAILABLE
                self.reason = f"it needs the module {error.name!r}, which is not installed"
                if advice := _installation_advice(self._installed, missing):
                    self.reason += f"; {advice}"
        elif isinstance(error, BackendUnavailableError):
            self.state, self.reason = State.UNAVAILABLE, str(error)


def _call_bounded(function: Callable[[], object], seconds: float) -> tuple[bool, Any]:
    """Call a function in a thread; return (True, its result), or (False, None) if it takes too long.

    A thread cannot be stopped: one that hangs is left behind, as a daemon, which does not keep the process.
    """
    result: list[object] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="retarget-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    return (True, result[0]) if result else (False, None)


def _installation_advice(distribution: Distribution, module: str) -> str:
    """Return the pip command that brings a module, if the distribution's requirements name it."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    metadata = distribution.metadata()
    extras = metadata.metadata.get_all("Provides-Extra") or []
    for text in metadata.requires or []:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) != canonicalize_name(module):
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            return f"it is required, so the installation is incomplete: pip install '{requirement.name}'"
        for extra in extras:
            if marker.evaluate({"extra": extra}):
                return f"pip install '{distribution.name}[{extra}]'"
    return ""
