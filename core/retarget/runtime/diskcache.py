"""The disk cache: content that is expensive to make (lowered programs, binaries), kept for later processes.

    found = disk_cache().get(key, "binary")          # (header, data) or None
    disk_cache().put(key, "binary", header, data)

A cache never changes a result and never fails a program: what is missing, damaged or refused is made anew,
with at most one warning per process and kind of trouble.  Entries are plain files, written under a
temporary name and renamed, each with a hash over its key and content; nothing in them is executed by
reading them (no pickle).  The folder must belong to this user and be writable by nobody else.

`RETARGET_CACHE=0` turns the cache off, `RETARGET_CACHE_DIR` moves it, `RETARGET_CACHE_SIZE` (bytes, or with
a suffix: "512M") limits it; the entries that were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import struct
import sys
import time
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import CacheWarning, UserError

__all__ = ["DiskCache", "digest", "disk_cache", "parse_size"]

# An entry: magic and format version, SHA-256 of all that follows together with the entry's name, length of
# the payload; then the payload: length of the header, header (JSON), data.
_MAGIC = b"RETARGET\x00\x01"
_PREFIX = struct.Struct("<10s32sQ")
_HEADER_LENGTH = struct.Struct("<I")
_DEFAULT_SIZE = 1 << 30
_KEPT = frozenset({"tuned"})
"""Kinds that are not evicted: small, and made by minutes of measuring."""
_STALE = 3600.0
"""Seconds after which a temporary file is taken for the remains of a killed process."""

_NAME = re.compile(r"[0-9a-f]{64}\.[a-z0-9_-]{1,32}")
_warned: set[str] = set()


def digest(*parts: str | bytes) -> str:
    """Return the key for what the parts identify: a hash of each, so that ("ab", "c") is not ("a", "bc")."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(struct.pack("<?Q", isinstance(part, str), len(data)))
        total.update(data)
    return total.hexdigest()


def parse_size(text: str, variable: str) -> int:
    """Return a number of bytes from "1048576", "512M" or "2 GiB"; `variable` is named in the error."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b)?\s*", text, re.IGNORECASE)
    if not match:
        raise UserError(
            f"{variable} is {text!r}; it must be a number of bytes such as 1073741824, 512M or 2G"
        )
    return int(float(match[1]) * 1024 ** (" kmgt".index((match[2] or " ").lower())))


def disk_cache() -> DiskCache:
    """Return the cache that the environment describes; the same object while that does not change."""
    get = os.environ.get
    if get("RETARGET_CACHE", "").strip().lower() in ("0", "off", "no", "false"):
        return _opened(None, _DEFAULT_SIZE)
    size = get("RETARGET_CACHE_SIZE", "").strip()
    limit = parse_size(size, "RETARGET_CACHE_SIZE") if size else _DEFAULT_SIZE
    return _opened(get("RETARGET_CACHE_DIR") or _user_folder(get("HOME"), get("XDG_CACHE_HOME")), limit)


@functools.lru_cache(maxsize=16)
def _user_folder(home: str | None, xdg: str | None) -> str:
    if sys.platform == "linux":  # what platformdirs answers, without the 25 ms that importing it takes
        base = xdg if xdg and xdg.strip() else "~/.cache"
        return os.path.expanduser(f"{base}/retarget")  # noqa: PTH111 (Path's raises where there is no home)
    from platformdirs import user_cache_dir

    return user_cache_dir("retarget", appauthor=False)


@functools.lru_cache(maxsize=16)
def _opened(folder: str | None, limit: int) -> DiskCache:
    if folder is None:
        return DiskCache(None, reason="turned off by RETARGET_CACHE", limit=limit)
    # A home that cannot be found leaves "~" in the path; what follows the working directory would be no
    # cache.
    named = "RETARGET_CACHE_DIR" in os.environ
    if not named and not Path(folder).is_absolute():
        return DiskCache(None, reason=f"there is no home directory for it ({folder})", limit=limit, warn=True)
    path = Path(folder).absolute()
    reason = _prepare(path)
    return DiskCache(None if reason else path, reason=reason, limit=limit, warn=bool(reason))


def _prepare(path: Path) -> str:
    """Make the folder if need be; return why it cannot be used, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # made earlier, or just now by another process
            path.mkdir(mode=0o700)
        status = path.lstat()
    except (OSError, ValueError) as error:
        return f"{path} cannot be made: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link; remove it, or set RETARGET_CACHE_DIR to where it points"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a folder"
    if not _trusted(status):
        return f"{path} is another user's or writable by others; chmod 700 it, or set RETARGET_CACHE_DIR"
    return ""


def _trusted(status: os.stat_result) -> bool:
    """Whether nobody but this user (or root, who can do anything anyway) can have written there."""
    if sys.platform == "win32":  # profiles are private there, and modes mean nothing
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _warn(kind: str, text: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=4)


class DiskCache:
    """Entries in a folder, found by key and kind.  Safe for any number of threads and processes at once.

    Attributes
    ----------
    folder
        Where the entries are; None when the cache is off.
    reason
        Why it is off, or why nothing more is written to it; empty otherwise.
    limit
        Bytes that the entries may take together.
    """

    def __init__(
        self, folder: Path | None, *, limit: int = _DEFAULT_SIZE, reason: str = "", warn: bool = False
    ) -> None:
        self.folder, self.limit, self.reason = folder, limit, reason
        self._writable = folder is not None
        self._room = 0  # bytes that may be written before the folder's size is looked at again
        if warn:
            _warn("off", f"the disk cache is off: {reason}")

    def get(self, key: str, kind: str) -> tuple[dict[str, Any], bytes] | None:
        """Return header and data of an entry, or None when there is none that is whole."""
        path = self._path(key, kind)
        if path is None:
            return None
        try:
            content = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn("read", f"an entry of the disk cache cannot be read and is made anew: {error}")
            return None
        entry = _unpack(path.name, content)
        if entry is None:
            _warn("damaged", f"the disk cache in {self.folder} has damaged entries; they are made anew")
            _remove(path)
        return entry

    def put(self, key: str, kind: str, header: dict[str, Any], data: bytes) -> None:
        """Keep an entry, in place of any that has the same key and kind."""
        path = self._path(key, kind)
        if path is None or not self._writable:
            return
        content = _pack(path.name, header, data)
        if len(content) > self.limit:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(path, content)
            self._make_room(path.parent, len(content))
        except OSError as error:  # full, read-only, no permission: more attempts would fail alike
            self._writable = False
            self.reason = f"{self.folder} cannot be written: {error.strerror or error}"
            _warn("off", f"the disk cache is not written to any more: {self.reason}")

    def info(self) -> dict[str, Any]:
        """Return folder, limit, reason, and number and bytes of the entries, in total and by kind."""
        kinds: dict[str, dict[str, int]] = {}
        for path, status in sorted(self._entries(), key=lambda e: e[0].name):
            kind = kinds.setdefault(path.suffix[1:], {"entries": 0, "bytes": 0})
            kind["entries"] += 1
            kind["bytes"] += status.st_size
        return {
            "folder": None if self.folder is None else str(self.folder),
            "enabled": self._writable,
            "reason": self.reason,
            "limit": self.limit,
            "entries": sum(k["entries"] for k in kinds.values()),
            "bytes": sum(k["bytes"] for k in kinds.values()),
            "kinds": dict(sorted(kinds.items())),
        }

    def verify(self) -> dict[str, int]:
        """Read every entry and remove those that are damaged; return how many were checked and removed."""
        checked = removed = 0
        for path, _ in list(self._entries()):
            checked += 1
            try:
                whole = _unpack(path.name, _read(path)) is not None
            except FileNotFoundError:  # evicted by another process meanwhile
                continue
            except OSError:
                whole = False
            if not whole:
                _remove(path)
                removed += 1
        return {"checked": checked, "removed": removed}

    def clear(self, keep: Collection[str] = ()) -> int:
        """Remove every entry but those of some kinds; return how many were removed."""
        count = 0
        for path, _ in list(self._entries(temporary=True)):
            if path.suffix[1:] in keep:
                continue
            count += not path.name.startswith(".")
            _remove(path)
        return count

    def _path(self, key: str, kind: str) -> Path | None:
        name = f"{key}.{kind}"
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} does not name an entry: the key comes from digest(), the kind is one word"
            )
        return None if self.folder is None else self.folder / key[:2] / name

    def _entries(
        self, shard: Path | None = None, temporary: bool = False
    ) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the entries of one subfolder or of all; files that go away meanwhile are left out."""
        if self.folder is None:
            return
        shards = [shard] if shard else [self.folder / f"{i:02x}" for i in range(256)]
        for folder in shards:
            try:
                found = sorted(os.scandir(folder), key=lambda e: e.name)
            except OSError:  # not made yet
                continue
            for entry in found:
                if not (_NAME.fullmatch(entry.name) or (temporary and entry.name.startswith(".new-"))):
                    continue
                try:
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue

    def _make_room(self, shard: Path, written: int) -> None:
        """Evict the least recently used entries when the cache has outgrown its limit.

        Looking at every file after every write would cost more than the write.  Keys are hashes, so a 256th
        of the entries is in each subfolder: the one just written to tells when a full look is due.
        """
        self._room -= written
        if self._room > 0:
            return
        estimate = 256 * sum(status.st_size for _, status in self._entries(shard))
        if estimate <= self.limit:
            return
        now = time.time()
        entries = list(self._entries(temporary=True))
        for path, status in entries:
            if path.name.startswith(".") and now - status.st_mtime > _STALE:
                _remove(path)
        whole = sorted(
            (s.st_mtime_ns, p.name, p, s.st_size)
            for p, s in entries
            if not p.name.startswith(".") and p.suffix[1:] not in _KEPT
        )
        total = sum(size for *_, size in whole)
        goal = self.limit - self.limit // 10 if total > self.limit else total
        for _, _, path, size in whole:
            if total <= goal:
                break
            _remove(path)
            total -= size
        self._room = (self.limit - total) // 4


def _pack(name: str, header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    payload = b"".join((_HEADER_LENGTH.pack(len(text)), text, data))
    return _PREFIX.pack(_MAGIC, _hash(name, payload), len(payload)) + payload


def _unpack(name: str, content: bytes) -> tuple[dict[str, Any], bytes] | None:
    if len(content) < _PREFIX.size + _HEADER_LENGTH.size:
        return None
    magic, expected, length = _PREFIX.unpack_from(content)
    payload = content[_PREFIX.size :]
    if magic != _MAGIC or length != len(payload) or expected != _hash(name, payload):
        return None
    start = _HEADER_LENGTH.size
    end = start + _HEADER_LENGTH.unpack_from(payload)[0]
    return json.loads(payload[start:end]), payload[end:]


def _hash(name: str, payload: bytes) -> bytes:
    # The name is part of it: an entry copied or renamed to another key is no entry.
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()


def _read(path: Path) -> bytes:
    """Read a regular file of this user's; mark it as just used."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _trusted(status):
            raise PermissionError(f"{path} is not a file that only this user can write")
        if time.time() - status.st_mtime > 60 and os.utime in os.supports_fd:
            os.utime(file.fileno())
        return file.read()


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".new-{os.getpid()}-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:  # gone already, or not ours to remove: it stays unread
        return
