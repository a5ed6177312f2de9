"""`CudaBackend`: NVIDIA GPUs, through CUDA C.  Everything particular to this backend can be seen here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retarget.errors import BackendUnavailableError
from retarget.ir.dtypes import ARRAY_DTYPES
from retarget.registry.backend import Backend, Compiler, Probe, Runtime
from retarget.registry.capabilities import Capabilities, Entry, Support
from retarget.runtime import nvidia

from . import gpu, llvm
from .compiler import CudaCompiler

if TYPE_CHECKING:
    from retarget.codegen.renderer import Renderer

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
        if gpu.llvm_target(target):
            return llvm.capabilities(target)
        arch = gpu.architecture(target)
        functions, conversions = _functions(arch.number), _conversions(arch.number)
        caps = nvidia.capabilities(target, arch, functions, conversions, unroll="pragma")
        return caps._replace(images=Entry(Support.EMULATED, "a texel is a load of 8 or 16 bytes from memory"))

    def renderer(self, target: str) -> Renderer:
        if gpu.llvm_target(target):
            instead: Renderer = llvm.renderer(target)
            return instead
        from .renderer import CudaRenderer

        return CudaRenderer(target, self.capabilities(target))

    def identity(self, target: str) -> str:
        return target

    def compiler(self, target: str) -> Compiler:
        return llvm.PluginCompiler(target) if gpu.llvm_target(target) else CudaCompiler(target)

    def runtime(self, device: str) -> Runtime:
        raise BackendUnavailableError(f"{device} cannot be used: {self.probe().reason}")
