"""`CudaBackend`: NVIDIA GPUs, through CUDA C.  Everything particular to this backend can be seen here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retarget.errors import BackendUnavailableError
from retarget.ir.dtypes import ARRAY_DTYPES
from retarget.registry.backend import Backend, Compiler, Probe, Runtime
from retarget.registry.capabilities import Capabilities, Entry, Limits, Support

from . import gpu
from .compiler import CudaCompiler

if TYPE_CHECKING:
    from .renderer import CudaRenderer

_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")
_FLOATS = ("float32", "float64")
_INTEGERS = tuple(d.name for d in ARRAY_DTYPES if d.is_int)
#: Largest errors in ULP, of float32 and float64: CUDA C++ Programming Guide, "Mathematical Functions".  The
#: core calls those that are at least as exact as its own formulas, and others where fast math allows it.
_ERRORS: Mapping[str, tuple[float, float]] = {
    "EXP": (1, 1), "EXP2": (2, 1), "EXPM1": (1, 1),
    "LOG": (1, 1), "LOG2": (1, 1), "LOG10": (2, 1), "LOG1P": (1, 1),
    "SIN": (2, 2), "COS": (2, 2), "TAN": (4, 2), "ASIN": (2, 2), "ACOS": (2, 2), "ATAN": (2, 2),
    "ATAN2": (3, 2), "SINH": (3, 2), "COSH": (2, 1), "TANH": (2, 1), "ASINH": (3, 3), "ACOSH": (4, 3),
    "ATANH": (3, 2), "POW": (4, 2), "ERF": (2, 2),
}  # fmt: skip


def _functions(number: int) -> dict[str, dict[str, float]]:
    exact = (*_INTEGERS, *(("float32",) if number >= 80 else ()))  # max.NaN is an instruction of sm_80
    return {
        **{name: dict(zip(_FLOATS, map(float, errors), strict=True)) for name, errors in _ERRORS.items()},
        **{name: dict.fromkeys(exact, 0.0) for name in ("MAXIMUM", "MINIMUM")},
    }


def _conversions(number: int) -> frozenset[str]:
    return frozenset(
        name
        for name, least in (("float16", 75), ("bfloat16", 80), ("float8_e4m3", 89), ("float8_e5m2", 89))
        if number >= least
    )


class CudaBackend(Backend):
    """Every GPU that NVIDIA's driver shows is one device."""

    name = "cuda"

    def probe(self) -> Probe:
        return Probe(reason="this version compiles for CUDA, and does not run kernels yet")

    def capabilities(self, target: str) -> Capabilities:
        arch = gpu.architecture(target)
        ahead = arch.number >= 80
        return Capabilities(
            target=target,
            storage={d.name: _NATIVE for d in ARRAY_DTYPES},
            arithmetic={d.name: _AS_FLOAT32 if d.is_float and d.bits < 32 else _NATIVE for d in ARRAY_DTYPES},
            functions=_functions(arch.number),
            conversions=_conversions(arch.number),
            vector_bits=128,
            vector_memory_bits=128,
            registers=255,
            caches=(arch.shared, arch.cache),
            axis_kinds=frozenset({"grid", "block", "warp", "loop", "unroll", "vector"}),
            unroll="pragma",
            address_spaces=frozenset({"global", "local", "register"}),
            limits=Limits(
                arguments=512,  # 4 KB of parameters
                grid=gpu.GRID,
                block=gpu.BLOCK,
                block_threads=gpu.THREADS,
                local_bytes=arch.shared,
                warp=gpu.WARP,
            ),
            barriers=_NATIVE,
            async_copies=_NATIVE if ahead else Entry(Support.UNSUPPORTED, "cp.async needs sm_80"),
            fork_safe=False,
        )

    def renderer(self, target: str) -> CudaRenderer:
        from .renderer import CudaRenderer

        return CudaRenderer(target, self.capabilities(target))

    def identity(self, target: str) -> str:
        return target

    def compiler(self, target: str) -> Compiler:
        return CudaCompiler(target)

    def runtime(self, device: str) -> Runtime:
        raise BackendUnavailableError(f"{device} cannot be used: {self.probe().reason}")
