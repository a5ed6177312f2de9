"""A stable hash of code: the same in every process, another one when an edit can change what the code does.

It follows a function into its constants, nested functions, defaults, closure and the globals of its own
package that it reads by name, and a method into the tables and methods of its class, so that editing a
helper or a table in a development checkout misses the caches.  Objects that are opaque to it count by the
name of their type.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # whose repr says all


def code_fingerprint(*functions: Callable[..., Any]) -> str:
    """Return one hash, of 32 hex digits, for functions or bound methods of one plugin."""
    return _Walk({_package(function) for function in functions}).digest(functions)


class _Walk:
    """One traversal.  Functions and classes are queued, so that its depth does not grow with the code."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages
        self._hash = hashlib.blake2b(digest_size=16)
        self._queue: deque[types.FunctionType | type] = deque()
        self._seen: dict[int, object] = {}  # by id; holds the objects too, so that no id comes up twice

    def digest(self, value: object) -> str:
        self._add(value)
        while self._queue:
            queued = self._queue.popleft()
            if isinstance(queued, type):
                self._enter_class(queued)
            else:
                self._enter_function(queued)
        return self._hash.hexdigest()

    def _write(self, data: bytes) -> None:
        self._hash.update(len(data).to_bytes(8, "little") + data)

    def _is_new(self, value: object) -> bool:
        new = id(value) not in self._seen
        self._seen[id(value)] = value
        return new

    def _add(self, value: object) -> None:
        if type(value) in _PLAIN:
            self._write(repr(value).encode())
            return
        self._write(type(value).__qualname__.encode())
        match value:
            case Enum():
                self._write(str(value).encode())
            case tuple():
                for item in value:
                    self._add(item)
            case frozenset() | set():  # their order differs between processes
                for item in sorted(_Walk(self._packages).digest(item) for item in value):
                    self._write(item.encode())
            case list() if self._is_new(value):
                self._add(tuple(value))
            case dict() if self._is_new(value):
                self._add(tuple(value.items()))
            case types.CodeType():
                self._write(value.co_code)
                self._write(repr((value.co_names, value.co_varnames, value.co_freevars)).encode())
                self._add(value.co_consts)
            case types.FunctionType() | type():
                self._write(f"{value.__module__}.{value.__qualname__}".encode())
                if _package(value) in self._packages and self._is_new(value):
                    self._queue.append(value)
            case types.MethodType():
                owner = value.__self__
                self._add((value.__func__.__code__, owner if isinstance(owner, type) else type(owner)))
                self._add(value.__func__)
            case staticmethod() | classmethod():
                self._add(value.__func__)
            case property():
                self._add((value.fget, value.fset))
            case _ if dataclasses.is_dataclass(value) and self._is_new(value):
                self._add(tuple(getattr(value, field.name, None) for field in dataclasses.fields(value)))
            case _:
                self._write(type(value).__module__.encode())

    def _enter_function(self, function: types.FunctionType) -> None:
        self._add((function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self._add(cell.cell_contents)
            except ValueError:  # a cell that is not filled yet
                self._write(b"empty cell")
        for name in _global_names(function.__code__):
            value = function.__globals__.get(name)
            if value is not None and _package(value) in {"", *self._packages}:
                self._add(value)

    def _enter_class(self, klass: type) -> None:
        self._add(klass.__bases__)
        for name, value in vars(klass).items():
            if not name.startswith("__") or name in ("__init__", "__call__"):
                self._add((name, value))


def _package(value: object) -> str:
    """Return the top-level package that defined a value, "" for plain data."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code and the code nested in it may read, in a fixed order."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
