"""The GPUs that kernels are compiled for, by target.

"cuda/sm_90a" is compiled from CUDA C, "cuda/nvptx-sm_90a" by LLVM.
"""

from __future__ import annotations

from retarget.runtime import nvidia
from retarget.runtime.nvidia import ARCHITECTURES, STATIC_SHARED, Architecture

__all__ = ["LLVM_TARGETS", "STATIC_SHARED", "TARGETS", "architecture", "llvm_target"]

TARGETS = tuple(f"cuda/{name}" for name in ARCHITECTURES)
LLVM_TARGETS = tuple(f"cuda/nvptx-{name}" for name in ARCHITECTURES)


def architecture(target: str) -> Architecture:
    """Return the architecture that a target names."""
    return nvidia.architecture(target, LLVM_TARGETS if llvm_target(target) else TARGETS)


def llvm_target(target: str) -> str:
    """Return what LLVM's plugin calls a target that it compiles for; "" if CUDA C is compiled."""
    return target.replace("cuda/", "llvm/", 1) if target.startswith("cuda/nvptx-") else ""
