"""`LLVMBackend`: the CPU, through LLVM IR.  All that is particular to this backend is seen here."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from retarget.ir import dtypes
from retarget.registry.backend import Backend, Compiler, DeviceInfo, Probe, Runtime
from retarget.registry.capabilities import Capabilities, Entry, Limits, Support
from retarget.runtime import cpu
from retarget.runtime.pool import wanted_threads

from .compiler import LLVMCompiler
from .cpu import machine

if TYPE_CHECKING:
    from .renderer import LLVMRenderer

_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")
_EMULATED = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16")
_INTEGERS = tuple(d.name for d in dtypes.ARRAY_DTYPES if d.is_int or d.kind == "bool")


class LLVMBackend(Backend):
    """The host CPU as one device; cross-compiles to object files for other CPUs."""

    name = "llvm"

    def probe(self) -> Probe:
        if importlib.util.find_spec("llvmlite") is None:
            return Probe(reason="llvmlite is not installed; `pip install llvmlite`")
        return Probe((DeviceInfo("llvm:0", "llvm/native", cpu.description(), cpu.memory_bytes()),))

    def capabilities(self, target: str) -> Capabilities:
        found = machine(target)
        return Capabilities(
            target=target,
            storage={d.name: _NATIVE for d in dtypes.ARRAY_DTYPES},
            arithmetic={d.name: _AS_FLOAT32 if d.name in _EMULATED else _NATIVE for d in dtypes.ARRAY_DTYPES},
            functions={name: dict.fromkeys(_INTEGERS, 0.0) for name in ("MAXIMUM", "MINIMUM")},
            conversions=frozenset({"float16"}) if found.half else frozenset(),
            vector_bits=found.vector_bits,
            vector_memory_bits=found.vector_bits,
            registers=found.vector_registers,
            caches=cpu.caches(),
            axis_kinds=frozenset({"loop", "unroll", "vector", "thread"}),
            unroll="replay",
            address_spaces=frozenset({"global", "local", "register"}),
            limits=Limits(local_bytes=256 << 10),  # stack
            threads=wanted_threads(),
        )

    def renderer(self, target: str) -> LLVMRenderer:
        from .renderer import LLVMRenderer

        return LLVMRenderer(target, self.capabilities(target))

    def identity(self, target: str) -> str:
        return f"{machine(target)} {wanted_threads()}"

    def compiler(self, target: str) -> Compiler:
        return LLVMCompiler(target)

    def runtime(self, device: str) -> Runtime:
        from .runtime import LLVMRuntime

        return LLVMRuntime()
