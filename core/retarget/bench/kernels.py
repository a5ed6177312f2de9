"""What is computed by `retarget bench`: cases with their operands, ways, targets, and the sets of them."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import UnknownNameError
from . import minilm
from .libraries import Way, eager_and_compiled, fresh, numexpr, reused, tinyjit

Operand = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """How much faster than the fastest of some libraries a case should be.

    Attributes
    ----------
    ratio
        Their time over ours, at least.
    against
        Names of libraries.
    """

    ratio: float
    against: tuple[str, ...]

    def __str__(self) -> str:
        return f"≥ {self.ratio:g} of {' and '.join(self.against)}"


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation, as Retarget and each library write it.

    Attributes
    ----------
    ours
        Takes the namespace `retarget` and arrays, and returns an array.
    reference
        Takes NumPy arrays, floats of 64 bits and integers as they are, and returns what is right.
    ways
        Library -> its way; see `libraries`.
    """

    ours: Callable[..., Any]
    reference: Callable[..., Any]
    ways: Mapping[str, Way]


@dataclass(frozen=True, slots=True)
class Case:
    """A computation on operands of given shapes.

    Attributes
    ----------
    name, sets
        What it is called by, and the sets that it belongs to.
    shapes
        Of the operands.
    operations
        Arithmetic operations of one call, as written: a function counts as one, a multiply-add as two.
    dtype
        Of the operands, a name that NumPy (with ml_dtypes) knows.
    goal
        What it should reach; None where nothing is said.
    tolerance
        The largest error that counts as right, relative to the largest value of the result.
    positive
        Whether operands are drawn from [0, 1), so that sums do not cancel, rather than a normal
        distribution.
    by_operations
        Whether its rate is given in operations rather than in bytes.
    make
        Makes the operands, where they are not drawn.
    held
        Bytes that are read besides the operands: weights.
    """

    name: str
    sets: tuple[str, ...]
    computation: Computation
    shapes: tuple[tuple[int, ...], ...]
    operations: float
    dtype: str = "float32"
    goal: Goal | None = None
    tolerance: float = 1e-5
    positive: bool = False
    by_operations: bool = False
    make: Callable[[], Sequence[Operand]] | None = field(default=None, repr=False)
    held: float = 0.0

    def operands(self) -> list[Operand]:
        """Return the operands, the same each time."""
        if self.make is not None:
            return list(self.make())
        rng = np.random.default_rng(0)
        if self.dtype == "int8":
            return [rng.integers(-128, 128, shape, np.int8) for shape in self.shapes]
        draw = rng.random if self.positive else rng.standard_normal
        return [draw(shape, dtype=np.float32).astype(_dtype(self.dtype), copy=False) for shape in self.shapes]

    @property
    def title(self) -> str:
        """The name with the shapes."""
        shapes = " ".join(dict.fromkeys("x".join(map(str, shape)) for shape in self.shapes[:2]))
        kind = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.name} {shapes}{kind}".rstrip()


@dataclass(frozen=True, slots=True)
class Start:
    """What it costs to start a parallel kernel: a call of a tiny kernel in two threads less one in one.

    Attributes
    ----------
    target
        Microseconds, at most.
    """

    name: str = "start"
    sets: tuple[str, ...] = ("cpu", "start")
    target: float = 2.0

    @property
    def title(self) -> str:
        return "start of a kernel in two threads"


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


# Matrix products --------------------------------------------------------------------------------------------


def _matmul(left: bool = False, right: bool = False) -> Computation:
    """Return the product of two matrices, of which some lie transposed in memory."""

    def turned(a: Any, b: Any) -> tuple[Any, Any]:
        return (a.T if left else a), (b.T if right else b)

    def expression(module: Any, a: Any, b: Any, **out: Any) -> Any:
        return module.matmul(*turned(a, b), **out)

    return Computation(
        expression,
        lambda a, b: np.matmul(*turned(a, b)),
        {
            "numpy": reused(expression),
            **eager_and_compiled(expression, out=True),
            "tinygrad": tinyjit(lambda a, b: turned(a, b)[0] @ turned(a, b)[1]),
        },
    )


def _widened(dtype: str, torch: Callable[..., Any], out: bool = True, tinygrad: bool = True) -> Computation:
    """Return the product of two narrow matrices, accumulated in a wider dtype, which is the result's."""
    ways = dict(eager_and_compiled(torch, out))
    if tinygrad:
        ways["tinygrad"] = tinyjit(lambda a, b: a.matmul(b, dtype=dtype))
    return Computation(
        lambda rt, a, b: a.astype(getattr(rt, dtype)) @ b.astype(getattr(rt, dtype)),
        lambda a, b: a.astype(np.float64) @ b.astype(np.float64),
        ways,
    )


def _product(
    name: str, m: int, n: int, k: int, goal: Goal, dtype: str = "float32", kind: str = "nn", **more: Any
) -> Case:
    left, right = kind[0] == "t", kind[1] == "t"
    shapes = ((k, m) if left else (m, k), (n, k) if right else (k, n))
    more = {"computation": _matmul(left, right), **more}
    return Case(
        name, ("cpu", "matmul"), shapes=shapes, operations=2.0 * m * n * k, dtype=dtype, goal=goal,
        by_operations=True, **more,
    )  # fmt: skip


def _torch_product(torch: Any, a: Any, b: Any, **out: Any) -> Any:
    return torch.matmul(a, b, **out)


def _torch_integers(torch: Any, a: Any, b: Any, **out: Any) -> Any:
    return torch._int_mm(a, b, **out)  # the one that has int32 results


_OPENBLAS = Goal(1.0, ("numpy",))
_NEARLY = Goal(0.95, ("numpy",))

MATMULS = (
    _product("matmul-512", 512, 512, 512, _OPENBLAS),
    _product("matmul-1024", 1024, 1024, 1024, _OPENBLAS),
    _product("matmul-2048", 2048, 2048, 2048, _OPENBLAS),
    _product("matmul-odd", 1000, 777, 1003, _NEARLY),
    _product("matmul-nt", 1024, 1024, 1024, _NEARLY, kind="nt"),
    _product("matmul-tn", 1024, 1024, 1024, _NEARLY, kind="tn"),
    _product("matmul-tt", 1024, 1024, 1024, _NEARLY, kind="tt"),
    *[_product(f"matmul-rows-{m}", m, 1024, 1024, _NEARLY) for m in (1, 2, 4, 8, 16, 32)],
    _product("matmul-32", 32, 32, 32, Goal(0.7, ("numpy",))),
    *[_product(f"matmul-{n}", n, n, n, _NEARLY) for n in (64, 128, 256)],
    _product("matmul-f64", 1024, 1024, 1024, _OPENBLAS, "float64"),
    _product("matmul-f16", 1024, 1024, 1024, Goal(0.95, ("torch",)), "float16",
             computation=_widened("float32", _torch_product), tolerance=2e-3),
    _product("matmul-bf16", 1024, 1024, 1024, Goal(1.0, ("torch",)), "bfloat16",
             computation=_widened("float32", _torch_product, tinygrad=False), tolerance=1e-2),
    _product("matmul-int8", 1024, 1024, 1024, Goal(0.9, ("torch",)), "int8",
             computation=_widened("int32", _torch_integers, out=False), tolerance=0.0),
)  # fmt: skip

# Convolutions -----------------------------------------------------------------------------------------------


def _convolution(stride: int, padding: int, groups: int) -> Computation:
    def torch(t: Any, x: Any, w: Any) -> Any:
        return t.nn.functional.conv2d(x, w, stride=stride, padding=padding, groups=groups)

    def reference(x: Operand, w: Operand) -> Operand:
        pad = (padding, padding)
        x = np.pad(x, ((0, 0), (0, 0), pad, pad))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
        windows = windows[:, :, ::stride, ::stride]
        if groups > 1:  # depthwise
            return np.asarray(np.einsum("nchwyx,cyx->nchw", windows, w[:, 0]))
        return np.moveaxis(np.asarray(np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3)))), 3, 1)

    return Computation(
        lambda rt, x, w: rt.conv2d(x, w, stride=stride, padding=padding, groups=groups),
        reference,
        {
            **eager_and_compiled(torch),
            "tinygrad": tinyjit(lambda x, w: x.conv2d(w, stride=stride, padding=padding, groups=groups)),
        },
    )


def _conv(
    name: str, x: tuple[int, ...], w: tuple[int, ...], goal: float, stride: int = 1, groups: int = 1
) -> Case:
    padding = w[2] // 2
    high, wide = [(n + 2 * padding - w[2]) // stride + 1 for n in x[2:]]
    operations = 2.0 * x[0] * high * wide * math.prod(w)
    return Case(
        name, ("cpu", "conv"), _convolution(stride, padding, groups), (x, w), operations,
        goal=Goal(goal, ("torch",)), by_operations=True,
    )  # fmt: skip


CONVOLUTIONS = (
    _conv("conv-3x3", (8, 64, 56, 56), (64, 64, 3, 3), 1.0),
    _conv("conv-3x3-stride-2", (8, 64, 56, 56), (64, 64, 3, 3), 0.8, stride=2),
    _conv("conv-1x1", (8, 64, 56, 56), (64, 64, 1, 1), 1.0),
    _conv("conv-7x7-stride-2", (8, 3, 224, 224), (64, 3, 7, 7), 0.8, stride=2),
    _conv("conv-depthwise", (8, 64, 56, 56), (64, 1, 3, 3), 0.8, groups=64),
)

# Elementwise ------------------------------------------------------------------------------------------------


def _add(module: Any, a: Any, b: Any, **out: Any) -> Any:
    return module.add(a, b, **out)


def _numba_add(numba: Any, a: Operand, b: Operand) -> Callable[[], Operand]:
    prange = numba.prange

    def add(a: Operand, b: Operand, out: Operand) -> None:
        for n in prange(a.size):
            out[n] = a[n] + b[n]

    compiled = numba.njit(parallel=True)(add)
    out = np.empty_like(a)
    flat = [x.reshape(-1) for x in (a, b, out)]

    def call() -> Operand:
        compiled(*flat)
        return out

    return call


ADD = Computation(
    lambda rt, a, b: a + b,
    np.add,
    {
        "numpy": reused(_add),
        **eager_and_compiled(_add, out=True, compare_fresh=True),
        "tinygrad": tinyjit(lambda a, b: a + b),
        "numba": _numba_add,
        "numexpr": numexpr("a + b", "ab"),
    },
)


def _numpy_chain(module: Any, v: Operand, w: Operand) -> Callable[[], Operand]:
    out = np.empty_like(v)

    def call() -> Operand:
        np.multiply(v, np.float32(2), out=out)
        np.add(out, np.float32(1), out=out)
        np.tanh(out, out=out)
        np.multiply(out, w, out=out)
        return np.subtract(out, v, out=out)

    return call


def _numba_chain(numba: Any, v: Operand, w: Operand) -> Callable[[], Operand]:
    prange, tanh, one, two = numba.prange, math.tanh, np.float32(1), np.float32(2)

    def chain(v: Operand, w: Operand, out: Operand) -> None:
        for n in prange(v.size):
            out[n] = tanh(v[n] * two + one) * w[n] - v[n]

    compiled = numba.njit(parallel=True)(chain)
    out = np.empty_like(v)

    def call() -> Operand:
        compiled(v, w, out)
        return out

    return call


CHAIN = Computation(
    lambda rt, v, w: rt.tanh(v * 2 + 1) * w - v,
    lambda v, w: np.tanh(v * 2 + 1) * w - v,
    {
        "numpy": _numpy_chain,
        **eager_and_compiled(lambda t, v, w: t.tanh(v * 2 + 1) * w - v),
        "tinygrad": tinyjit(lambda v, w: (v * 2 + 1).tanh() * w - v),
        "numba": _numba_chain,
        "numexpr": numexpr("tanh(v * 2 + 1) * w - v", "vw"),
    },
)


def _gelu(x: Any, tanh: Callable[[Any], Any]) -> Any:
    return 0.5 * x * (1.0 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


GELU = Computation(
    lambda rt, a: _gelu(a, rt.tanh),
    lambda a: _gelu(a, np.tanh),
    {
        "numpy": fresh(lambda np, a: _gelu(a, np.tanh)),
        **eager_and_compiled(lambda t, a: t.nn.functional.gelu(a, approximate="tanh")),
        "tinygrad": tinyjit(lambda a: a.gelu()),
    },
)

# Reductions, rows, layout -----------------------------------------------------------------------------------


def _numba_sum(numba: Any, a: Operand) -> Callable[[], Any]:
    prange, zero = numba.prange, np.float32(0)

    def total(a: Operand) -> Any:
        found = zero
        for n in prange(a.size):
            found += a[n]
        return found

    compiled = numba.njit(parallel=True, fastmath={"reassoc", "nsz"})(total)
    flat = a.reshape(-1)
    return lambda: compiled(flat)


def _sum(axis: int | None) -> Computation:
    ways: dict[str, Way] = {
        **eager_and_compiled(lambda t, a: t.sum(a) if axis is None else t.sum(a, axis)),
        "tinygrad": tinyjit(lambda a: a.sum(axis)),
    }
    if axis is None:
        ways |= {"numpy": fresh(lambda np, a: np.sum(a)), "numba": _numba_sum}
    else:
        ways |= {
            "numpy": reused(lambda np, a, **out: np.sum(a, axis, **out)),
            "torch": reused(lambda t, a, **out: t.sum(a, axis, **out)),
        }
    return Computation(lambda rt, a: rt.sum(a, axis=axis), lambda a: np.sum(a, axis), ways)


def _softmax(x: Operand) -> Operand:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _numpy_softmax(module: Any, x: Operand) -> Callable[[], Operand]:
    out = np.empty_like(x)

    def call() -> Operand:
        np.subtract(x, x.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(axis=1, keepdims=True), out=out)
        return out

    return call


def _torch_softmax(torch: Any, x: Any, **out: Any) -> Any:
    return torch.softmax(x, 1, **out)


SOFTMAX = Computation(
    lambda rt, x: rt.softmax(x, axis=1),
    _softmax,
    {
        "numpy": _numpy_softmax,
        **eager_and_compiled(_torch_softmax, out=True, compare_fresh=True),
        "tinygrad": tinyjit(lambda x: x.softmax(1)),
    },
)


def _layer_norm(x: Operand, weight: Operand, bias: Operand) -> Operand:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + x.dtype.type(1e-5))
    return np.asarray(centred / scale * weight + bias)


def _torch_layer_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


LAYER_NORM = Computation(
    lambda rt, x, w, b: rt.layer_norm(x, w, b),
    _layer_norm,
    {
        "numpy": fresh(lambda np, *operands: _layer_norm(*operands)),
        **eager_and_compiled(_torch_layer_norm),
        "tinygrad": tinyjit(lambda x, w, b: x.layernorm() * w + b),
    },
)


def _numpy_transpose(module: Any, a: Operand) -> Callable[[], Operand]:
    out = np.empty(a.shape[::-1], a.dtype)

    def call() -> Operand:
        np.copyto(out, a.T)
        return out

    return call


def _torch_transpose(torch: Any, a: Any) -> Callable[[], Any]:
    out, turned = torch.empty(a.T.shape), a.T
    return lambda: out.copy_(turned)


TRANSPOSE = Computation(
    lambda rt, a: a.T,
    lambda a: a.T,
    {
        "numpy": _numpy_transpose,
        **eager_and_compiled(lambda t, a: a.T.contiguous()),
        "torch": _torch_transpose,
        "tinygrad": tinyjit(lambda a: a.T.contiguous()),
    },
)

_LARGE = (4096, 4096)
_N = float(math.prod(_LARGE))


def _stream(
    name: str, part: str, computation: Computation, shapes: tuple[tuple[int, ...], ...], operations: float,
    ratio: float, against: Sequence[str] = ("torch",), **more: Any,
) -> Case:  # fmt: skip
    return Case(
        name, ("cpu", part), computation, shapes, operations, goal=Goal(ratio, tuple(against)), **more
    )


STREAMS = (
    _stream("add-16m", "elementwise", ADD, (_LARGE, _LARGE), _N, 1.0, ("torch", "numba")),
    _stream("tanh-16m", "elementwise", CHAIN, ((1 << 24,),) * 2, 5 * _N, 8.0, ("numpy", "torch-compile")),
    _stream("sum-16m", "reduction", _sum(None), ((1 << 24,),), _N, 1.0, positive=True),
    _stream("sum-axis-0", "reduction", _sum(0), (_LARGE,), _N, 2.0, positive=True),
    _stream("sum-axis-1", "reduction", _sum(1), (_LARGE,), _N, 1.0, positive=True),
    _stream("softmax-4096", "rows", SOFTMAX, (_LARGE,), 5 * _N, 1.1),
    _stream("layernorm-4096", "rows", LAYER_NORM, (_LARGE, (4096,), (4096,)), 8 * _N, 4.0),
    _stream("transpose-4096", "layout", TRANSPOSE, (_LARGE,), 0.0, 4.0),
)

# A model ----------------------------------------------------------------------------------------------------

MINILM = Case(
    "minilm", ("cpu", "model"),
    Computation(minilm.ours, minilm.reference,
                {"torch": minilm.torch_way, "torch-compile": minilm.compiled_way}),
    ((32, 32),), 32 * 32 * 2 * 6 * (4 * 384 * 384 + 2 * 384 * 1536 + 2 * 32 * 384.0),
    goal=Goal(1.2, ("torch", "torch-compile")), by_operations=True, make=minilm.operands, tolerance=1e-4,
    held=4.0 * 6 * (4 * 384 * 384 + 2 * 384 * 1536),
)  # fmt: skip

# Sets -------------------------------------------------------------------------------------------------------

_M = 2048 * 2048.0

#: A quick look, and the default.
SMALL = (
    Case("add", ("small",), ADD, ((2048, 2048),) * 2, _M),
    Case("sum", ("small",), _sum(None), ((2048, 2048),), _M, positive=True),
    Case("transpose", ("small",), TRANSPOSE, ((2048, 2048),), 0.0),
    Case("gelu", ("small",), GELU, ((2048, 2048),), 9 * _M),
    Case("softmax", ("small",), SOFTMAX, ((1024, 1024),), 5 * 1024 * 1024.0),
    Case("layernorm", ("small",), LAYER_NORM, ((4096, 768), (768,), (768,)), 8 * 4096 * 768.0),
    Case("matmul", ("small",), _matmul(), ((1024, 1024),) * 2, 2 * 1024.0**3, by_operations=True),
)

CASES: tuple[Case | Start, ...] = (*SMALL, *MATMULS, *CONVOLUTIONS, *STREAMS, MINILM, Start())
SETS = tuple(dict.fromkeys(name for case in CASES for name in case.sets))


def select(names: Sequence[str], chosen_set: str | None = None) -> list[Case | Start]:
    """Return the cases with these names, or patterns such as "matmul*", and those of a set.

    Without names and set it is the set "small".

    Raises
    ------
    UnknownNameError
        If a name fits no case, or there is no such set.
    """
    if chosen_set is not None and chosen_set not in SETS:
        raise UnknownNameError("set", chosen_set, SETS)
    known = [case.name for case in CASES]
    for name in names:
        if not fnmatch.filter(known, name):
            raise UnknownNameError("case", name, [*known, "latency"], "latency stands alone")
    if not names and chosen_set is None:
        chosen_set = "small"
    return [
        case
        for case in CASES
        if chosen_set in case.sets or any(fnmatch.fnmatchcase(case.name, name) for name in names)
    ]
