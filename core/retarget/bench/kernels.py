"""Kernels against NumPy, and PyTorch and tinygrad where they are installed: interleaved, results compared."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InternalError, UnknownNameError, UserError
from .timing import Timing, calls_for, interleave

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Operand = NDArray[np.float32]

PEERS = ("numpy", "torch", "tinygrad")


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel: operand shapes, and how each library computes it.

    Attributes
    ----------
    ours
        Takes the namespace `retarget` and arrays.
    numpy, torch, tinygrad
        Take arrays of that library; `torch` takes the module first.
    work
        Floating-point operations or, where `unit` is GB/s, bytes.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    numpy: Callable[..., Any]
    torch: Callable[..., Any]
    tinygrad: Callable[..., Any]
    work: float
    unit: str = "GB/s"


@dataclass(frozen=True, slots=True)
class Result:
    """A case's times: ours first, then each peer's."""

    case: Case
    timings: dict[str, Timing]

    def as_json(self) -> dict[str, Any]:
        ours = self.timings["retarget"]
        return {
            "case": self.case.name,
            "shapes": [list(s) for s in self.case.shapes],
            "rate": self.case.work / ours.median / 1e9,
            "unit": self.case.unit,
            "times": {
                name: {"ms": t.median * 1e3, "spread": t.spread, "ratio": t.median / ours.median}
                for name, t in self.timings.items()
            },
        }


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(1e-5))
    return centred / scale * weight + bias


def _gelu(x: Any, tanh: Callable[[Any], Any]) -> Any:
    return 0.5 * x * (1.0 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


_M = 2048 * 2048.0

CASES = (
    Case("add", ((2048, 2048), (2048, 2048)), lambda rt, a, b: a + b, np.add, lambda t, a, b: a + b,
         lambda a, b: a + b, 12 * _M),
    Case("sum", ((2048, 2048),), lambda rt, a: rt.sum(a), np.sum, lambda t, a: a.sum(), lambda a: a.sum(),
         4 * _M),
    Case("transpose", ((2048, 2048),), lambda rt, a: a.T + 0.0, lambda a: np.ascontiguousarray(a.T),
         lambda t, a: a.T.contiguous(), lambda a: a.T.contiguous(), 8 * _M),
    Case("gelu", ((2048, 2048),), lambda rt, a: _gelu(a, rt.tanh), lambda a: _gelu(a, np.tanh),
         lambda t, a: t.nn.functional.gelu(a, approximate="tanh"), lambda a: a.gelu(), 8 * _M),
    Case("softmax", ((1024, 1024),), lambda rt, a: rt.softmax(a, axis=1), _softmax, lambda t, a: a.softmax(1),
         lambda a: a.softmax(1), 2 * _M),
    Case("layernorm", ((4096, 768), (768,), (768,)), lambda rt, a, w, b: rt.layer_norm(a, w, b), _layer_norm,
         lambda t, a, w, b: t.nn.functional.layer_norm(a, (768,), w, b),
         lambda a, w, b: a.layernorm() * w + b, 8 * 4096 * 768.0),
    Case("matmul", ((1024, 1024), (1024, 1024)), lambda rt, a, b: a @ b, np.matmul, lambda t, a, b: a @ b,
         lambda a, b: a @ b, 2 * 1024.0**3, "GFLOP/s"),
)  # fmt: skip


def select(names: Sequence[str]) -> list[Case]:
    """Return the cases with these names, or all of them."""
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise UnknownNameError("case", name, [*known, "latency"], "latency stands alone")
    return [known[name] for name in names] or list(CASES)


def peers(text: str) -> list[str]:
    """Return the libraries that "--against" names.

    Raises
    ------
    UserError
        If one is unknown or not installed.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise UnknownNameError("library", name, PEERS)
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"{name} is not installed here, so there is nothing to compare with: pip install {name}"
            )
    return names


def measure(case: Case, device: str, against: Sequence[str], repeat: int) -> Result:
    """Time a case on a device and in other libraries, having compared the results."""
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape, dtype=np.float32) for shape in case.shapes]
    functions = {"retarget": _ours(case, operands, device)}
    functions |= {name: _PREPARE[name](case, operands) for name in against}
    expected = case.numpy(*[a.astype(np.float64) for a in operands])
    scale = float(np.abs(expected).max()) or 1.0
    for name, function in functions.items():
        error = float(np.abs(np.asarray(function(), dtype=np.float64) - expected).max()) / scale
        if not error < 1e-3:
            raise InternalError(
                f"{case.name}: the result of {name} is off by {error:.2g} of its largest value"
            )
    timed = list(functions.values())
    timings = interleave(timed, repeat, [calls_for(f) for f in timed])
    return Result(case, dict(zip(functions, timings, strict=True)))


def _ours(case: Case, operands: Sequence[Operand], device: str) -> Callable[[], Any]:
    from .. import array as rt
    from ..runtime.jit import jit

    arrays = [rt.asarray(a, device=device) for a in operands]
    function = jit(lambda *xs: case.ours(rt, *xs))
    return lambda: function(*arrays)


def _numpy(case: Case, operands: Sequence[Operand]) -> Callable[[], Any]:
    return lambda: case.numpy(*operands)


def _torch(case: Case, operands: Sequence[Operand]) -> Callable[[], Any]:
    torch = importlib.import_module("torch")
    tensors = [torch.from_numpy(a) for a in operands]
    return lambda: case.torch(torch, *tensors)


def _tinygrad(case: Case, operands: Sequence[Operand]) -> Callable[[], Any]:
    tinygrad = importlib.import_module("tinygrad")
    tensors = [tinygrad.Tensor(a, device="CPU").realize() for a in operands]
    step = tinygrad.TinyJit(lambda *xs: case.tinygrad(*xs).realize())

    def run() -> Any:
        result = step(*tensors)
        tinygrad.Device["CPU"].synchronize()
        return _AsNumpy(result)

    for _ in range(3):  # it captures at the second call
        run()
    return run


class _AsNumpy:
    """A tinygrad tensor that NumPy can read, converted only when it is asked."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.tensor.numpy(), dtype)


_PREPARE: dict[str, Callable[[Case, Sequence[Operand]], Callable[[], Any]]] = {
    "numpy": _numpy, "torch": _torch, "tinygrad": _tinygrad,
}  # fmt: skip
