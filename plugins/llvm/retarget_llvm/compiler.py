"""`LLVMCompiler`: LLVM IR text to an object file, in the process.

llvmlite serialises its calls with a lock; one compilation is many calls, so each gets an LLVM context of its
own and shares nothing with others but the target machine, which no call changes.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from retarget.errors import CompileError
from retarget.registry.backend import Binary, Source
from retarget.runtime import cpu

from . import gpu
from .cpu import TARGETS, cpu_name, is_native, machine

#: Passes in order, by the names of llvmlite's methods; part of the identity.  Programs come vectorised,
#: unrolled and with invariants hoisted, so that more passes (up to O2) were not found to make kernels faster,
#: only compile times longer.
PASSES = ("sroa", "simplify_cfg")
OPTIMIZATION_LEVEL = 2  # of code generation
GPU_LEVEL = 3  # GPUs' compilers find what is left of loops
_UNKNOWN_FEATURES = frozenset({"avx10.1-256"})  # reported by llvmlite, and unknown to its LLVM


class LLVMCompiler:
    """Compiles for one target, "llvm/native" or a generic one; see `retarget.registry.backend.Compiler`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.machine = machine(target)

    def identity(self) -> str:
        """Return what changes the output; without importing llvmlite, since warm starts make cache keys."""
        name = f"host {cpu.identity()}" if is_native(self.target) else cpu_name(self.target)
        system = sys.platform if self.machine.architecture == cpu.architecture() else "linux"
        passes = f"{','.join(PASSES)} O{OPTIMIZATION_LEVEL}"
        return f"llvmlite {_llvmlite_version()} {self.machine.architecture} {system} {name} {passes}"

    def compile(self, source: Source) -> Binary:
        """Compile to an object file.

        Raises
        ------
        CompileError
            LLVM refuses the text, or the target; `log` has its words.
        """
        target_machine = _target_machine(self.target)
        module = self._optimized(source.text, target_machine)
        return Binary(
            target_machine.emit_object(module),
            source.entry,
            source.target,
            source.arguments,
            source.launch,
            metadata={"source": source.text},
        )

    def assembly(self, binary: Binary) -> str:
        """Return the assembly text of a binary that this compiler made: compiled again from its source."""
        source = binary.metadata.get("source")
        if not isinstance(source, str):
            raise CompileError(
                f"{binary.entry}: no LLVM IR in its metadata, from which assembly text is made"
            )
        target_machine = _target_machine(self.target)
        text: str = target_machine.emit_assembly(self._optimized(source, target_machine))
        return text

    def _optimized(self, text: str, target_machine: Any) -> Any:
        """Return the text as a module, verified and optimised."""
        import llvmlite.binding as llvm

        module = _parsed(text, target_machine)
        builder = llvm.create_pass_builder(target_machine, llvm.create_pipeline_tuning_options())
        passes = llvm.create_new_function_pass_manager()
        for name in PASSES:
            getattr(passes, f"add_{name}_pass")()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        return module


class PTXCompiler:
    """Compiles for one GPU, such as "llvm/nvptx-sm_90", to PTX, which the driver translates."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.architecture = gpu.architecture(target)

    def identity(self) -> str:
        """Return what changes the output; without importing llvmlite."""
        return f"llvmlite {_llvmlite_version()} NVPTX {self.architecture.name} O{GPU_LEVEL}"

    def compile(self, source: Source) -> Binary:
        """Compile to PTX, of the oldest version of the language that has the architecture.

        Raises
        ------
        CompileError
            LLVM refuses the text, or the target; `log` has its words.
        """
        import llvmlite.binding as llvm

        target_machine = _gpu_machine(self.target)
        module = _parsed(source.text, target_machine)
        builder = llvm.create_pass_builder(
            target_machine, llvm.create_pipeline_tuning_options(speed_level=GPU_LEVEL)
        )
        builder.getModulePassManager().run(module, builder)
        text: str = target_machine.emit_assembly(module)
        return Binary(
            text.encode(),
            source.entry,
            source.target,
            source.arguments,
            source.launch,
            metadata={"format": "ptx", "source": source.text},
        )

    def assembly(self, binary: Binary) -> str:
        """Return the PTX."""
        return binary.data.decode(errors="replace")


def _parsed(text: str, target_machine: Any) -> Any:
    """Return the text as a module for a target machine, verified."""
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = target_machine.triple
        module.data_layout = str(target_machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError("LLVM refuses the IR", text, str(error)) from error
    return module


@functools.cache
def _gpu_machine(target: str) -> Any:
    """Return LLVM's target machine of a GPU."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    except RuntimeError as error:
        raise CompileError("this LLVM has no NVPTX target", "", str(error)) from error
    return found.create_target_machine(cpu=gpu.architecture(target).name, opt=GPU_LEVEL)


@functools.cache
def _llvmlite_version() -> str:
    """Return the version as the package's own file has it: `importlib.metadata` takes longer to import."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).with_name("_version.py")
        text = file.read_text() if file.is_file() else ""
        if found := re.search(r"^version_version = '(.+)'", text, re.MULTILINE):
            return found[1]
    from importlib.metadata import version

    return version("llvmlite")


@functools.cache
def _target_machine(target: str) -> Any:
    """Return LLVM's target machine.  Position-independent, for objects that are placed anywhere."""
    import llvmlite.binding as llvm

    wanted = machine(target)
    runs_here = wanted.architecture == cpu.architecture()
    if runs_here:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    triple = llvm.get_default_triple() if runs_here else f"{wanted.architecture}-unknown-linux-gnu"
    name, features = cpu_name(target), ""
    if is_native(target):
        name = llvm.get_host_cpu_name()
        host = llvm.get_host_cpu_features()
        signs = {True: "+", False: "-"}
        features = ",".join(signs[host[n]] + n for n in sorted(host) if n not in _UNKNOWN_FEATURES)
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        text = f"this LLVM cannot generate code for {target}; known: {', '.join(TARGETS)}"
        raise CompileError(text, "", str(error)) from error
    return found.create_target_machine(
        cpu=name,
        features=features,
        opt=OPTIMIZATION_LEVEL,
        reloc="pic",
        codemodel="small",
    )
