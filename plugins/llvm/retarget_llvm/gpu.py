"""The NVIDIA GPUs that LLVM generates PTX for, by target."""

from __future__ import annotations

from retarget.registry.capabilities import Capabilities
from retarget.runtime import nvidia
from retarget.runtime.nvidia import ARCHITECTURES, Architecture

PREFIX = "llvm/nvptx-"
TARGETS = tuple(f"{PREFIX}{name}" for name in ARCHITECTURES)


def is_gpu(target: str) -> bool:
    """Whether a target is a GPU, and not a CPU."""
    return target.startswith(PREFIX)


def architecture(target: str) -> Architecture:
    """Return the architecture that a target such as "llvm/nvptx-sm_90" names."""
    return nvidia.architecture(target, TARGETS)


def capabilities(target: str, functions: dict[str, dict[str, float]]) -> Capabilities:
    """Return what code of LLVM can do on a GPU: no library of functions comes with it."""
    arch = architecture(target)
    if arch.number >= 80:  # max.NaN is an instruction of sm_80
        functions = {name: {**table, "float32": 0.0} for name, table in functions.items()}
    return nvidia.capabilities(target, arch, functions, frozenset({"float16"}), unroll="replay")
