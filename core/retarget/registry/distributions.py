"""Installed distributions that bring plugins, found by reading their `entry_points.txt`.

They are those that `importlib.metadata` finds; it is not imported (with the e-mail, CSV and zip packages
behind it) where a distribution is a plain dist-info or egg-info folder.  Eggs, zip files, other packages'
finders and damaged metadata are left to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import importlib.metadata

    from .manifest import Kind

#: The groups of entry points that name plugins, and the kind of each.
GROUPS: dict[str, Kind] = {"retarget.backends": "backend", "retarget.plugins": "extension"}


class EntryPoint(NamedTuple):
    """One line of `entry_points.txt`."""

    group: str
    name: str
    value: str


class Distribution:
    """An installed distribution with entry points of our groups.

    Attributes
    ----------
    name, version
        What `pip list` shows; "unknown" if the metadata is damaged.
    entry_points
        Those of our groups, in the order of the file.
    """

    def __init__(
        self,
        name: str,
        version: str,
        entry_points: Iterable[EntryPoint],
        folder: str = "",
        metadata: importlib.metadata.Distribution | None = None,
    ) -> None:
        self.name, self.version, self.entry_points = name, version, tuple(entry_points)
        self._folder, self._metadata = folder, metadata

    def locate(self, inside: Path) -> Path:
        """Return where a file of the distribution should be."""
        if self._folder:
            return Path(self._folder).parent / inside
        return Path(str(self.metadata().locate_file(str(inside))))

    def metadata(self) -> importlib.metadata.Distribution:
        """Return everything that is known about it."""
        if self._metadata is None:
            from importlib.metadata import PathDistribution

            self._metadata = PathDistribution(Path(self._folder))
        return self._metadata


def distributions(path: Sequence[str] | None = None) -> Iterator[Distribution]:
    """Yield the distributions that have entry points of our groups, each once: the first on the path.

    `path` is a list of directories to search instead of sys.path.
    """
    seen: set[str] = set()
    for found in _search(sys.path if path is None else path):
        if found.name not in seen:
            seen.add(found.name)
            yield found


def _search(path: Sequence[str]) -> Iterator[Distribution]:
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        yield from _search_metadata(path)
        return
    for directory in map(str, path):
        try:
            names = os.listdir(directory or ".")  # noqa: PTH208 - a Path for each file takes most of the time
        except NotADirectoryError:
            yield from _search_metadata([directory])
            continue
        except OSError:  # on the path, and not there
            continue
        if directory.lower().endswith(".egg"):
            yield from _search_metadata([directory])
            continue
        for name in sorted(names):
            if name.lower().endswith((".dist-info", ".egg-info")):
                yield from _read(os.path.join(directory, name))  # noqa: PTH118


def _search_metadata(path: Sequence[str]) -> Iterator[Distribution]:
    import importlib.metadata

    for distribution in importlib.metadata.distributions(path=list(path)):
        yield from _convert(distribution)


def _convert(distribution: importlib.metadata.Distribution) -> Iterator[Distribution]:
    """Yield what `importlib.metadata` found if it has entry points of our groups."""
    try:
        entries = parse_entry_points(distribution.read_text("entry_points.txt") or "")
    except (OSError, ValueError):  # of a package that may have nothing to do with us
        return
    if entries:
        name, version = (_field(distribution, key) for key in ("Name", "Version"))
        yield Distribution(name, version, entries, metadata=distribution)


def _field(distribution: importlib.metadata.Distribution, key: str) -> str:
    try:
        return distribution.metadata[key] or "unknown"
    except (OSError, ValueError, KeyError):  # the metadata is missing or no text, or has no such field
        return "unknown"


def _read(folder: str) -> Iterator[Distribution]:
    """Yield the distribution of a dist-info or egg-info folder if it has entry points of our groups."""
    try:
        with open(f"{folder}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123 - as above
            entries = parse_entry_points(file.read())
    except (OSError, ValueError):  # nearly all of them have no such file; an egg-info may be a file itself
        return
    if entries:
        name, version = _name_and_version(folder)
        if name and version:
            yield Distribution(name, version, entries, folder)
        else:
            from importlib.metadata import PathDistribution

            yield from _convert(PathDistribution(Path(folder)))


def parse_entry_points(text: str) -> list[EntryPoint]:
    """Return the entry points of our groups.

    Raises
    ------
    ValueError
        A line of any group is none of: blank, a comment, `[group]`, `name = value`.
    """
    found: list[EntryPoint] = []
    if not any(group in text for group in GROUPS):
        return found
    group = None
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group is not None:
            name, separator, value = line.partition("=")
            if not separator:
                raise ValueError(f"not an entry point: {line!r}")
            if group in GROUPS:
                found.append(EntryPoint(group, name.strip(), value.strip()))
    return found


def _name_and_version(folder: str) -> tuple[str, str]:
    """Return what the head of the metadata says; "" for what it does not say plainly."""
    found = {"name": "", "version": ""}
    for file_name in ("METADATA", "PKG-INFO"):
        try:
            with open(f"{folder}/{file_name}", encoding="utf-8") as file:  # noqa: PTH123 - as above
                for line in file:
                    key, _, value = line.partition(":")
                    if not line.strip():
                        break
                    if key.lower() in found and not found[key.lower()]:
                        found[key.lower()] = value.strip()
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return "", ""
        break
    return found["name"], found["version"]
