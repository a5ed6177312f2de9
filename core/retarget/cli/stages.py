"""All stages of one kernel, and where each uop comes from: what `show` prints and draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.uop import UOp
from ..linearize.linearize import linearize
from ..optimize.apply import Scheduled, apply_schedule
from ..pipeline import Toolchain, binary_of, schedule_for, source_of

if TYPE_CHECKING:
    from ..codegen.driver import Provenance
    from ..codegen.program import Program
    from ..optimize.schedule import Schedule
    from ..registry import Binary, Source
    from ..schedule.kernel import Kernel


@dataclass
class KernelStages:
    """A kernel from its IR to its source.

    Attributes
    ----------
    origins
        For each uop of the program, the kernel node that it was made for; None for what belongs to no
        single one.
    """

    kernel: Kernel
    schedule: Schedule
    program: Program
    source: Source
    tools: Toolchain
    origins: list[UOp | None]
    _binary: list[Binary] = field(default_factory=list)

    @property
    def language(self) -> str:
        """The source's language, as Pygments calls it."""
        language: str = self.tools.renderer.language
        return language

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """Who wrote each line of the source."""
        return self.source.provenance

    def binary(self) -> Binary:
        """Return the compiled kernel."""
        if not self._binary:
            self._binary.append(binary_of(self.source, self.tools))
        return self._binary[0]

    def assembly(self) -> str:
        """Return the compiled kernel as assembly; raises `CompileError` where a tool is missing."""
        return self.tools.compiler.assembly(self.binary())


def usage(binary: Binary) -> str:
    """Return what a kernel uses of its device, where its compiler says it: ", 40 registers, no spills"."""
    known = binary.metadata
    parts = [f"{known['registers']} registers"] if "registers" in known else []
    if known.get("shared"):
        parts.append(f"{known['shared']} bytes of shared memory")
    spilled = [f"{known[f'spill_{what}']} bytes of spill {what}" for what in ("stores", "loads")
               if known.get(f"spill_{what}")]  # fmt: skip
    parts += spilled or (["no spills"] if "spill_stores" in known else [])
    return "".join(f", {part}" for part in parts)


def stages_of(kernel: Kernel, tools: Toolchain) -> KernelStages:
    """Take a kernel through every stage up to its source."""
    schedule = schedule_for(kernel, tools)
    scheduled = apply_schedule(kernel, schedule, tools.capabilities.tensor_cores)
    translation: dict[UOp, UOp] = {}
    program = linearize(scheduled, tools.capabilities, translation)
    source = source_of(program, tools, provenance=True)
    return KernelStages(kernel, schedule, program, source, tools, _origins(scheduled, translation, program))


def _origins(scheduled: Scheduled, translation: dict[UOp, UOp], program: Program) -> list[UOp | None]:
    """Find the kernel node behind each uop.

    What a node became is known from the substitution and the translation.  The steps in between (the
    expansion of a function, a flat address) belong to the node whose uop needs them first; accumulators and
    loops to their own.
    """
    origin: dict[UOp, UOp] = {}
    for node in scheduled.kernel.nodes:
        for axis in scheduled.parts.get(node, ()):
            if axis in translation:
                origin.setdefault(translation[axis], node)
        became = scheduled.became.get(node, node)
        chain = [became]
        while became.op is ops.REDUCE:  # a reduction over several axes became nested ones
            became = became.src[0]
            if became.op is ops.REDUCE:
                chain.append(became)
        linear = [translation[each] for each in chain if each in translation]
        if node.op is ops.PARAM:
            origin.setdefault(node, node)
        for uop in linear:
            _claim(uop, node, origin)
    outputs = {store.src[0]: store for store in scheduled.kernel.stores}
    for uop in program.uops:
        if uop.op is ops.STORE:
            target = uop.src[0]
            owner = outputs.get(target) or origin.get(target)
            if owner is not None:
                _claim(uop, owner, origin)
        elif uop.op is ops.LOAD and uop.src[0].op is ops.LOCAL and uop.src[0] in origin:
            origin.setdefault(uop, origin[uop.src[0]])
    return [origin.get(uop.src[0] if uop.op is ops.END else uop) for uop in program.uops]


def _claim(uop: UOp, node: UOp, origin: dict[UOp, UOp]) -> None:
    """Say that a uop, and the operands that nobody claimed before, are a node's."""
    stack = [uop]
    while stack:
        each = stack.pop()
        if each not in origin and each.op not in (ops.CONST, ops.RANGE, ops.PARAM, ops.VAR):
            origin[each] = node
            stack.extend(each.src)
