"""Products: axes that slide, panels that convert, tiles for every shape, each against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices import require
from numpy.typing import NDArray

import retarget as rt
from retarget.errors import ParseError, ScheduleError
from retarget.ir import ops
from retarget.optimize.apply import apply_schedule
from retarget.optimize.heuristics import choose_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.pipeline import program_of, toolchain

rng = np.random.default_rng(5)


@pytest.fixture(params=["numpy", "llvm"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    require(request.param)
    with rt.default_device(request.param):
        yield request.param


def normal(*shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype("f4")


SLIDING = [
    "r0=m~,i/4:u; order=m,r1,r3,i",
    "r0=m~,i/6:u; r1=n~,p/2,j/2:u,v/8:v; order=n,m,p,r3,i,j,v; stage=in1@n[p,r3,j,v]",
    "r0=m~:t,i/5; r1=n~,v/8:v; order=m,n,i,r3,v",
    "r0=m~,i/18:u; r1=n~,v/16:v; order=m,n,r3,i,v",
]


@pytest.mark.parametrize("schedule", SLIDING)
def test_the_last_step_of_an_axis_slides(device: str, schedule: str) -> None:
    """19 x 23 x 37: no step divides, and yet nothing is masked."""
    a, b = normal(19, 23), normal(23, 37)
    with rt.with_schedule(schedule):
        np.testing.assert_allclose((rt.asarray(a) @ rt.asarray(b)).numpy(), a.astype("f8") @ b, atol=1e-5)
        (kernel,) = rt.lower(rt.asarray(a) @ rt.asarray(b))
        program = program_of(kernel, toolchain("llvm"))
    gated = [u for u in program.uops if len(u.src) > {ops.LOAD: 2, ops.STORE: 3}.get(u.op, len(u.src))]
    assert not gated


@pytest.mark.parametrize(
    ("expression", "schedule", "why"),
    [
        ("product", "r3=k~,ki/4", "is reduced"),
        ("product", "r0=m~,i/32:u", "longer than"),
        ("product", "r0=m~/9,i/4", "9 steps"),
        ("product", "r1=n~:v", "cannot slide; loops and threads"),
        ("softmax", "r0=m~,i/4; order=m,i,r1; stage=EXP@i:out", "a stage keeps values in the output"),
        ("softmax", "r1=n~,v/8:v", "is reduced"),
    ],
)
def test_axes_that_cannot_slide(expression: str, schedule: str, why: str) -> None:
    if expression == "product":
        (kernel,) = rt.lower(rt.asarray(normal(19, 23)) @ rt.asarray(normal(23, 37)))
    else:
        (kernel,) = rt.lower(rt.softmax(rt.asarray(normal(7, 30)), axis=1))
    with pytest.raises(ScheduleError, match=why):
        apply_schedule(kernel, parse_schedule(schedule))


def test_only_the_first_axis_slides() -> None:
    assert str(parse_schedule("r0=m~,i/6:u")) == "r0=m~,i/6:u"
    with pytest.raises(ParseError, match="only the first axis"):
        parse_schedule("r0=m,i~/6:u")


def test_a_panel_holds_converted_values(device: str) -> None:
    a, b = normal(19, 23).astype("f2"), normal(23, 37).astype("f2")

    def product() -> rt.Array:
        return rt.astype(rt.asarray(a), rt.float32) @ rt.astype(rt.asarray(b), rt.float32)

    schedule = "r1=n,v/8:v; order=n,r0,r3,v; stage=in1@n[r3,v]"
    with rt.with_schedule(schedule):
        np.testing.assert_allclose(product().numpy(), a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-5)
        (kernel,) = rt.lower(product())
        program = program_of(kernel, toolchain("llvm"))
    (tile,) = [u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"]
    assert tile.dtype.name == "float32"


SIZES = [
    (1, 100, 7),
    (1, 7, 40),
    (2, 3, 4),
    (5, 17, 33),
    (33, 65, 20),
    (8, 96, 24),
    (13, 77, 50),
    (129, 5, 16),
]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_every_shape_under_the_heuristics(device: str, m: int, n: int, k: int) -> None:
    for left, right, dtype in itertools.product((False, True), (False, True), ("f4", "f8")):
        a = rng.standard_normal((k, m) if left else (m, k)).astype(dtype)
        b = rng.standard_normal((n, k) if right else (k, n)).astype(dtype)
        x = rt.permute_dims(rt.asarray(a), (1, 0)) if left else rt.asarray(a)
        y = rt.permute_dims(rt.asarray(b), (1, 0)) if right else rt.asarray(b)
        wanted = (a.T if left else a).astype("f8") @ (b.T if right else b).astype("f8")
        np.testing.assert_allclose((x @ y).numpy(), wanted, rtol=1e-4, atol=1e-4)


FLIPS = list(itertools.product((1, -1), repeat=3))


@pytest.mark.parametrize(("down", "along", "right"), FLIPS)
@pytest.mark.parametrize("size", [(129, 70, 40), (5, 33, 17), (66, 64, 66)])
def test_products_of_flipped_operands_under_the_heuristics(
    device: str, size: tuple[int, int, int], down: int, along: int, right: int
) -> None:
    m, n, k = size
    for left, turned in itertools.product((False, True), repeat=2):
        a, b = normal(m, k), normal(k, n)
        x = rt.asarray(np.ascontiguousarray(a.T)).mT if left else rt.asarray(a)
        y = rt.asarray(np.ascontiguousarray(b.T)).mT if turned else rt.asarray(b)
        found = x[::down, ::along] @ y[::along, ::right]
        wanted = a[::down, ::along].astype("f8") @ b[::along, ::right]
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_product_beside_its_sum_has_no_axis_that_slides(device: str) -> None:
    """Every length of the vectors: the axis of the output is also the one of the sum."""
    for n in (3, 9, 17, 40):
        x, y = normal(n), normal(1)
        product = rt.asarray(x) * rt.asarray(y)
        found = (product - rt.sum(product)).numpy()
        np.testing.assert_allclose(found, x * y - np.sum(x * y, dtype="f8"), rtol=1e-4, atol=1e-5)


def test_the_heuristics_fill_the_registers() -> None:
    """Twelve accumulators in the 16 registers of AVX2, and no mask in the inner loop for odd sizes."""
    (kernel,) = rt.lower(rt.asarray(normal(211, 307)) @ rt.asarray(normal(307, 411)))
    capabilities = toolchain("llvm").capabilities._replace(
        registers=16, vector_bits=256, threads=1, caches=(32 << 10, 512 << 10)
    )
    schedule = choose_schedule(kernel, capabilities)
    axes = {a.name: a for _, split in schedule.splits for a in split}
    assert axes["r0u"].size * axes["r1u"].size == 12  # type: ignore[operator]
    assert axes["r1v"].size == 8
    assert axes["r0o"].slides
    assert [str(stage)[:9] for stage in schedule.stages] == ["stage=in1"]


CPU = {"registers": 32, "vector_bits": 512, "caches": (48 << 10, 2 << 20, 32 << 20), "threads": 2}


def operand(rows: int, columns: int, transposed: bool, dtype: str = "f4") -> rt.Array:
    shape = (columns, rows) if transposed else (rows, columns)
    x = rt.asarray(np.zeros(shape, dtype), device="numpy")
    return x.mT if transposed else x


@pytest.mark.parametrize(("left", "right"), itertools.product((False, True), repeat=2))
def test_transposed_operands_are_packed_in_vectors(left: bool, right: bool) -> None:
    (kernel,) = rt.lower(operand(1024, 1024, left) @ operand(1024, 1024, right))
    schedule = choose_schedule(kernel, toolchain("llvm").capabilities._replace(**CPU))
    stages = {stage.what: stage for stage in schedule.stages}
    assert stages["in1"].turned == (16 if right else 0)  # the panel lies across the buffer's rows
    assert ("in0" in stages) == left
    if left:  # blocks of rows that are shared out evenly
        (_, head, *_), *_ = [(r, *axes) for r, axes in schedule.splits if axes[0].kind == "thread"]
        rows = {a.name: a.size for _, axes in schedule.splits for a in axes}
        blocks = -(-1024 // (rows["r0o"] * rows["r0u"]))  # type: ignore[operator]
        assert head.name == "r0t" and blocks % 2 == 0


@pytest.mark.parametrize(("left", "right"), itertools.product((False, True), repeat=2))
@pytest.mark.parametrize("dtype", ["f2", "i1"])
def test_no_conversion_in_the_inner_loop(device: str, dtype: str, left: bool, right: bool) -> None:
    """Narrow operands become wide ones while they are packed: what is multiplied was loaded as it is."""
    m, n, k = 130, 70, 96
    a, b = ((9 * rng.standard_normal(shape)).astype(dtype) for shape in ((m, k), (k, n)))
    wide = rt.float32 if dtype == "f2" else rt.int32
    x = rt.asarray(np.ascontiguousarray(a.T)).mT if left else rt.asarray(a)
    y = rt.asarray(np.ascontiguousarray(b.T)).mT if right else rt.asarray(b)
    product = rt.astype(x, wide) @ rt.astype(y, wide)
    (kernel,) = rt.lower(product)
    np.testing.assert_allclose(product.numpy(), a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-3)
    uops = program_of(kernel, toolchain("llvm")).uops
    multiplied = [s for u in uops if u.op in (ops.MULACC, ops.MUL) and u.dtype.lanes > 1 for s in u.src]
    assert multiplied
    assert all(s.op is ops.LOAD for u in multiplied for s in (u.src if u.op is ops.BROADCAST else [u]))


def test_panels_share_rows_that_come_from_far() -> None:
    """Few panels where all rows stay in the second cache, more where they come from beyond it."""
    capabilities = toolchain("llvm").capabilities._replace(**CPU)
    panels = {}
    for n in (256, 1024):
        (kernel,) = rt.lower(operand(n, n, False) @ operand(n, n, False))
        schedule = choose_schedule(kernel, capabilities)
        panels[n] = next((a.size for _, axes in schedule.splits for a in axes if a.name == "r1p"), 1)
    assert panels[256] == 1 and panels[1024] and panels[1024] > 1


WINDOWS = [
    ((2, 3, 9, 11), (16, 3, 3, 3), 1, 1),
    ((1, 2, 20, 17), (24, 2, 5, 5), 2, 2),
    ((3, 4, 8, 30), (9, 4, 1, 3), 1, 0),
    ((2, 3, 31, 13), (32, 3, 7, 7), 2, 3),
]


@pytest.mark.parametrize(("image", "filters", "stride", "padding"), WINDOWS)
def test_convolutions_under_the_heuristics(
    device: str, image: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int
) -> None:
    x, w = normal(*image), normal(*filters)
    found = rt.conv2d(rt.asarray(x), rt.asarray(w), stride=stride, padding=padding).numpy()
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters[2:], axis=(2, 3))
    wanted = np.einsum("nchwrs,kcrs->nkhw", windows[:, :, ::stride, ::stride], w.astype("f8"))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(("image", "filters", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("groups", [False, True])
def test_convolutions_with_flipped_filters_under_the_heuristics(
    device: str, image: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int, groups: bool
) -> None:
    """Flipping filters, or the image and the output, or all of them, runs backward somewhere."""
    channels = image[1]
    x, w = normal(*image), normal(channels if groups else filters[0], 1 if groups else channels, *filters[2:])
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters[2:], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    einsum = "nchwrs,ckrs->nchw" if groups else "nchwrs,kcrs->nkhw"
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": channels if groups else 1}
    turned = rt.asarray(w[:, :, ::-1, ::-1].copy())[:, :, ::-1, ::-1]
    found = rt.conv2d(rt.asarray(x), turned, **options).numpy()
    np.testing.assert_allclose(found, np.einsum(einsum, windows, w), atol=1e-4)
    mirrored = rt.asarray(x[:, :, ::-1, ::-1].copy())[:, :, ::-1, ::-1]
    found = rt.conv2d(mirrored, rt.asarray(w), **options).numpy()
    np.testing.assert_allclose(found, np.einsum(einsum, windows, w), atol=1e-4)
    if stride == 1:
        mirrored = rt.asarray(x[:, :, ::-1, ::-1].copy())
        flipped = rt.conv2d(mirrored, rt.asarray(w[:, :, ::-1, ::-1].copy()), **options)[:, :, ::-1, ::-1]
        np.testing.assert_allclose(flipped.numpy(), np.einsum(einsum, windows, w), atol=1e-4)


def test_no_mask_in_the_inner_loop_of_a_convolution() -> None:
    """17 pixels are no multiple of the tile's rows, and there is a border of zeros: the copy sees to both."""
    image, filters = rt.asarray(normal(2, 4, 17, 17)), rt.asarray(normal(16, 4, 3, 3))
    (kernel,) = rt.lower(rt.conv2d(image, filters, padding=1))
    program = program_of(kernel, toolchain("llvm"))
    tiles = {u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"}
    assert len(tiles) == 2
    reads = [u for u in program.uops if u.op is ops.LOAD and u.src[0] in tiles]
    assert reads
    assert all(len(u.src) == 2 for u in reads)


@pytest.mark.parametrize("size", [(2, 8, 2, 16), (3, 32, 4, 32), (2, 16, 3, 24)])
def test_stacks_of_products_with_an_operand_each(device: str, size: tuple[int, int, int, int]) -> None:
    """The right operand is packed inside of every axis that tells the products apart."""
    batch, length, heads, width = size
    shape = (batch, heads, length, width)
    x, y = normal(batch * length, heads * width), normal(*shape)
    left = rt.permute_dims(rt.asarray(x).reshape(batch, length, heads, width), (0, 2, 1, 3))
    numbers = x.reshape(batch, length, heads, width).transpose(0, 2, 1, 3)
    for found, wanted in [
        (left @ rt.asarray(y).mT, numbers @ y.swapaxes(-1, -2)),
        (rt.asarray(y) @ left.mT, y @ numbers.swapaxes(-1, -2)),
        (left.mT @ rt.asarray(y), numbers.swapaxes(-1, -2) @ y),
    ]:
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


GROUPED = [
    ((2, 3, 9, 11), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    ((1, 4, 17, 20), (8, 1, 5, 5), {"groups": 4, "padding": 2}),
    ((3, 6, 8, 30), (6, 1, 1, 3), {"groups": 6, "padding": 1}),
    ((2, 4, 7, 5), (4, 2, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 4, 31, 13), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    ((2, 4, 31, 13), (4, 1, 3, 3), {"groups": 4, "stride": (2, 1), "padding": 1}),
    ((2, 4, 31, 32), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    ((2, 4, 9, 72), (4, 1, 3, 5), {"groups": 4, "stride": (1, 3)}),
    ((2, 4, 33, 19), (4, 1, 3, 3), {"groups": 4, "padding": 2, "dilation": 2}),
    ((1, 2, 700, 90), (2, 1, 3, 5), {"groups": 2, "padding": 1}),
    ((2, 3, 14, 13), (16, 3, 3, 3), {"dilation": 2, "padding": 2}),
    ((1, 32, 9, 9), (32, 16, 3, 3), {"groups": 2, "padding": 1}),
]


@pytest.mark.parametrize("target", ["llvm", "clang"])
@pytest.mark.parametrize(("image", "filters", "options"), GROUPED)
def test_grouped_and_dilated_convolutions_under_the_heuristics(
    target: str, image: tuple[int, ...], filters: tuple[int, ...], options: dict[str, Any]
) -> None:
    require(target)
    groups, pad, apart = options.get("groups", 1), options.get("padding", 0), options.get("dilation", 1)
    down, right = np.broadcast_to(options.get("stride", 1), 2)
    for dtype in ("f4", "f8"):
        x, w = normal(*image).astype(dtype), normal(*filters).astype(dtype)
        device = f"{target}:0"
        found = rt.conv2d(rt.asarray(x, device=device), rt.asarray(w, device=device), **options).numpy()
        padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        window = [apart * (n - 1) + 1 for n in filters[2:]]
        windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(2, 3))
        windows = windows[:, :, ::down, ::right, ::apart, ::apart]
        parts = zip(np.split(windows, groups, 1), np.split(w.astype("f8"), groups, 0), strict=True)
        wanted = np.concatenate([np.einsum("nchwrs,kcrs->nkhw", i, f) for i, f in parts], 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_depthwise_convolutions_have_vectors_of_pixels() -> None:
    """Each tap is an unaligned load from a copy with its border of zeros, without a mask."""
    image, filters = rt.asarray(normal(2, 4, 17, 17)), rt.asarray(normal(4, 1, 3, 3))
    (kernel,) = rt.lower(rt.conv2d(image, filters, padding=1, groups=4))
    program = program_of(kernel, toolchain("llvm"))
    tiles = {u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"}
    assert len(tiles) == 1
    reads = [u for u in program.uops if u.op is ops.LOAD and u.src[0] in tiles]
    assert reads
    assert all(len(u.src) == 2 and u.dtype.lanes > 1 for u in reads)


def test_depthwise_convolutions_with_a_stride_copy_as_well() -> None:
    """Lanes are two pixels apart in the copy, as many as divide a line: no mask there either."""
    image, filters = rt.asarray(normal(2, 4, 24, 24)), rt.asarray(normal(4, 1, 3, 3))
    (kernel,) = rt.lower(rt.conv2d(image, filters, stride=2, padding=1, groups=4))
    program = program_of(kernel, toolchain("llvm"))
    tiles = {u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"}
    assert len(tiles) == 1
    reads = [u for u in program.uops if u.op is ops.LOAD and u.src[0] in tiles]
    assert reads
    assert all(len(u.src) == 2 and u.dtype.lanes == 4 for u in reads)


@pytest.mark.parametrize("device_name", ["llvm", "clang"])
@pytest.mark.parametrize(("shape", "sizes", "axes"), [((3, 40, 61), (3, 3), (1, 2)), ((5, 77), (7,), (1,))])
def test_moving_sums_have_vectors_of_a_copy(
    device_name: str, shape: tuple[int, ...], sizes: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    require(device_name)
    x = normal(*shape)
    y = rt.sum(
        rt.sliding_window(rt.asarray(x, device=f"{device_name}:0"), sizes, axes=axes),
        axis=tuple(range(-len(sizes), 0)),
    )
    (kernel,) = rt.lower(y)
    program = program_of(kernel, toolchain(device_name))
    tiles = {u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"}
    reads = [u for u in program.uops if u.op is ops.LOAD and u.src[0] in tiles]
    assert len(tiles) == 1
    assert reads
    assert all(len(u.src) == 2 and u.dtype.lanes > 1 for u in reads)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), sizes, axis=axes)
    np.testing.assert_allclose(y.numpy(), windows.sum(tuple(range(-len(sizes), 0))), rtol=1e-4, atol=1e-4)


def test_copies_of_an_image_are_vectors() -> None:
    """The border is a mask on vectors; the last of a line may reach past it, where the tile has room."""
    image, filters = rt.asarray(normal(2, 4, 17, 23)), rt.asarray(normal(4, 1, 3, 3))
    (kernel,) = rt.lower(rt.conv2d(image, filters, padding=1, groups=4))
    program = program_of(kernel, toolchain("llvm"))
    (tile,) = {u for u in program.uops if u.op is ops.LOCAL and u.arg[2] == "local"}
    filled = [u for u in program.uops if u.op is ops.STORE and u.src[0] is tile]
    assert filled
    lanes = max(u.src[-1].dtype.lanes for u in program.uops if u.op is ops.STORE)
    assert lanes > 1
    assert all(max(s.dtype.lanes for s in u.src) == lanes for u in filled)
