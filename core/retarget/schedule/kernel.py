"""`Kernel`: one fused loop nest, as stores of scalar expressions over ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import ops
from ..ir.index import range_size
from ..ir.sizes import upper
from ..ir.text import dump
from ..ir.uop import UOp, toposort


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one launch computes, before it is scheduled.

    Attributes
    ----------
    stores
        Kernel-level STOREs, one per output; everything that the kernel computes hangs off them.
    outputs, inputs
        The graph nodes behind the parameters: parameter `out{n}` is outputs[n], `in{n}` is inputs[n].
    variables
        Integers that are bound at launch.
    """

    stores: tuple[UOp, ...]
    outputs: tuple[UOp, ...]
    inputs: tuple[UOp, ...]
    variables: tuple[UOp, ...] = ()
    _nodes: list[UOp] = field(default_factory=list, repr=False, compare=False)
    _text: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def nodes(self) -> list[UOp]:
        """Every node that the stores reach, operands first."""
        if not self._nodes:
            self._nodes.extend(toposort(self.stores))
        return self._nodes

    @property
    def ranges(self) -> dict[str, UOp]:
        """The ranges by name, ordered by its number: output axes by position, then reduce ranges."""
        found = {u.arg[0]: u for u in self.nodes if u.op is ops.RANGE}
        return {name: found[name] for name in sorted(found, key=lambda n: (len(n), n))}

    @property
    def flops(self) -> int:
        """Floating-point operations of one launch, a multiply-accumulate counting two.

        Sizes that are bound at launch count as their largest.
        """
        total = 0
        for u in self.nodes:
            if u.dtype.kind == "float" and (u.op in ops.ALU_OPS or u.op is ops.REDUCE):
                count = 1
                for r in u.ranges.union(u.src[1:] if u.op is ops.REDUCE else ()):
                    count *= range_size(r)
                total += count
        return total

    @property
    def bytes(self) -> int:
        """Bytes that one launch moves if every parameter is read or written once.

        Sizes that are bound at launch count as their largest.
        """
        total = 0
        for u in self.nodes:
            if u.op is ops.PARAM:
                count = u.dtype.itemsize
                for n in u.arg[1]:
                    count *= upper(n)
                total += count
        return total

    def __str__(self) -> str:
        if not self._text:
            self._text.append(dump(self.stores))
        return self._text[0]
