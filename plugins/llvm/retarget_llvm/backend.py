"""`LLVMBackend`: the CPU, and NVIDIA GPUs as PTX, through LLVM IR.  All particulars of it are seen here."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from retarget.ir import dtypes
from retarget.registry.backend import Backend, Compiler, DeviceInfo, Probe, Runtime
from retarget.registry.capabilities import Capabilities
from retarget.runtime import cpu
from retarget.runtime.pool import wanted_threads

from . import gpu
from .compiler import LLVMCompiler, PTXCompiler
from .cpu import machine

if TYPE_CHECKING:
    from .renderer import LLVMRenderer

_INTEGERS = tuple(d.name for d in dtypes.ARRAY_DTYPES if d.is_int or d.kind == "bool")
_FUNCTIONS = {name: dict.fromkeys(_INTEGERS, 0.0) for name in ("MAXIMUM", "MINIMUM")}


class LLVMBackend(Backend):
    """The host CPU as one device; cross-compiles to object files for other CPUs."""

    name = "llvm"

    def probe(self) -> Probe:
        if importlib.util.find_spec("llvmlite") is None:
            return Probe(reason="llvmlite is not installed; `pip install llvmlite`")
        return Probe((DeviceInfo("llvm:0", "llvm/native", cpu.description(), cpu.memory_bytes()),))

    def capabilities(self, target: str) -> Capabilities:
        if gpu.is_gpu(target):
            return gpu.capabilities(target, _FUNCTIONS)
        return cpu.capabilities(target, machine(target), _FUNCTIONS, unroll="replay")

    def renderer(self, target: str) -> LLVMRenderer:
        if gpu.is_gpu(target):
            from .nvptx import NVPTXRenderer

            return NVPTXRenderer(target, self.capabilities(target))
        from .renderer import LLVMRenderer

        return LLVMRenderer(target, self.capabilities(target))

    def identity(self, target: str) -> str:
        return target if gpu.is_gpu(target) else f"{machine(target)} {wanted_threads()}"

    def compiler(self, target: str) -> Compiler:
        return PTXCompiler(target) if gpu.is_gpu(target) else LLVMCompiler(target)

    def runtime(self, device: str) -> Runtime:
        from .runtime import LLVMRuntime

        return LLVMRuntime()
