"""Finding plugins: entry points and manifests are read; no plugin's package is imported.

An entry point's value is "package:plugin.toml": the file inside the package.  Python may see one distribution
twice (a lib64 symlink, stale egg-info next to an editable install); that is one plugin.  Two distributions
that claim one name are both broken, in whatever order they are found.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from ..errors import ParseError, PluginError
from .distributions import GROUPS, Distribution, EntryPoint, distributions
from .manifest import Manifest, read_manifest
from .plugins import Plugin, State


class Settings(NamedTuple):
    """The environment's say in it.

    Attributes
    ----------
    allowed
        RETARGET_PLUGINS: comma-separated names or patterns of the only plugins to use; None: not set.  An
        opt-in plugin must be named exactly.
    denied
        RETARGET_PLUGINS_DISABLE: names or patterns of plugins not to use.
    device
        RETARGET_DEVICE: the default device; "" if not set.
    probe_timeout
        RETARGET_PROBE_TIMEOUT: seconds that a backend may take to look for its devices.
    """

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    device: str = ""
    probe_timeout: float = 10.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the variables; raise `ParseError` if the timeout is not a positive number."""
        text = environment.get("RETARGET_PROBE_TIMEOUT", "10")
        if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text.strip()) or float(text) <= 0:
            raise ParseError(f"RETARGET_PROBE_TIMEOUT must be a positive number of seconds, not {text!r}")
        return cls(
            allowed=_names(environment.get("RETARGET_PLUGINS", "")) or None,
            denied=_names(environment.get("RETARGET_PLUGINS_DISABLE", "")),
            device=environment.get("RETARGET_DEVICE", "").strip(),
            probe_timeout=float(text),
        )

    def block(self, name: str, opt_in: bool) -> str:
        """Return why the plugin must not be used, "" if it may."""
        if any(fnmatchcase(name, pattern) for pattern in self.denied):
            return "RETARGET_PLUGINS_DISABLE names it"
        if opt_in and name not in (self.allowed or ()):
            return f"it is opt-in; enable it with RETARGET_PLUGINS='*,{name}'"
        if self.allowed is not None and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
            return "RETARGET_PLUGINS does not name it"
        return ""


def discover(
    settings: Settings, api_version: str, ir_version: str, path: Sequence[str] | None = None
) -> list[Plugin]:
    """Return the installed plugins, sorted by name, with the states that metadata alone can tell.

    `path` is a list of directories to search instead of sys.path.
    """
    plugins: dict[tuple[str, str], Plugin] = {}
    for distribution in distributions(path):
        for entry in distribution.entry_points:
            location, manifest, error = _read(entry, distribution, path)
            plugin = Plugin(
                entry.name,
                GROUPS[entry.group],
                distribution,
                location,
                manifest,
                probe_timeout=settings.probe_timeout,
            )
            if error is not None:
                plugin.mark(State.BROKEN, str(error), error)
            plugins.setdefault((plugin.name, os.path.realpath(location)), plugin)
    found = sorted(plugins.values(), key=lambda plugin: (plugin.name, plugin.distribution, plugin.version))
    for plugin in found:
        _check(plugin, [other for other in found if other.name == plugin.name], settings)
        if plugin.state is State.DISCOVERED and plugin.manifest is not None:
            reason = plugin.manifest.incompatibility(api_version, ir_version)
            if reason:
                plugin.mark(State.INCOMPATIBLE, reason)
    return found


def _check(plugin: Plugin, claims: Sequence[Plugin], settings: Settings) -> None:
    """Block a plugin, or mark it if others have its name."""
    opt_in = plugin.manifest is not None and plugin.manifest.opt_in
    if reason := settings.block(plugin.name, opt_in):
        plugin.mark(State.BLOCKED, reason)
    elif len(claims) > 1:
        origins = " and ".join(f"{claim.origin} ({claim.location.parent})" for claim in claims)
        error = PluginError(
            f"{len(claims)} distributions claim the name {plugin.name!r}: {origins}; uninstall all but one"
        )
        plugin.mark(State.BROKEN, str(error), error)
        plugin.conflicting = True


# Manifests --------------------------------------------------------------------------------------------------


def _read(
    entry: EntryPoint, distribution: Distribution, path: Sequence[str] | None
) -> tuple[Path, Manifest | None, Exception | None]:
    """Return the manifest of an entry point and where it is, or what is wrong with it."""
    location = Path(entry.value)
    kind = GROUPS[entry.group]
    try:
        location = _locate(entry.value, distribution, path)
        manifest = read_manifest(location)
    except OSError as error:
        return location, None, PluginError(f"the manifest {location} cannot be read: {error}")
    except (ParseError, PluginError) as error:
        return location, None, error
    if (manifest.kind, manifest.name) != (kind, entry.name):
        told = f"the entry point says {kind} {entry.name!r}, the manifest {manifest.kind} {manifest.name!r}"
        return location, None, PluginError(f"{location}: {told}")
    return location, manifest, None


def _locate(value: str, distribution: Distribution, path: Sequence[str] | None) -> Path:
    """Return the manifest's path: beside the distribution's metadata, or where imports find the package."""
    package, separator, resource = value.partition(":")
    if not separator or not package or not resource.endswith(".toml") or "/" in resource:
        raise PluginError(f"entry point value {value!r} must be 'package:plugin.toml'")
    inside = Path(*package.split("."), resource)
    candidates = [distribution.locate(inside)]
    if candidates[0].is_file():
        return candidates[0]
    candidates += [directory / resource for directory in package_places(package, path)]
    for candidate in candidates[1:]:
        if candidate.is_file():
            return candidate
    searched = ", ".join(str(candidate.parent) for candidate in candidates)
    raise PluginError(f"the manifest {inside} is missing; looked in {searched}")


def package_places(package: str, path: Sequence[str] | None) -> list[Path]:
    """Return a package's directories, or a module's file, without importing it or its parents."""
    top, *rest = package.split(".")
    try:
        spec = PathFinder.find_spec(top, path) if path is not None else None
        spec = spec or importlib.util.find_spec(top)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return []
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):  # a module in sys.modules that has no usable __spec__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(location) for location in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
