"""`Schedule`: how a kernel's ranges become loops, as one line of text that parses back.

    r1=nb,p/2,j/2:u,v/16:v; r0=m,i/8:u; order=nb,m,p,r2,i,j,v

Each range is replaced by a mixed-radix list of axes, outermost first: `name[/size][:kind]`.  One axis may
leave out its size, which is then what the others leave.  Ranges that no reduction is over merge into
one by `r0*r1=m,v/8:v`.  A kind is a letter of `AXIS_KINDS`, "l" when
absent.  Sizes whose product exceeds the range's are legal: the surplus is masked.  With a `~` behind the
first axis (`r0=m~,i/6:u`) nothing is: its last step slides back so as to end where the range ends, and
computes a few values twice.  `order` lists axes from
the outermost loop inward; axes that it leaves out keep the order of their kinds behind those that it names.

    stage=in1@r1o[r2,r1u,r1v]       the tile of in1 that the loops inside r1o touch, copied once for each r1o
    stage=EXP@r0:out                exp's values inside r0, kept (here in the output row) by the first pass
    stream=out0                     out0 is stored past the caches, where whole aligned vectors are stored
    image=in0,in1                   parameters that the target keeps as images

    stage=in1@k[i,j+4]:local/4*3    rows of the tile 4 elements longer; each thread copies 4 elements at a
                                    time, two iterations ahead, into three copies of the tile

A stage names a buffer, or the last operation of a kind; then the loop that it is filled in ("top": outside of
all); then, for a buffer, the order of the tile's dimensions; and the space it is kept in: local (the
default), register or out.  `^8` behind the order says that the tile is turned on the way: its rows run across
the buffer's, and the copy reads vectors of 8 along the buffer's rows and transposes 8 of them in registers.

    r0=i,iu/8:u; r1=j,jv/8:v; order=i,j,iu,jv; stage=in0@j^8:register       a transpose

    tc=mma_16816@r0m,r1n,r2k                sums of products over r2k by a matrix instruction

A tensor-core clause names one of the target's descriptors and the axes that become the rows, the columns and
the reduction of its instruction; "-" stands for a dimension of size 1.  These axes have no loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ParseError

#: Letter -> axis kind.  "own" axes are unrolled with an accumulator each, folded at the end; "chunk" axes of
#: a reduction accumulate in the output itself.
AXIS_KINDS: dict[str, str] = {
    "g": "grid", "b": "block", "w": "warp", "t": "thread", "l": "loop", "u": "unroll", "v": "vector",
    "a": "own", "c": "chunk",
}  # fmt: skip
#: Kinds of axes that have no loop on a device with a grid: its blocks, threads and lanes are the iterations.
PARALLEL = frozenset({"grid", "block", "warp"})
_LETTERS = {kind: letter for letter, kind in AXIS_KINDS.items()}
_KEY = re.compile(r"[A-Za-z_]\w*(\*[A-Za-z_]\w*)*")
_AXIS = re.compile(r"\s*([A-Za-z_]\w*)(~)?(?:/(\d+))?(?::([a-z]))?\s*")


@dataclass(frozen=True, slots=True)
class Axis:
    """One digit of a range's mixed-radix form; `size` None takes what the other axes leave.

    An axis that `slides` covers the range without a surplus: its last step starts earlier.
    """

    name: str
    size: int | None = None
    kind: str = "loop"
    slides: bool = False

    def __str__(self) -> str:
        size = ("~" if self.slides else "") + ("" if self.size is None else f"/{self.size}")
        return f"{self.name}{size}" + ("" if self.kind == "loop" else f":{_LETTERS[self.kind]}")


SPACES = ("local", "register", "out")
_STAGE = re.compile(
    r"\s*(\w+)@(\w+)(?:\[([\w\s,+]+)\])?(?:\^(\d+))?(?::([A-Za-z]\w*)(?:/(\d+))?(?:\*(\d+))?)?\s*"
)
_LAYOUT_NAME = re.compile(r"\s*([A-Za-z_]\w*)(?:\s*\+\s*(\d+))?\s*")


@dataclass(frozen=True, slots=True)
class Stage:
    """An expression that is computed once per iteration of a loop and read back from there.

    Attributes
    ----------
    what
        A parameter's name ("in0"), or an op's ("EXP", the last one in the kernel).
    at
        Axis inside whose loop it is filled, or "top".
    layout
        For a parameter: axis names in the order in which the tile's dimensions are laid out; empty: the
        buffer's.
    space
        One of `SPACES`.
    padding
        For each name of `layout`, elements that its dimension is longer by: they spread columns over the
        banks of local memory.
    width
        Elements that a thread copies at a time, for a tile that the threads of a block share.
    slots
        Copies of the tile; with more than one, it is filled that many iterations less one ahead, by
        asynchronous copies where the target has them.
    turned
        For a parameter: how many rows of as many elements the copy transposes in registers at a time;
        0: none, elements keep their order.
    """

    what: str
    at: str
    layout: tuple[str, ...] = ()
    space: str = "local"
    padding: tuple[int, ...] = ()
    width: int = 1
    slots: int = 1
    turned: int = 0

    def __str__(self) -> str:
        padding = self.padding or (0,) * len(self.layout)
        names = [f"{n}+{p}" if p else n for n, p in zip(self.layout, padding, strict=True)]
        layout = f"[{','.join(names)}]" if names else ""
        turned = f"^{self.turned}" if self.turned else ""
        space = "" if (self.space, self.width, self.slots) == ("local", 1, 1) else f":{self.space}"
        width = f"/{self.width}" if self.width > 1 else ""
        slots = f"*{self.slots}" if self.slots > 1 else ""
        return f"stage={self.what}@{self.at}{layout}{turned}{space}{width}{slots}"


_TENSOR = re.compile(r"\s*(\w+)@\s*(\w+|-)\s*,\s*(\w+|-)\s*,\s*(\w+|-)\s*")


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A sum of products that a matrix instruction computes.

    Attributes
    ----------
    name
        Of one of the target's `TensorCore` descriptors.
    rows, columns, reduction
        Axes that the instruction covers, as many values as it has rows (M), columns (N) and terms (K); None
        where that is one.
    """

    name: str
    rows: str | None
    columns: str | None
    reduction: str | None

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes that the instruction covers."""
        return tuple([n for n in (self.rows, self.columns, self.reduction) if n is not None])

    def __str__(self) -> str:
        return f"tc={self.name}@" + ",".join(n or "-" for n in (self.rows, self.columns, self.reduction))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The loops of one kernel.

    Attributes
    ----------
    splits
        Range name -> its axes, outermost first.  A range that is not named stays one loop.
    order
        Axis names from the outermost loop inward.
    stages
        What is kept between loops.
    images
        Parameters that are images.
    streams
        Outputs that are stored past the caches.
    tensor
        What a matrix instruction computes.
    """

    splits: tuple[tuple[str, tuple[Axis, ...]], ...] = ()
    order: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    images: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    tensor: TensorTile | None = None

    def __str__(self) -> str:
        parts = [f"{name}={','.join(map(str, axes))}" for name, axes in self.splits]
        if self.order:
            parts.append("order=" + ",".join(self.order))
        parts.extend(map(str, self.stages))
        if self.images:
            parts.append("image=" + ",".join(self.images))
        if self.streams:
            parts.append("stream=" + ",".join(self.streams))
        if self.tensor is not None:
            parts.append(str(self.tensor))
        return "; ".join(parts)

    @staticmethod
    def of(
        splits: Iterable[tuple[str, Iterable[Axis]]], order: Iterable[str] = (), stages: Iterable[Stage] = (),
        streams: Iterable[str] = (), tensor: TensorTile | None = None,
    ) -> Schedule:  # fmt: skip
        """Return a schedule from plain lists."""
        return Schedule(
            tuple((name, tuple(axes)) for name, axes in splits), tuple(order), tuple(stages),
            streams=tuple(streams), tensor=tensor,
        )  # fmt: skip


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that prints as `text`.

    Raises
    ------
    ParseError
        With a caret at the place, if the text is malformed.
    """
    splits: dict[str, tuple[Axis, ...]] = {}
    order: tuple[str, ...] | None = None
    stages: list[Stage] = []
    images: list[str] = []
    streams: tuple[str, ...] | None = None
    tensor: TensorTile | None = None
    position = 0
    for clause in text.split(";"):
        start = position
        position += len(clause) + 1
        if not clause.strip():
            continue
        name, equals, value = clause.partition("=")
        key = name.strip()
        at = start + len(name) + 1
        if not equals or not _KEY.fullmatch(key):
            raise ParseError(
                "a schedule clause is `range=axis,axis`, `order=axis,axis`, `stage=name@axis` or "
                "`tc=name@rows,columns,reduction`", text, start
            )
        if key == "order":
            if order is not None:
                raise ParseError("`order` is given twice", text, start)
            order = tuple(x.strip() for x in value.split(","))
            continue
        if key == "image":
            images += [x.strip() for x in value.split(",")]
            continue
        if key == "stream":
            if streams is not None:
                raise ParseError("`stream` is given twice", text, start)
            streams = tuple(x.strip() for x in value.split(","))
            continue
        if key == "stage":
            match = _STAGE.fullmatch(value)
            if not match:
                raise ParseError("a stage is `stage=name@axis[layout]^lanes:space`", text, at)
            if match[5] is not None and match[5] not in SPACES:
                raise ParseError(f"unknown space {match[5]!r}; spaces are {', '.join(SPACES)}", text, at)
            found = [_LAYOUT_NAME.fullmatch(x) for x in match[3].split(",")] if match[3] else []
            if not all(found) or "0" in (match[6], match[7]):
                raise ParseError("a stage is `stage=name@axis[layout]^lanes:space/width*slots`", text, at)
            turned = int(match[4] or 0)
            if match[4] is not None and (turned < 2 or turned & (turned - 1)):
                raise ParseError(f"registers transpose a power of two of lanes, not {turned}", text, at)
            layout = tuple([m[1] for m in found if m])
            padding = tuple([int(m[2] or 0) for m in found if m])
            stages.append(
                Stage(
                    match[1],
                    match[2],
                    layout,
                    match[5] or "local",
                    padding if any(padding) else (),
                    int(match[6] or 1),
                    int(match[7] or 1),
                    turned,
                )
            )
            continue
        if key == "tc":
            match = _TENSOR.fullmatch(value)
            if not match:
                raise ParseError("a tensor core is `tc=name@rows,columns,reduction`", text, at)
            if tensor is not None:
                raise ParseError("`tc` is given twice", text, start)
            tensor = TensorTile(match[1], *[None if n == "-" else n for n in match.groups()[1:]])
            continue
        if key in splits:
            raise ParseError(f"range {key} is split twice", text, start)
        axes: list[Axis] = []
        for item in value.split(","):
            match = _AXIS.fullmatch(item)
            if not match:
                raise ParseError("an axis is `name[~][/size][:kind]`", text, at)
            letter = match[4] or "l"
            if letter not in AXIS_KINDS:
                known = ", ".join(f"{a} {k}" for a, k in AXIS_KINDS.items())
                raise ParseError(f"unknown axis kind {letter!r}; kinds are {known}", text, at)
            if match[3] == "0":
                raise ParseError("an axis has a size of at least 1", text, at)
            if match[2] and axes:
                raise ParseError("only the first axis of a range can slide (`~`)", text, at)
            size = int(match[3]) if match[3] else None
            axes.append(Axis(match[1], size, AXIS_KINDS[letter], bool(match[2])))
            at += len(item) + 1
        if sum(a.size is None for a in axes) > 1:
            raise ParseError(f"only one axis of {key} may leave out its size", text, start)
        splits[key] = tuple(axes)
    return Schedule(
        tuple(splits.items()), order or (), tuple(stages), tuple(images), streams or (), tensor
    )
