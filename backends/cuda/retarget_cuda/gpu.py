"""The GPUs that CUDA C is compiled for, by target."""

from __future__ import annotations

from retarget.runtime import nvidia
from retarget.runtime.nvidia import ARCHITECTURES, STATIC_SHARED, Architecture

__all__ = ["STATIC_SHARED", "TARGETS", "architecture"]

TARGETS = tuple(f"cuda/{name}" for name in ARCHITECTURES)


def architecture(target: str) -> Architecture:
    """Return the architecture that a target such as "cuda/sm_90a" names."""
    return nvidia.architecture(target, TARGETS)
