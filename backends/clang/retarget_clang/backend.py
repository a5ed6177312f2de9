"""`ClangBackend`: the CPU, through C.  Everything that is particular to this backend can be seen here."""

from __future__ import annotations

from retarget.errors import CompileError
from retarget.ir import dtypes
from retarget.registry.backend import Backend, Compiler, DeviceInfo, Probe, Runtime
from retarget.registry.capabilities import Capabilities, Entry, Limits, Support

from . import cpu
from .compiler import ClangCompiler, find_compiler
from .renderer import ClangRenderer

_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")
_EMULATED = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16")
_COMPUTED = tuple(d.name for d in dtypes.ARRAY_DTYPES if d.name not in _EMULATED)


class ClangBackend(Backend):
    """The host CPU as one device."""

    name = "clang"

    def probe(self) -> Probe:
        try:
            compiler = find_compiler()
        except CompileError as error:
            return Probe(reason=str(error))
        cores = cpu.usable_threads()
        description = f"{cpu.host_name()}, {cores} core{'s' if cores > 1 else ''}, {compiler.name}"
        return Probe((DeviceInfo("clang:0", "clang/native", description, _memory()),))

    def capabilities(self, target: str) -> Capabilities:
        machine = cpu.machine(target)
        return Capabilities(
            target=target,
            storage={d.name: _NATIVE for d in dtypes.ARRAY_DTYPES},
            arithmetic={d.name: _AS_FLOAT32 if d.name in _EMULATED else _NATIVE for d in dtypes.ARRAY_DTYPES},
            functions={name: dict.fromkeys(_COMPUTED, 0.0) for name in ("MAXIMUM", "MINIMUM")},
            conversions=frozenset({"float16"}) if machine.half else frozenset(),
            vector_bits=machine.vector_bits,
            vector_memory_bits=machine.vector_bits,
            registers=machine.registers,
            caches=cpu.host_caches(),
            axis_kinds=frozenset({"loop", "unroll", "vector", "thread"}),
            unroll="pragma",
            address_spaces=frozenset({"global", "local", "register"}),
            limits=Limits(local_bytes=256 << 10),  # stack
            threads=cpu.usable_threads(),
        )

    def renderer(self, target: str) -> ClangRenderer:
        return ClangRenderer(target, self.capabilities(target))

    def compiler(self, target: str) -> Compiler:
        return ClangCompiler(target)

    def runtime(self, device: str) -> Runtime:
        from .runtime import ClangRuntime

        return ClangRuntime()


def _memory() -> int:
    """Return the bytes of memory of this machine, 0 where the system does not say."""
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
