"""Stages: tiles with halos and layouts, kept rows, ragged splits, each against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget.errors import ScheduleError
from retarget.ir import ops
from retarget.pipeline import program_of, toolchain

rng = np.random.default_rng(11)
A, B = rng.standard_normal((19, 23)).astype("f4"), rng.standard_normal((23, 37)).astype("f4")
LINE = rng.standard_normal(45).astype("f4")
ROWS = rng.standard_normal((7, 30)).astype("f4")
EVEN = rng.standard_normal((8, 32)).astype("f4")
IMAGE, FILTERS = (
    rng.standard_normal((1, 2, 11, 13)).astype("f4"),
    rng.standard_normal((3, 2, 3, 3)).astype("f4"),
)


@pytest.fixture(params=["numpy", "llvm"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    require(request.param)
    with rt.default_device(request.param):
        yield request.param


def softmax(v: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    e = np.exp(v.astype("f8") - v.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def check(expression: Callable[[], rt.Array], schedule: str, right: np.ndarray) -> None:  # type: ignore[type-arg]
    with rt.with_schedule(schedule):
        found = expression().numpy()
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)


PANELS = [
    "r1=jo,ju/2:u,jv/8:v; r0=io,iu/4:u; order=jo,io,r3,iu,ju,jv; stage=in1@jo[r3,ju,jv]",
    "r1=jo,jv/8:v; r0=io,iu/5:u; order=jo,io,r3,iu,jv; stage=in1@jo[r3,jv]; stage=in0@io",
    "r1=jo,jv/4:v; r3=ko,ki/8; order=jo,ko,r0,ki,jv; stage=in1@ko[ki,jv]",
    "r1=jo,jv/4:v; r3=ko,ki/5; order=ko,jo,r0,ki,jv; stage=in1@top",
    "r0=it/3:t,io/4,iu/2:u; r1=jo,jv/16:v; order=it,jo,io,r3,iu,jv; stage=in1@jo[r3,jv]",
    "r0=io,iu/4:u; r3=ko,ki/4; order=io,ko,r1,ki,iu; stage=in0@ko[ki,iu]:register",
]


@pytest.mark.parametrize("schedule", PANELS)
def test_panels_of_a_product(device: str, schedule: str) -> None:
    """19 x 23 x 37: no split divides, so every copy and every read is masked somewhere."""
    check(lambda: rt.asarray(A) @ rt.asarray(B), schedule, A.astype("f8") @ B)


def window_sum(v: np.ndarray, n: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.lib.stride_tricks.sliding_window_view(v.astype("f8"), n).sum(axis=-1)


@pytest.mark.parametrize(
    "schedule",
    [
        "r0=o,i/8; order=o,i,r2; stage=in0@o",
        "r0=o,i/8:v; order=o,r2,i; stage=in0@o",
        "r0=o,i/6; order=o,i,r2; stage=in0@o:register",
        "order=r0,r2; stage=in0@top",
        "r2=k,u/2:u; r0=o,i/4; order=o,i,k,u; stage=in0@o",
    ],
)
def test_halo_of_a_window(device: str, schedule: str) -> None:
    """Inner terms that overlap merge: 8 outputs of a window of 5 share a tile of 12."""
    check(
        lambda: rt.sum(rt.sliding_window(rt.asarray(LINE), 5, axes=0), axis=-1), schedule, window_sum(LINE, 5)
    )


@pytest.mark.parametrize(
    "schedule",
    [
        "stage=in1@top; stage=in0@r0",
        "r1=o,u/2:u,v/8:v; order=o,r0,r3,u,v; stage=in1@o[r3,u,v]",
        "r1=o~,v/8:v; r0=p~,i/4; order=p,o,i,r3,v; stage=in0@p[r3,i]; stage=in1@o[r3,v]",
        "r1=o,v/8:v; r3=k,t/8; order=o,k,r0,t,v; stage=in1@k[t,v]^8",
    ],
)
def test_tiles_of_what_runs_backward(device: str, schedule: str) -> None:
    """Flipped operands: a tile has them in the order in which they are read."""
    columns = np.ascontiguousarray(B.T)
    for down, right in [(-1, 1), (1, -1), (-1, -1)]:
        if "^" in schedule and right < 0:
            continue  # against its lanes there are no vectors to load

        def product(x: slice = slice(None, None, down), y: slice = slice(None, None, right)) -> rt.Array:
            return rt.asarray(A)[x, y] @ rt.asarray(columns)[x, y].mT

        check(product, schedule, A.astype("f8")[::down, ::right] @ columns[::down, ::right].T)


@pytest.mark.parametrize(
    "schedule",
    [
        "r0=o,i/8:v; order=o,r2,i; stage=in0@o",
        "r0=o,i/6; order=o,i,r2; stage=in0@o:register",
        "stage=in0@top",
    ],
)
def test_halo_of_a_flipped_window(device: str, schedule: str) -> None:
    """The taps of a filter run against the pixels, in one dimension."""
    taps = LINE[:5]
    right = np.convolve(LINE.astype("f8"), taps, "valid")

    def convolve(line: rt.Array) -> rt.Array:
        return rt.sum(rt.sliding_window(line, 5, axes=0)[:, ::-1] * rt.asarray(taps), axis=-1)

    check(lambda: convolve(rt.asarray(LINE)), schedule, right)
    check(lambda: convolve(rt.asarray(LINE[::-1].copy())[::-1]), schedule, right)


@pytest.mark.parametrize(
    "schedule", ["r0=o,i/4:v; order=o,r2,i; stage=in0@o", "stage=in0@top", "r0=o,i/3; stage=in0@o"]
)
def test_windows_at_strides_that_do_not_divide(device: str, schedule: str) -> None:
    """Pixels 3 apart, taps 2 apart: the tile has all that lie between the first and the last."""
    right = np.lib.stride_tricks.sliding_window_view(LINE.astype("f8"), 9)[::3, ::2].sum(axis=-1)
    check(lambda: rt.sum(rt.sliding_window(rt.asarray(LINE), 9, axes=0)[::3, ::2], axis=-1), schedule, right)


def test_a_window_that_only_the_surplus_of_lanes_makes(device: str) -> None:
    """Rows of 7 in lanes of 4: the second 4 reach into the next row, which is no multiple of 4 away."""
    schedule = "r1=o,v/4:v; order=o,r2,v; stage=in0@top"
    flat = LINE[:35]
    with rt.with_schedule(schedule):
        found = rt.sum(rt.reshape(rt.asarray(flat), (5, 7)), axis=0).numpy()
    np.testing.assert_allclose(found, flat.reshape(5, 7).sum(axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "lanes"),
    [
        ("r1=n,v/8:v; r0=m,i/4:u; order=m,n,r3,i,v; stage=in0@m[i,r3]", 8),  # 64 terms
        ("r1=n,v/8:v; r0=m,i/4:u; r3=k,t/4; order=m,k,n,t,i,v; stage=in0@k[i,t]", 4),  # 4 terms
        ("r1=n,v/8:v; r0=m,i/4:u; order=m,n,r3,i,v; stage=in0@m[r3,i]", 1),  # across the buffer's rows
        ("r0=m,i/4:u; order=m,r1,r3,i; stage=in0@m[i,r3]", 1),  # nothing else has lanes
    ],
)
def test_copies_in_vectors(device: str, schedule: str, lanes: int) -> None:
    """Where buffer and tile are contiguous along one loop, and the kernel has vectors."""
    a, b = rng.standard_normal((20, 64)).astype("f2"), rng.standard_normal((64, 24)).astype("f4")

    def product() -> rt.Array:
        return rt.astype(rt.asarray(a), rt.float32) @ rt.asarray(b)

    check(product, schedule, a.astype("f8") @ b)
    (kernel,) = rt.lower(product())
    with rt.with_schedule(schedule):
        uops = program_of(kernel, toolchain("llvm")).uops
    converted = [u for u in uops if u.op is ops.CAST and u.src[0].dtype.scalar.name == "float16"]
    assert {u.dtype.lanes for u in converted} == {lanes}


def test_size_of_a_halo() -> None:
    (kernel,) = rt.lower(rt.sum(rt.sliding_window(rt.asarray(LINE, device="numpy"), 5, axes=0), axis=-1))
    with rt.with_schedule("r0=o,i/8; order=o,i,r2; stage=in0@o"):
        uops = program_of(kernel, toolchain("numpy")).uops
    (tile,) = [u for u in uops if u.op is ops.LOCAL and "tile" in u.arg[0]]
    assert np.prod([n for n in tile.arg[1] if n]) == 12


@pytest.mark.parametrize("split", ["r2=y,yi/4; r3=x,xi/4; order=r1,y,x,yi,xi", "r2=y,yi/3; order=y,r1,yi,r3"])
def test_tiles_of_an_image(device: str, split: str) -> None:
    right = np.einsum(
        "bchwij,ocij->bohw",
        np.lib.stride_tricks.sliding_window_view(IMAGE.astype("f8"), (3, 3), axis=(2, 3)),
        FILTERS,
    )
    at = "x" if "x," in split else "y"
    check(lambda: rt.conv2d(rt.asarray(IMAGE), rt.asarray(FILTERS)), f"{split}; stage=in0@{at}", right)


@pytest.mark.parametrize("space", ["", ":register", ":out"])
@pytest.mark.parametrize("split", ["", "r1=o,v/8:v; ", "r1=o,u/2:u,v/4:v; ", "r0=t:t,i/2; "])
def test_kept_rows(device: str, space: str, split: str) -> None:
    """The exponentials of a row are computed by the pass that sums them, and read by the one that divides."""
    at = "i" if "r0=" in split else "r0"
    check(lambda: rt.softmax(rt.asarray(EVEN), axis=1), f"{split}stage=EXP@{at}{space}", softmax(EVEN))
    if space != ":out":  # an output row cannot hold values that are not stored
        check(lambda: rt.softmax(rt.asarray(ROWS), axis=1), f"{split}stage=EXP@{at}{space}", softmax(ROWS))


def test_what_is_kept_is_computed_once() -> None:
    (kernel,) = rt.lower(rt.softmax(rt.asarray(ROWS, device="numpy"), axis=1))
    tools = toolchain("numpy")
    with rt.with_schedule(""):
        twice = [u for u in program_of(kernel, tools).uops if u.op is ops.BITCAST]  # each exp has two
    with rt.with_schedule("stage=EXP@r0"):
        once = [u for u in program_of(kernel, tools).uops if u.op is ops.BITCAST]
    assert len(twice) == 2 * len(once) > 0


@pytest.mark.parametrize(
    "schedule",
    [
        "r1=o,v/7; stage=in0@r0",
        "r1=o,v/8:v; stage=in0@r0; stage=EXP@r0",
        "r1=o,a/4:a,v/4:v; stage=in0@r0",
        "r1=o,v/64:v; stage=EXP@r0",
        "r1=o,c/4; r0=p,q/2; order=p,q,o,c; stage=in0@p",
    ],
)
def test_ragged_splits(device: str, schedule: str) -> None:
    try:
        check(lambda: rt.softmax(rt.asarray(ROWS), axis=1), schedule, softmax(ROWS))
    except ScheduleError as error:
        pytest.fail(str(error))


def test_masked_loads_in_a_tile(device: str) -> None:
    """The padding's mask is resolved in the copy: reads of the tile need none."""
    padded = np.pad(ROWS, ((0, 0), (2, 2)))
    right = np.lib.stride_tricks.sliding_window_view(padded.astype("f8"), 5, axis=1).sum(axis=-1)
    check(
        lambda: rt.sum(rt.sliding_window(rt.pad(rt.asarray(ROWS), ((0, 0), (2, 2))), 5, axes=1), axis=-1),
        "r1=o,i/8; stage=in0@o",
        right,
    )


@pytest.mark.parametrize(
    ("expression", "schedule", "message"),
    [
        (lambda x: x[::-1] + x, "stage=in0@r0", "different indices"),
        (lambda x: rt.reshape(x, (35, 6)) + 1, "stage=in0@top", "not affine"),
        (
            lambda x: rt.exp(x) + rt.max(x, axis=1, keepdims=True).astype("float64"),
            "stage=EXP@r0:out",
            "output's ranges and dtype",
        ),
        (lambda x: rt.sqrt(rt.exp(x)) + 1, "stage=EXP@top:out; stage=SQRT@r0:out", "keeps another"),
        (lambda x: rt.max(x, axis=1), "r2=r2t/2:t,r2; stage=in0@r0", "share a reduction"),
        (
            lambda x: rt.sum(x[0]) + rt.zeros(5),
            "r1=o,a/2:a; order=r0,a,o; stage=in0@r0",
            "in steps",
        ),
    ],
    ids=["two indices", "not affine", "another dtype", "one output", "phases", "in steps"],
)
def test_what_cannot_be_a_stage(
    expression: Callable[[rt.Array], rt.Array], schedule: str, message: str
) -> None:
    x = rt.asarray(ROWS, device="numpy")
    with rt.with_schedule(schedule), pytest.raises(ScheduleError, match=message):
        for kernel in rt.lower(expression(x)):
            program_of(kernel, toolchain("numpy"))


def test_kept_values_that_depend_on_each_other(device: str) -> None:
    """The first reader of the second fills both."""
    right = 1 / (1 + np.exp(-ROWS.astype("f8")))
    expression = lambda: 1 / (1 + rt.exp(-rt.asarray(ROWS)))  # noqa: E731
    check(expression, "r1=o,v/4:v; order=r0,o,v; stage=EXP@r0; stage=ADD@top", right)
