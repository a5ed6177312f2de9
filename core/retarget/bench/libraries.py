"""The libraries that kernels are compared with: which are installed, their threads, and how each computes.

A library's *way* to compute something takes the library's module and its operands, prepares what can be
prepared (compiles, allocates what is reused), and returns a call without arguments that computes once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UnknownNameError, UserError

Call = Callable[[], Any]
Way = Callable[..., Call]

#: What `--against` takes -> the package that it needs (none for Retarget itself), and what it stands for.
LIBRARIES: dict[str, tuple[str, str]] = {
    "numpy": ("numpy", "NumPy, into reused outputs where it can"),
    "torch": ("torch", "PyTorch, eager, into reused outputs where it can"),
    "torch-fresh": ("torch", "PyTorch, eager, with a new output each time, where that differs much"),
    "torch-compile": ("torch", "torch.compile with its defaults"),
    "tinygrad": ("tinygrad", "tinygrad, under TinyJit"),
    "numba": ("numba", "Numba's parallel loops, into reused outputs"),
    "numexpr": ("numexpr", "NumExpr, into reused outputs"),
    "lazy": ("", "Retarget without rt.jit: the expression is built anew each time"),
}

#: Where libraries are told how many threads to use, each when it is loaded.
_THREAD_VARIABLES = (
    "RETARGET_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
    "NUM_CPU_THREADS",
)  # fmt: skip


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that give every library this many threads."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def installed(name: str) -> bool:
    """Return whether a library of `LIBRARIES` is installed."""
    package, _ = LIBRARIES[name]
    return not package or importlib.util.find_spec(package) is not None


def chosen(text: str) -> tuple[list[str], list[str]]:
    """Return the libraries that a text such as "numpy,torch" names, and those of "all" that are missing.

    Raises
    ------
    UserError
        If one is unknown, or named and not installed.
    """
    names = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if "all" in names:
        return [n for n in LIBRARIES if installed(n)], [n for n in LIBRARIES if not installed(n)]
    for name in names:
        if name not in LIBRARIES:
            raise UnknownNameError("library", name, [*LIBRARIES, "all"])
        if not installed(name):
            package = LIBRARIES[name][0]
            raise UserError(
                f"{package} is not installed here, so there is nothing to compare with: pip install {package}"
            )
    return names, []


def packages(names: Sequence[str]) -> list[str]:
    """Return the packages, besides NumPy, whose versions belong to figures of these libraries."""
    found = dict.fromkeys(LIBRARIES[name][0] for name in names)
    return [package for package in found if package not in ("", "numpy")]


# Operands ---------------------------------------------------------------------------------------------------


def load(name: str, operands: Sequence[np.ndarray[Any, Any]]) -> tuple[Any, list[Any]]:
    """Return a library's module and the operands as its own arrays."""
    package = LIBRARIES[name][0]
    if package == "tinygrad":
        _tinygrad_environment()
    module = importlib.import_module(package)
    if package == "torch":
        module.set_grad_enabled(False)
        return module, [_tensor(module, a) for a in operands]
    if package == "tinygrad":
        return module, [module.Tensor(a, device="CPU").realize() for a in operands]
    return module, list(operands)


def _tensor(torch: Any, a: np.ndarray[Any, Any]) -> Any:
    if a.dtype.name == "bfloat16":  # NumPy's is an extension, which PyTorch does not know
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _tinygrad_environment() -> None:
    """Set what tinygrad reads when it is imported: the CPU, no worker processes, and a compiler."""
    os.environ.setdefault("DEV", "CPU")
    os.environ.setdefault("PARALLEL", "0")
    if shutil.which("clang") is None and "CC" not in os.environ:
        names = (*(f"clang-{n}" for n in range(25, 13, -1)), "cc")
        os.environ["CC"] = next((n for n in names if shutil.which(n)), "cc")


def values(result: Any) -> np.ndarray[Any, Any]:
    """Return any library's result as float64."""
    if type(result).__module__.startswith("torch"):
        result = result.double()
    elif type(result).__module__.startswith("tinygrad"):
        result = result.numpy()
    return np.asarray(result).astype(np.float64)


# Ways -------------------------------------------------------------------------------------------------------


def fresh(expression: Callable[..., Any]) -> Way:
    """Return the way that evaluates `expression(module, *operands)`, with a new output each time."""
    return lambda module, *operands: lambda: expression(module, *operands)


def reused(expression: Callable[..., Any]) -> Way:
    """Return the way that evaluates `expression(module, *operands, out=...)` into one output."""

    def way(module: Any, *operands: Any) -> Call:
        out = expression(module, *operands)
        return lambda: expression(module, *operands, out=out)

    return way


def inductor(expression: Callable[..., Any]) -> Way:
    """Return the way that compiles `expression(torch, *operands)` with torch.compile."""

    def way(torch: Any, *operands: Any) -> Call:
        torch.compiler.reset()
        compiled = torch.compile(lambda *xs: expression(torch, *xs), dynamic=False)
        return lambda: compiled(*operands)

    return way


def tinyjit(expression: Callable[..., Any]) -> Way:
    """Return the way that captures `expression(*operands)` with tinygrad's TinyJit."""

    def way(tinygrad: Any, *operands: Any) -> Call:
        step = tinygrad.TinyJit(lambda *xs: expression(*xs).realize())

        def run() -> Any:
            result = step(*operands)
            tinygrad.Device["CPU"].synchronize()
            return result

        for _ in range(3):  # it captures at the second call
            run()
        return run

    return way


def numexpr(text: str, names: str) -> Way:
    """Return the way that evaluates a text over the operands, named by one letter each, into one output."""

    def way(module: Any, *operands: Any) -> Call:
        local = dict(zip(names, operands, strict=True))
        out = module.evaluate(text, local_dict=local)
        return lambda: module.evaluate(text, local_dict=local, out=out)

    return way


def eager_and_compiled(
    expression: Callable[..., Any], out: bool = False, compare_fresh: bool = False
) -> Mapping[str, Way]:
    """Return PyTorch's ways for one expression; `out` if it takes an output, to reuse it."""
    ways = {
        "torch": reused(expression) if out else fresh(expression),
        "torch-compile": inductor(expression),
    }
    return {**ways, "torch-fresh": fresh(expression)} if compare_fresh else ways
