"""`ClangCompiler`: C to an object file with whatever compiler there is; source and object pass through pipes.

Compilers are looked for in this order: RETARGET_CC (a path, or a command with arguments quoted as in a shell;
no shell ever runs it); `clang`; `clang-NN`, the newest; `gcc`; `cc`; the clang of the Python package ziglang;
`zig`. Only gcc needs a temporary file: its assembler cannot write to a pipe.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from retarget.codegen.tools import excerpt, run_tool
from retarget.errors import CompileError
from retarget.registry.backend import Binary, Source
from retarget.runtime import cpu

from .cpu import flags, machine

#: Flags for every compiler.  Floating point stays IEEE: no -ffast-math, no contraction (the renderer asks for
#: it by name where it is allowed); errno and trapping are given up, since nothing could observe them.
FLAGS = (
    "-std=gnu11", "-O2", "-ffp-contract=off", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident",
    "-Wno-psabi",  # remarks on the calling convention of wide vectors, which no call here has
)  # fmt: skip
ADVICE = (
    "install one (`apt install clang`, `xcode-select --install` or `pip install 'retarget[clang]'`) "
    "or name one in RETARGET_CC"
)


class CCompiler(NamedTuple):
    """A C compiler on this machine.

    Attributes
    ----------
    command
        Program and first arguments.
    version
        The first line of `--version`.
    family
        "clang" or "gcc": whose habits it has.
    """

    command: tuple[str, ...]
    version: str
    family: str

    @property
    def name(self) -> str:
        """A short name for people, e.g. "clang 19.1.7"."""
        number = re.search(r"\d+\.\d+(\.\d+)?", self.version)
        return f"{self.family} {number[0]}" if number else self.version


def candidates() -> list[tuple[str, ...]]:
    """Return the commands that may be C compilers here, in order of preference."""
    wanted = os.environ.get("RETARGET_CC", "").strip()
    if wanted:
        return [_split(wanted)]
    newest = sorted(_numbered_clangs().items(), reverse=True)
    found = [shutil.which("clang"), *(path for _, path in newest), shutil.which("gcc"), shutil.which("cc")]
    commands = [(path,) for path in found if path]
    zig = _ziglang() or shutil.which("zig")
    return [*commands, (zig, "clang")] if zig else list(commands)


def find_compiler() -> CCompiler:
    """Return the compiler to use.

    Raises
    ------
    CompileError
        There is none, or the one that RETARGET_CC names does not work; says what to do.
    """
    failures = []
    for command in candidates():
        try:
            return describe(command)
        except CompileError as error:
            failures.append(str(error))
    if os.environ.get("RETARGET_CC", "").strip():
        raise CompileError(f"RETARGET_CC names no C compiler that works: {failures[0]}")
    tried = f"; tried {', '.join(failures)}" if failures else ""
    raise CompileError(f"no C compiler found{tried}; {ADVICE}")


def describe(command: Sequence[str]) -> CCompiler:
    """Return what a command is, or raise `CompileError`.  Started only if its file is new or changed."""
    program = shutil.which(command[0])
    if program is None:
        raise CompileError(f"{command[0]!r} is not an executable file or a command on PATH")
    status = Path(program).stat()
    return _describe((program, *command[1:]), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _describe(command: tuple[str, ...], mtime: int, size: int) -> CCompiler:
    from retarget.runtime.diskcache import digest, disk_cache

    key = digest("C compiler", *command, str(mtime), str(size))
    found = disk_cache().get(key, "compiler")
    version = found[0].get("version") if found is not None else None
    if not isinstance(version, str):
        result = run_tool([*command, "--version"], b"")
        version = result.stdout.decode(errors="replace").split("\n", 1)[0].strip()
        if result.returncode or not version:
            said = result.stderr.decode(errors="replace").strip()[:500]
            raise CompileError(
                f"`{shlex.join(command)} --version` fails with status {result.returncode}", log=said
            )
        disk_cache().put(key, "compiler", {"version": version}, b"")
    if "clang" in version.lower():
        return CCompiler(command, version, "clang")
    return CCompiler(
        command, re.sub(r"^\S+(?= \()", "gcc", version), "gcc"
    )  # it says the name that it was started by


class ClangCompiler:
    """Compiles for one target, "clang/native" or a generic one; see `retarget.registry.backend.Compiler`."""

    def __init__(self, target: str, compiler: CCompiler | None = None) -> None:
        self.target = target
        self.machine = machine(target)
        self._given = compiler

    @property
    def compiler(self) -> CCompiler:
        """The C compiler; looked for at first use, so that one is missed only when it is needed."""
        return self._given or find_compiler()

    def flags(self) -> tuple[str, ...]:
        """Return all flags that decide about the code."""
        return (*FLAGS, *flags(self.target))

    def identity(self) -> str:
        """Return version, flags and CPU; wherever the compiler is installed."""
        host = cpu.identity() if self.target.endswith("/native") else "generic"
        return f"{self.compiler.version} [{' '.join(self.flags())}] {sys.platform} {host}"

    def compile(self, source: Source) -> Binary:
        """Compile to an object file.

        Raises
        ------
        CompileError
            There is no compiler, or it refuses the source; shows the lines that it complains about.
        """
        data, log = self._translate(source.text, "-c", source.entry)
        return Binary(
            data, source.entry, source.target, source.arguments, source.launch, log, {"source": source.text}
        )

    def assembly(self, binary: Binary) -> str:
        """Return the binary disassembled by objdump, or compiled to assembly again where there is none."""
        objdump = shutil.which("objdump") or shutil.which("llvm-objdump")
        if objdump is not None and sys.platform == "linux":
            with tempfile.NamedTemporaryFile(prefix="retarget-", suffix=".o") as file:
                file.write(binary.data)
                file.flush()
                result = run_tool([objdump, "-d", "--no-show-raw-insn", file.name], b"")
            if result.returncode == 0:
                return result.stdout.decode(errors="replace").partition("Disassembly")[2]
        source = binary.metadata.get("source")
        if not isinstance(source, str):
            raise CompileError(
                f"{binary.entry} has no C in its metadata; install objdump (binutils) to disassemble it"
            )
        return self._translate(source, "-S", binary.entry)[0].decode(errors="replace")

    def _translate(self, text: str, mode: str, entry: str) -> tuple[bytes, str]:
        """Return what the compiler makes of C, and its remarks."""
        compiler = self.compiler
        command = [*compiler.command, *self.flags(), mode, "-x", "c", "-"]
        if compiler.family == "clang" or mode == "-S":
            result = run_tool([*command, "-o", "-"], text.encode())
            output = result.stdout
        else:
            with tempfile.TemporaryDirectory(prefix="retarget-") as folder:
                path = Path(folder, "kernel.o")
                result = run_tool([*command, "-o", str(path)], text.encode())
                output = path.read_bytes() if path.exists() else b""
        log = result.stderr.decode(errors="replace").strip()
        if result.returncode or not output:
            raise CompileError(
                f"{compiler.name} cannot compile {entry} for {self.target} (status {result.returncode})"
                f"{excerpt(text, _complaints(log))}",
                text,
                log,
            )
        return output, log


def _split(command: str) -> tuple[str, ...]:
    """Return the words of RETARGET_CC: the path of an existing file whole, whatever characters are in it."""
    if shutil.which(command):
        return (command,)
    try:
        return tuple(shlex.split(command)) or (command,)
    except ValueError as error:
        raise CompileError(f"RETARGET_CC is malformed ({error}): {command!r}") from None


def _numbered_clangs() -> dict[int, str]:
    """Return the first clang-NN on PATH for each NN."""
    found: dict[int, str] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        try:
            numbers = _clangs_in(folder, Path(folder).stat().st_mtime_ns)
        except OSError:
            continue  # PATH may name folders that do not exist or cannot be read
        for number, name in numbers:
            path = str(Path(folder, name))
            if os.access(path, os.X_OK):
                found.setdefault(number, path)
    return found


@functools.lru_cache(maxsize=256)
def _clangs_in(folder: str, mtime: int) -> tuple[tuple[int, str], ...]:
    """Return (NN, name) of the files called clang-NN in a folder; `mtime` is when it last changed."""
    names = sorted(entry.name for entry in Path(folder).iterdir())
    return tuple((int(match[1]), match[0]) for name in names if (match := re.fullmatch(r"clang-(\d+)", name)))


def _ziglang() -> str | None:
    """Return the compiler in the package ziglang, which `python -m ziglang` would start."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    return shutil.which("zig", path=str(Path(spec.origin).parent))


def _complaints(log: str) -> list[int]:
    """Return the lines that the errors of a log are about."""
    return [int(m[1]) for m in re.finditer(r"^<stdin>:(\d+):\d+: (?:fatal )?error", log, re.MULTILINE)]
