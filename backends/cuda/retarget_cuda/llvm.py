"""Kernels through LLVM where there is no CUDA compiler: the plugin "llvm" writes and compiles them."""

from __future__ import annotations

from typing import Any

from retarget import registry
from retarget.registry.backend import Backend, Binary, Compiler, Source
from retarget.registry.capabilities import Capabilities

from . import gpu


def backend() -> Backend:
    """Return the plugin.

    Raises
    ------
    BackendUnavailableError
        There is no such plugin, or it is broken; says why.
    """
    return registry.backend("llvm")


def capabilities(target: str) -> Capabilities:
    """Return what kernels for a target such as "cuda/nvptx-sm_90" can do."""
    return backend().capabilities(gpu.llvm_target(target))._replace(target=target)


def renderer(target: str) -> Any:
    """Return the renderer of such a target."""
    made = backend().renderer(gpu.llvm_target(target))
    made.target = target
    return made


class PluginCompiler:
    """The plugin's compiler for such a target; see `retarget.registry.backend.Compiler`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._compiler: Compiler = backend().compiler(gpu.llvm_target(target))

    def identity(self) -> str:
        """Return what changes the output, the plugin's own code included."""
        plugin = registry.registry().identity(gpu.llvm_target(self.target))
        return f"{self._compiler.identity()} {plugin}"

    def compile(self, source: Source) -> Binary:
        """Compile to PTX, or raise `CompileError`."""
        return self._compiler.compile(source)

    def assembly(self, binary: Binary) -> str:
        """Return the PTX."""
        return self._compiler.assembly(binary)
