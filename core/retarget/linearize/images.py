"""Buffers that are images: texels of four elements at two integer coordinates.

`image=in0` in a schedule says that the target keeps parameter in0 as an image.  A row of the image is the
parameter's last axis, which four divides; the other axes together count its rows.  Both coordinates come from
the access's own indices, one for each axis: in those, what a mask keeps out needs no division.  Rows fold
side by side while there are more than the target's images have.

A load reads whole texels and takes its lanes from them, so that a vector of four aligned elements is one
texel; an element whose lane varies is chosen among the four.  Texels are float32, whatever the image holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from ..ir import dtypes, ops
from ..ir.index import all_of, combine, constant, divmod_, flatten, ge0, iconst, imul, range_size
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities

LANES = 4
TEXEL = dtypes.float32.vector(LANES)


@dataclass(frozen=True, slots=True)
class Image:
    """How a parameter lies in an image: `fold` of its rows side by side in each row of texels."""

    uop: UOp
    fold: int

    def coordinates(self, idx: Sequence[UOp], shape: Sequence[int]) -> tuple[UOp, UOp, UOp]:
        """Return (x, y, lane) of an element."""
        row = flatten(idx[:-1], shape[:-1])
        texel, lane = divmod_(idx[-1], LANES)
        y, part = divmod_(row, self.fold)
        return combine([(part, shape[-1] // LANES), (texel, 1)]), y, lane


def images_of(names: Sequence[str], params: Sequence[UOp], caps: Capabilities) -> dict[UOp, Image]:
    """Return the images among a kernel's parameters.

    Raises
    ------
    ScheduleError
        If the target has no images, or a parameter cannot be one.
    """
    found: dict[UOp, Image] = {}
    by_name = {p.arg[0]: p for p in params}
    for name in names:
        p = by_name.get(name)
        if p is None:
            raise ScheduleError(f"image={name}: the kernel's parameters are {', '.join(by_name)}")
        if not caps.images:
            raise ScheduleError(f"image={name}: {caps.target} has no images: {caps.images.reason}")
        if p.dtype not in (dtypes.float32, dtypes.float16):
            raise ScheduleError(f"image={name}: an image holds float32 or float16, not {p.dtype}")
        shape = p.arg[1]
        if not shape or any(type(n) is not int for n in shape) or shape[-1] % LANES:
            raise ScheduleError(f"image={name}: the last axis of {shape} is no multiple of {LANES}")
        width, height = shape[-1] // LANES, 1
        for n in shape[:-1]:
            height *= n
        most = caps.limits.image or (1 << 31, 1 << 31)
        fold = next((k for k in range(1, height + 1) if height % k == 0 and height // k <= most[1]), height)
        if width * fold > most[0] or height // fold > most[1]:
            raise ScheduleError(
                f"image={name}: {height} rows of {width} texels are more than {caps.target} has, "
                f"{most[0]} x {most[1]}"
            )
        arg = (name, (height // fold, width * fold), p.arg[2])
        found[p] = Image(UOp(ops.IMAGE, p.dtype, (), arg), fold)
    return found


def at_lane(x: UOp, v: UOp | None, lane: int) -> UOp:
    """Return an index or mask in one lane of a vector axis."""
    if v is None or v not in x.ranges:
        return x
    if x is v:
        return iconst(lane)
    src = [at_lane(s, v, lane) for s in x.src]
    match x.op:
        case ops.AFFINE:
            return combine(zip(src, x.arg[1], strict=True), x.arg[0])
        case ops.IDIV | ops.IMOD:
            return divmod_(src[0], x.arg)[x.op is ops.IMOD]
        case ops.IMUL:
            return imul(*src)
        case ops.GE0:
            return ge0(src[0])
        case ops.ALL:
            return all_of(*src)
    raise ScheduleError(f"an image is read at coordinates that a value gives in each lane of {v.arg[0]}")


def whole_texels(lanes: Sequence[tuple[UOp, UOp, UOp, UOp]], name: str) -> list[tuple[UOp, UOp, UOp]]:
    """Return (x, y, mask) of each texel that a store fills, from those (and the lane) of its elements.

    Raises
    ------
    ScheduleError
        If a texel is filled in part.
    """
    texels = []
    for n in range(0, len(lanes), LANES):
        group = lanes[n : n + LANES]
        x, y, _, mask = group[0]
        numbers = [constant(lane) for _, _, lane, _ in group]
        if numbers != list(range(LANES)) or any(
            g[0] is not x or g[1] is not y or g[3] is not mask for g in group
        ):
            raise ScheduleError(
                f"image={name} is stored by whole texels: split its last axis by a vector axis of "
                f"{LANES}, and let nothing else divide it"
            )
        texels.append((x, y, mask))
    return texels


def lanes_of(v: UOp | None) -> int:
    return 1 if v is None else range_size(v)
