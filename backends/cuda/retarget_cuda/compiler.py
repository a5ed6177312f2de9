"""`CudaCompiler`: CUDA C to machine code (a cubin) by NVRTC, or by nvcc where there is no NVRTC.

For an architecture that the compiler does not know yet, the output is PTX of the newest one that it knows,
which the driver translates.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retarget.codegen.tools import excerpt, run_tool
from retarget.errors import CompileError, UnknownNameError
from retarget.registry.backend import Binary, Source

from . import gpu
from .nvrtc import ADVICE, Nvrtc, file_identity, find_nvrtc

#: Floating point is IEEE's: nothing contracted (the renderer asks for it by name), nothing flushed to zero.
#: Warning 68 is of constants that are meant to wrap, 177 of names that are not used.
FLAGS = (
    "--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
    "--diag-suppress=68,177"
)  # fmt: skip
COMPILERS = ("nvrtc", "nvcc", "llvm")
#: What ptxas says of every kernel.
_INFO = re.compile(r"^ptxas\s+info\s.*$|^.*\d+ bytes stack frame, .*$", re.MULTILINE)
_NUMBERS = {
    "registers": r"Used (\d+) registers", "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads", "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}  # fmt: skip


class CudaCompiler:
    """Compiles for one target, such as "cuda/sm_90a"; see `retarget.registry.backend.Compiler`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.architecture = gpu.architecture(target)

    def identity(self) -> str:
        """Return the compiler's file or version, and the flags; loads no compiler."""
        return f"{tool_identity()} [{' '.join(FLAGS)}] {self.architecture.name}"

    def compile(self, source: Source) -> Binary:
        """Compile to a cubin, or to PTX for an architecture that is newer than the compiler.

        Raises
        ------
        CompileError
            There is no compiler, or it refuses the source; shows the lines that it complains about.
        """
        tool = find_tool()
        flags, output = self.options(known_architectures(tool))
        if isinstance(tool, Nvrtc):
            made = tool.compile(
                source.text, "kernel.cu", [*flags, "--device-as-default-execution-space"], output
            )
            data, log, failed = made.data, made.log, tool.error(made.result) if made.result else ""
            name = f"NVRTC {_dotted(tool.version)}"
        else:
            data, log, failed = _nvcc(tool, source.text, flags, output)
            name = nvcc_version(tool)
        if failed or not data:
            text = f"{name} cannot compile {source.entry} for {self.target} ({failed})"
            raise CompileError(text + excerpt(source.text, _complaints(log)), source.text, log)
        if output == "PTX":
            data = data.rstrip(b"\0")
        metadata = {"format": output.lower(), "source": source.text, **usage(log)}
        remarks = _INFO.sub("", log).strip()
        return Binary(data, source.entry, source.target, source.arguments, source.launch, remarks, metadata)

    def options(self, known: Sequence[int]) -> tuple[list[str], str]:
        """Return the flags and "CUBIN" or "PTX", for a compiler that has the architectures `known`.

        Raises
        ------
        CompileError
            The architecture is one that the compiler does not have any more.
        """
        number = self.architecture.number
        if number in known:
            return [f"--gpu-architecture={self.architecture.name}", *FLAGS, "--ptxas-options=-v"], "CUBIN"
        older = [n for n in known if n < number]
        if not older or self.architecture.suffix:
            text = ", ".join(f"sm_{n}" for n in known)
            raise CompileError(
                f"the CUDA compiler here has no {self.architecture.name}, only {text}; "
                f"install another version of nvidia-cuda-nvrtc"
            )
        return [f"--gpu-architecture=compute_{older[-1]}", *FLAGS], "PTX"

    def assembly(self, binary: Binary) -> str:
        """Return SASS where nvdisasm or cuobjdump is installed, and PTX otherwise."""
        if binary.metadata.get("format") == "ptx":
            return binary.data.decode(errors="replace")
        for tool, arguments in (("nvdisasm", ("-c",)), ("cuobjdump", ("-sass",))):
            program = find_program(tool)
            if program is None:
                continue
            with tempfile.TemporaryDirectory(prefix="retarget-") as folder:
                path = Path(folder, "kernel.cubin")
                path.write_bytes(binary.data)
                result = run_tool([program, *arguments, str(path)])
            if result.returncode == 0:
                return result.stdout.decode(errors="replace")
        return self.ptx(binary)

    def ptx(self, binary: Binary) -> str:
        """Return the PTX of a binary's source, compiled again."""
        source = binary.metadata.get("source")
        if not isinstance(source, str):
            raise CompileError(
                f"{binary.entry} has no CUDA C in its metadata; "
                "install nvdisasm (pip install nvidia-cuda-nvdisasm) to disassemble it"
            )
        tool = find_tool()
        flags = [f"--gpu-architecture=compute_{self.architecture.name.removeprefix('sm_')}", *FLAGS]
        if isinstance(tool, Nvrtc):
            options = [*flags, "--device-as-default-execution-space"]
            made = tool.compile(source, "kernel.cu", options, "PTX")
            data, log = made.data, made.log
        else:
            data, log, _ = _nvcc(tool, source, flags, "PTX")
        if not data:
            raise CompileError(f"{binary.entry} cannot be compiled to PTX", source, log)
        return data.rstrip(b"\0").decode(errors="replace")


def find_tool() -> Nvrtc | str:
    """Return NVRTC, or the path of nvcc; of the one that RETARGET_CUDA_COMPILER names, if it does.

    Raises
    ------
    CompileError
        There is neither; says what to do.
    """
    wanted = wanted_compiler()
    if wanted == "llvm":
        raise CompileError("RETARGET_CUDA_COMPILER is llvm, whose targets are cuda/nvptx-sm_NN")
    try:
        if wanted == "nvcc":
            raise CompileError("RETARGET_CUDA_COMPILER is nvcc")
        return find_nvrtc()
    except CompileError as error:
        if wanted == "nvrtc":
            raise
        nvcc = find_program("nvcc")
        if nvcc is None:
            raise CompileError(f"no CUDA compiler: {error}; and no nvcc; {ADVICE}") from error
        return nvcc


def wanted_compiler() -> str:
    """Return what RETARGET_CUDA_COMPILER names: "nvrtc", "nvcc" or "llvm"; "" for the first that there is."""
    wanted = os.environ.get("RETARGET_CUDA_COMPILER", "").strip()
    if wanted not in ("", *COMPILERS):
        raise UnknownNameError("CUDA compiler", wanted, COMPILERS, "see RETARGET_CUDA_COMPILER")
    return wanted


def device_target(name: str) -> str:
    """Return the target of a GPU of an architecture such as "sm_90a": LLVM's, without a CUDA compiler."""
    try:
        tool_identity()
    except CompileError:
        if wanted_compiler() in ("", "llvm"):
            return f"cuda/nvptx-{name}"
        raise
    return f"cuda/{name}"


def tool_identity() -> str:
    """Return what `find_tool` would find, without loading it: a warm start has no time for that.

    Raises
    ------
    CompileError
        As `find_tool`.
    """
    file = file_identity() if wanted_compiler() in ("", "nvrtc") else ""
    if file:
        return f"NVRTC {file}"
    tool = find_tool()
    return f"NVRTC {_dotted(tool.version)}" if isinstance(tool, Nvrtc) else nvcc_version(tool)


def find_program(name: str) -> str | None:
    """Return a tool of the CUDA toolkit: on PATH, in a Python package, or in a toolkit's folder."""
    found = shutil.which(name)
    if found is not None:
        return found
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    packages = [f"{folder}/cu13/bin" for folder in (spec.submodule_search_locations or ())] if spec else []
    toolkits = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    folders = [*packages, *(f"{root}/bin" for root in toolkits if root)]
    return shutil.which(name, path=os.pathsep.join(folders))


def known_architectures(tool: Nvrtc | str) -> tuple[int, ...]:
    """Return the numbers of the architectures that a compiler makes code for."""
    return tool.architectures if isinstance(tool, Nvrtc) else _architectures_of(tool)


@functools.lru_cache(maxsize=8)
def _architectures_of(nvcc: str) -> tuple[int, ...]:
    listed = run_tool([nvcc, "--list-gpu-code"]).stdout.decode(errors="replace")
    return tuple(sorted({int(n) for n in re.findall(r"sm_(\d+)\b", listed)}))


@functools.lru_cache(maxsize=8)
def nvcc_version(nvcc: str) -> str:
    """Return what a person calls an nvcc, e.g. "nvcc 13.0.88"."""
    found = re.search(r"V(\d+\.\d+\.\d+)", run_tool([nvcc, "--version"]).stdout.decode(errors="replace"))
    if found is None:
        raise CompileError(f"`{nvcc} --version` says no version")
    return f"nvcc {found[1]}"


def usage(log: str) -> dict[str, int]:
    """Return what ptxas says that a kernel uses: registers, bytes of spills, stack and shared memory."""
    found = {name: re.search(pattern, log) for name, pattern in _NUMBERS.items()}
    return {name: int(match[1]) for name, match in found.items() if match is not None}


def _nvcc(nvcc: str, text: str, flags: Sequence[str], output: str) -> tuple[bytes, str, str]:
    """Return what nvcc makes of a text, its remarks, and its status if it failed."""
    with tempfile.TemporaryDirectory(prefix="retarget-") as folder:
        source, path = Path(folder, "kernel.cu"), Path(folder, "kernel.out")
        source.write_text(text)
        result = run_tool([nvcc, f"--{output.lower()}", *flags, "-o", str(path), str(source)])
        log = (
            (result.stdout + result.stderr).decode(errors="replace").replace(str(source), "kernel.cu").strip()
        )
        data = path.read_bytes() if path.exists() else b""
    return data, log, f"status {result.returncode}" if result.returncode else ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _complaints(log: str) -> list[int]:
    """Return the lines that the errors of a log are about."""
    return [int(m[1]) for m in re.finditer(r"^kernel\.cu\((\d+)\): (?:\w+ )?error", log, re.MULTILINE)]
