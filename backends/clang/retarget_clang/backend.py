"""`ClangBackend`: the CPU, through C.  Everything that is particular to this backend can be seen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retarget.errors import CompileError
from retarget.ir import dtypes
from retarget.registry.backend import Backend, Compiler, DeviceInfo, Probe, Runtime
from retarget.registry.capabilities import Capabilities
from retarget.runtime import cpu
from retarget.runtime.pool import wanted_threads

from .compiler import ClangCompiler, find_compiler
from .cpu import machine

if TYPE_CHECKING:
    from .renderer import ClangRenderer

_COMPUTED = tuple(
    d.name for d in dtypes.ARRAY_DTYPES if d.kind != "bool" and not (d.is_float and d.bits < 32)
)
_FUNCTIONS = {name: dict.fromkeys(_COMPUTED, 0.0) for name in ("MAXIMUM", "MINIMUM")}


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
        return cpu.capabilities(target, machine(target), _FUNCTIONS, unroll="pragma")

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
