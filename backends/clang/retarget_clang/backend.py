"""`ClangBackend`: the CPU, through C.  Everything that is particular to this backend can be seen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retarget.errors import CompileError
from retarget.ir import dtypes
from retarget.registry.backend import Backend, Compiler, DeviceInfo, Probe, Runtime
from retarget.registry.capabilities import Capabilities, Entry, Limits, Support
from retarget.runtime import cpu
from retarget.runtime.pool import wanted_threads

from .compiler import ClangCompiler, find_compiler
from .cpu import machine

if TYPE_CHECKING:
    from .renderer import ClangRenderer

_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")
_EMULATED = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16")
_COMPUTED = tuple(d.name for d in dtypes.ARRAY_DTYPES if d.kind != "bool" and d.name not in _EMULATED)


class ClangBackend(Backend):
    """The host CPU as one device."""

    name = "clang"

    def probe(self) -> Probe:
        try:
            compiler = find_compiler()
        except CompileError as error:
            return Probe(reason=str(error))
        description = f"{cpu.description()}, {compiler.name}"
        return Probe((DeviceInfo("clang:0", "clang/native", description, cpu.memory_bytes()),))

    def capabilities(self, target: str) -> Capabilities:
        found = machine(target)
        return Capabilities(
            target=target,
            storage={d.name: _NATIVE for d in dtypes.ARRAY_DTYPES},
            arithmetic={d.name: _AS_FLOAT32 if d.name in _EMULATED else _NATIVE for d in dtypes.ARRAY_DTYPES},
            functions={name: dict.fromkeys(_COMPUTED, 0.0) for name in ("MAXIMUM", "MINIMUM")},
            conversions=frozenset({"float16"}) if found.half else frozenset(),
            vector_bits=found.vector_bits,
            vector_memory_bits=found.vector_bits,
            registers=found.vector_registers,
            caches=cpu.caches(),
            axis_kinds=frozenset({"loop", "unroll", "vector", "thread"}),
            unroll="pragma",
            address_spaces=frozenset({"global", "local", "register"}),
            limits=Limits(local_bytes=256 << 10),  # stack
            threads=wanted_threads(),
        )

    def renderer(self, target: str) -> ClangRenderer:
        from .renderer import ClangRenderer

        return ClangRenderer(target, self.capabilities(target))

    def identity(self, target: str) -> str:
        return f"{machine(target)} {wanted_threads()}"

    def compiler(self, target: str) -> Compiler:
        return ClangCompiler(target)

    def runtime(self, device: str) -> Runtime:
        from .runtime import ClangRuntime

        return ClangRuntime()
