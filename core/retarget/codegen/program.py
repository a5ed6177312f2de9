"""`Program`: a kernel after linearization, ready to be rendered for one target."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.uop import UOp
from ..registry.backend import Argument, Launch


@dataclass(frozen=True, slots=True)
class Program:
    """A flat list of uops in execution order, with what a launch needs to know.

    A uop may stand in `uops` more than once; each standing executes it again, and operands refer to the
    latest standing in a block that is still open.  Loops and conditionals are bracketed by RANGE/END and
    IF/ENDIF.

    Attributes
    ----------
    name
        The entry symbol: a legal identifier that tells kind, shape and schedule.
    uops
        The program.
    arguments
        Parameters in call order, outputs first, then inputs, then variables.
    launch
        Launch sizes, or the number of independent pieces on a CPU.
    flops, bytes
        Estimates for one launch: floating-point operations, and bytes of the arguments read and written once
        each.
    """

    name: str
    uops: tuple[UOp, ...]
    arguments: tuple[Argument, ...]
    launch: Launch = field(default_factory=Launch)
    flops: int = 0
    bytes: int = 0
