"""What code is installed, told by its files without importing it: names, sizes and times of change.

Part of cache keys: whoever edits, installs or removes a file gets other keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator


def files_identity(places: Iterable[str]) -> str:
    """Return a text that changes when a file does.

    Parameters
    ----------
    places
        Files, and folders with all that is in them but bytecode and hidden files.  Where they are does not
        matter to the text.
    """
    lines: list[str] = []
    for place in places:
        if os.path.isdir(place):  # noqa: PTH112 - a Path for each file takes most of the time
            lines += _folder(place, "")
        else:
            status = os.stat(place)  # noqa: PTH116 - as above
            lines.append(f"{os.path.basename(place)} {status.st_size} {status.st_mtime_ns}")  # noqa: PTH119
    return "\n".join(lines)


def _folder(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _folder(entry.path, f"{name}/")
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:  # removed meanwhile, or a link to nothing
            continue
        yield f"{name} {status.st_size} {status.st_mtime_ns}"
