"""NVRTC, NVIDIA's compiler as a library, called through cffi: where it is, and what it is asked.

It is looked for in the Python package nvidia-cuda-nvrtc (`pip install "retarget[cuda]"`), then under
CUDA_HOME, CUDA_PATH and /usr/local/cuda, then where the loader looks.  No GPU and no driver is needed.
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retarget.errors import CompileError

ADVICE = 'pip install "retarget[cuda]", or install a CUDA toolkit'
_PATTERNS = ("libnvrtc.so.*", "nvrtc64_*.dll", "libnvrtc.so")
_FOLDERS = ("lib64", "lib", "bin", "bin/x64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
_DECLARATIONS = """
typedef struct _nvrtcProgram* nvrtcProgram;
int nvrtcVersion(int* major, int* minor);
int nvrtcGetNumSupportedArchs(int* count);
int nvrtcGetSupportedArchs(int* archs);
int nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char* name, int headers,
                       const char* const* header_texts, const char* const* header_names);
int nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options);
int nvrtcDestroyProgram(nvrtcProgram* program);
int nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size);
int nvrtcGetProgramLog(nvrtcProgram program, char* log);
int nvrtcGetPTXSize(nvrtcProgram program, size_t* size);
int nvrtcGetPTX(nvrtcProgram program, char* text);
int nvrtcGetCUBINSize(nvrtcProgram program, size_t* size);
int nvrtcGetCUBIN(nvrtcProgram program, char* data);
const char* nvrtcGetErrorString(int result);
"""


class Output(NamedTuple):
    """What NVRTC made of a program: `result` 0 means that it succeeded, anything else is its error number."""

    result: int
    data: bytes
    log: str


class Nvrtc:
    """The library, loaded.

    Attributes
    ----------
    path
        Where it was found.
    version
        (major, minor) of its toolkit.
    architectures
        Numbers of the architectures that it makes code for, ascending.
    """

    def __init__(self, path: str) -> None:
        from cffi import FFI

        self.path = path
        self.ffi = FFI()
        self.ffi.cdef(_DECLARATIONS)
        self._builtins = _load_builtins(self.ffi, path)
        try:
            self.library: Any = self.ffi.dlopen(path)
        except OSError as error:
            raise CompileError(f"{path} cannot be loaded: {error}; {ADVICE}") from error
        major, minor, count = (self.ffi.new("int*") for _ in range(3))
        self._check(self.library.nvrtcVersion(major, minor), "nvrtcVersion")
        self.version = (int(major[0]), int(minor[0]))
        self._check(self.library.nvrtcGetNumSupportedArchs(count), "nvrtcGetNumSupportedArchs")
        numbers = self.ffi.new("int[]", count[0])
        self._check(self.library.nvrtcGetSupportedArchs(numbers), "nvrtcGetSupportedArchs")
        self.architectures = tuple(sorted(int(n) for n in numbers))

    def _check(self, result: int, function: str) -> None:
        if result:
            raise CompileError(f"{function} of {self.path} fails: {self.error(result)}")

    def error(self, result: int) -> str:
        """Return the name of an error number."""
        text: Any = self.ffi.string(self.library.nvrtcGetErrorString(result))
        return str(text.decode())

    def compile(self, text: str, name: str, options: Sequence[str], output: str) -> Output:
        """Compile a text; the GIL is released meanwhile.

        Parameters
        ----------
        name
            What messages call the text.
        output
            "CUBIN" or "PTX".
        """
        ffi, library = self.ffi, self.library
        program = ffi.new("nvrtcProgram*")
        null = ffi.NULL
        self._check(
            library.nvrtcCreateProgram(program, text.encode(), name.encode(), 0, null, null),
            "nvrtcCreateProgram",
        )
        try:
            texts = [ffi.new("char[]", option.encode()) for option in options]
            result = library.nvrtcCompileProgram(program[0], len(texts), ffi.new("const char*[]", texts))
            log = self._bytes(program[0], "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            return Output(result, b"" if result else self._bytes(program[0], output), log)
        finally:
            library.nvrtcDestroyProgram(program)

    def _bytes(self, program: Any, what: str) -> bytes:
        size = self.ffi.new("size_t*")
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, size), f"nvrtcGet{what}Size")
        data = self.ffi.new("char[]", size[0])
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, data), f"nvrtcGet{what}")
        return bytes(self.ffi.buffer(data))


def file_identity() -> str:
    """Return what changes when another library would be found, without loading it; "" where there is none."""
    for path in candidates(_roots()):
        try:
            status = Path(path).stat()
        except OSError:
            return path  # a name that only the loader finds
        return f"{Path(path).name} {status.st_size} {status.st_mtime_ns}"
    return ""


def _roots() -> tuple[str, ...]:
    return os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")


_lock = threading.Lock()


def find_nvrtc() -> Nvrtc:
    """Return the library.

    Raises
    ------
    CompileError
        There is none, or none can be loaded; says what to do.
    """
    with _lock:
        return _find(*_roots())


@functools.lru_cache(maxsize=4)
def _find(*roots: str) -> Nvrtc:
    failures = []
    for path in candidates(roots):
        try:
            return Nvrtc(path)
        except CompileError as error:
            failures.append(str(error))
    raise CompileError("; ".join(failures) or f"no NVRTC found; {ADVICE}")


def candidates(roots: Sequence[str]) -> Iterator[str]:
    """Yield the paths at which the library may be, in order of preference."""
    yield from _in_packages()
    for root in dict.fromkeys([*roots, "/usr/local/cuda"]):
        for folder in _FOLDERS if root else ():
            yield from _newest(Path(root, folder))
    found = ctypes.util.find_library("nvrtc")
    if found is not None:
        yield found


def _in_packages() -> Iterator[str]:
    """Yield the libraries in the packages nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12; imports nothing."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for part in ("cu13", "cuda_nvrtc"):
            for place in ("lib", "bin", "bin/x86_64"):
                yield from _newest(Path(folder, part, place))


def _newest(folder: Path) -> list[str]:
    """Return the libraries in a folder, the newest version first."""
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern) if "alt" not in path.name]

    def version(path: Path) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", path.name)]

    return [str(path) for path in sorted(found, key=version, reverse=True)]


def _load_builtins(ffi: Any, path: str) -> Any:
    """Load what NVRTC would look for by name only, from the folder that it is in itself."""
    pattern = "nvrtc-builtins*.dll" if sys.platform == "win32" else "libnvrtc-builtins.so.*"
    found = [p for p in sorted(Path(path).resolve().parent.glob(pattern)) if "alt" not in p.name]
    return ffi.dlopen(str(found[-1]), ffi.RTLD_NOW | ffi.RTLD_GLOBAL) if found else None
