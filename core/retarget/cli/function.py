"""FILE:FUNC, as `show` and `compile` take it: the lazy arrays that a function of a Python file returns."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RetargetError, UnknownNameError, UserError

if TYPE_CHECKING:
    from ..array.array import Array

_FORM = "FILE:FUNC, such as model.py:softmax, where FUNC takes no required argument and returns lazy arrays"


def arrays_of(spec: str) -> list[Array]:
    """Import the file, call the function and return the arrays of its result that are still to be computed.

    Raises
    ------
    UserError
        If the file or function does not exist, fails, or returns something else.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name:
        raise UserError(f"{spec!r} does not name a function: write {_FORM}")
    function = _function(Path(file), name)
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UserError(f"{spec} needs the argument {needed[0]}: write {_FORM}")
    result = _run(function, spec)
    arrays = _collect(result, spec)
    from ..ir import ops

    lazy = [a for a in arrays if a.node.op is not ops.BUFFER]
    if not lazy:
        raise UserError(
            f"{spec} returned no array that is still to be computed, so there is no kernel to look at"
        )
    return lazy


def _function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise UserError(f"there is no file {path} (in {Path.cwd()}): write {_FORM}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    loader = spec.loader
    _run(lambda: loader.exec_module(module), str(path))
    own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    found = getattr(module, name, None)
    if not callable(found):
        raise UnknownNameError(f"function of {path}", name, own)
    function: Callable[..., Any] = found
    return function


def _run(function: Callable[[], Any], what: str) -> Any:
    """Call the caller's code; an error of its own is told as one line, with its place."""
    try:
        return function()
    except (RetargetError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit of a script too
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}:{frame.lineno}"
        raise UserError(
            f"{what} raised {type(error).__name__}: {error} (at {where}; --debug shows more)"
        ) from error


def _collect(result: Any, spec: str) -> list[Array]:
    from ..array.array import Array

    if isinstance(result, Array):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        return [a for each in result for a in _collect(each, spec)]
    raise UserError(
        f"{spec} returned {type(result).__name__}; it must return a lazy array, or a tuple or list of them"
    )
