"""The `plugin.toml` format: what a plugin says about itself, read without importing it.

name = "mydevice"                       # also the entry point's name
kind = "backend"                        # or "extension"
api = ">=1,<2"                          # plugin API versions that it works with
ir = "1"                                # IR version that it was written for
provides = "mydevice.backend:Backend"   # module:object, imported only when the plugin is needed
targets = ["mydevice/*"]                # patterns; a backend's begin with its name
default_target = "mydevice/v1"          # backends only
priority = 100                          # higher is preferred by "auto"
before = []                             # extensions that this one's hooks are called before
after = []                              # ... and after
opt_in = false                          # true: active only when named in RETARGET_PLUGINS

[conformance]
known_failures = [{ test = "L3/exp/*", reason = "the driver flushes denormals" }]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast

from ..errors import ParseError, closest_match
from .versions import admits, is_specifier

Kind = Literal["backend", "extension"]


class KnownFailure(NamedTuple):
    """A conformance test (a pattern of names) that a plugin declares to fail, and why."""

    test: str
    reason: str


class Manifest(NamedTuple):
    """A validated `plugin.toml`; the module's docstring explains each key."""

    name: str
    kind: Kind
    api: str
    ir: str
    provides: str
    targets: tuple[str, ...]
    default_target: str = ""
    priority: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    opt_in: bool = False
    known_failures: tuple[KnownFailure, ...] = ()

    def matches(self, target: str) -> bool:
        """Whether one of the target patterns covers `target`."""
        return any(fnmatchcase(target, pattern) for pattern in self.targets)

    def incompatibility(self, api_version: str, ir_version: str) -> str:
        """Return why the plugin cannot work with this API and IR, naming both versions; "" if it can."""
        if not admits(self.api, api_version):
            return f"it needs plugin API {self.api}, and this Retarget has plugin API {api_version}"
        if self.ir != ir_version:
            return f"it was written for IR {self.ir}, and this Retarget has IR {ir_version}"
        return ""


_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_REQUIRED = ("name", "kind", "api", "ir", "provides")
_OPTIONAL = ("targets", "default_target", "priority", "before", "after", "opt_in", "conformance")


def read_manifest(path: Path) -> Manifest:
    """Read and validate a manifest file.

    Raises
    ------
    ParseError
        Not TOML, or a key is unknown, missing or has a wrong value; names the file and the key, with a caret.
    OSError
        The file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not UTF-8 text: {error}") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, origin: str = "plugin.toml") -> Manifest:
    """Parse and validate a manifest; `origin` is the file's name in error messages."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _toml_position(str(error), text)
        raise ParseError(f"{origin}: not valid TOML: {error}", text, position) from error
    reader = _Reader(text, origin, table)
    reader.check_keys((*_REQUIRED, *_OPTIONAL))
    for key in _REQUIRED:
        if key not in table:
            raise ParseError(f"{origin}: key {key!r} is missing; a manifest needs {', '.join(_REQUIRED)}")

    name = reader.string("name")
    if not _NAME.fullmatch(name):
        reader.fail("name", "a lower-case name such as 'mydevice'")
    kind = reader.string("kind")
    if kind not in ("backend", "extension"):
        reader.fail("kind", "'backend' or 'extension'")
    if not _OBJECT.fullmatch(provides := reader.string("provides")):
        reader.fail("provides", "'module:object'")
    _check_specifier(reader, api := reader.string("api"))
    targets = reader.strings("targets")
    default_target = reader.string("default_target")
    if kind == "backend":
        if not targets or not all(pattern.startswith(f"{name}/") for pattern in targets):
            reader.fail("targets", f"patterns that begin with the backend's name, such as '{name}/*'")
        if not any(fnmatchcase(default_target, pattern) for pattern in targets):
            reader.fail("default_target", f"a target that one of {', '.join(targets)} matches")
    elif default_target:
        reader.fail("default_target", "nothing: only backends have targets of their own")
    return Manifest(
        name=name,
        kind=cast(Kind, kind),
        api=api,
        ir=reader.string("ir"),
        provides=provides,
        targets=targets or ("*",),
        default_target=default_target,
        priority=reader.integer("priority"),
        before=reader.strings("before"),
        after=reader.strings("after"),
        opt_in=reader.boolean("opt_in"),
        known_failures=_known_failures(reader),
    )


class _Reader:
    """Typed access to the keys of a table; a wrong value is an error that points at the key."""

    def __init__(self, text: str, origin: str, table: Mapping[str, Any], prefix: str = "") -> None:
        self.text, self.origin, self.table, self.prefix = text, origin, table, prefix

    def check_keys(self, known: tuple[str, ...]) -> None:
        for key in self.table:
            if key not in known:
                match = closest_match(key, known)
                hint = f" (did you mean {match!r}?)" if match else ""
                message = f"{self.origin}: unknown key {self.prefix + key!r}{hint}; known: {', '.join(known)}"
                raise ParseError(message, self.text, self._position(key))

    def fail(self, key: str, expected: str) -> NoReturn:
        found = f"not {self.table[key]!r}" if key in self.table else "and it is missing"
        message = f"{self.origin}: key {self.prefix + key!r} must be {expected}, {found}"
        raise ParseError(message, self.text, self._position(key))

    def string(self, key: str) -> str:
        value = self.table.get(key, "")
        if not isinstance(value, str) or (key in self.table and not value):
            self.fail(key, "a non-empty string")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.fail(key, "a list of strings")
        return tuple(value)

    def integer(self, key: str) -> int:
        value = self.table.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(key, "an integer")
        return value

    def boolean(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def _position(self, key: str) -> int | None:
        found = re.search(rf"(?:^|[\s{{,\[.]){re.escape(key)}(?=\s*[=\].])", self.text, re.MULTILINE)
        return found.end() - len(key) if found else None


def _check_specifier(reader: _Reader, api: str) -> None:
    if not is_specifier(api):
        reader.fail("api", "a version specifier such as '>=1,<2'")


def _known_failures(reader: _Reader) -> tuple[KnownFailure, ...]:
    table = reader.table.get("conformance", {})
    if not isinstance(table, dict):
        reader.fail("conformance", "a table")
    section = _Reader(reader.text, reader.origin, table, "conformance.")
    section.check_keys(("known_failures",))
    entries = table.get("known_failures", [])
    expected = "a list of { test = 'pattern', reason = 'why' }"
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        section.fail("known_failures", expected)
    failures = []
    for entry in entries:
        item = _Reader(reader.text, reader.origin, entry, "conformance.known_failures.")
        item.check_keys(("test", "reason"))
        if entry.keys() != {"test", "reason"}:
            section.fail("known_failures", expected)
        failures.append(KnownFailure(item.string("test"), item.string("reason")))
    return tuple(failures)


def _toml_position(message: str, text: str) -> int | None:
    """Return the offset that a tomllib message speaks of ("... (at line 3, column 5)")."""
    found = re.search(r"at line (\d+), column (\d+)", message)
    if not found:
        return None
    line, column = int(found[1]), int(found[2])
    return sum(len(row) for row in text.splitlines(keepends=True)[: line - 1]) + column - 1
