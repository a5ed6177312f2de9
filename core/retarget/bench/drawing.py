"""Pictures of measurements, drawn by matplotlib, which `retarget[bench]` brings."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UserError
from .kernels import Case
from .measure import Result

#: Library -> colour; distinct in print and to colour-blind readers (Okabe and Ito).
_COLOURS = {
    "numpy": "#0072B2", "torch": "#D55E00", "torch-fresh": "#E9A87C", "torch-compile": "#CC79A7",
    "tinygrad": "#009E73", "numba": "#56B4E9", "numexpr": "#E69F00", "lazy": "#999999",
}  # fmt: skip
_OURS = "#222222"
_FAINT = "#BBBBBB"
_BAR = 0.17  # inches
_ROWS = 13
"""Cases in one column of bars."""


def require() -> None:
    """Raise a `UserError` if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("pictures need matplotlib, which is not installed: pip install 'retarget[bench]'")


def draw_ratios(path: Path, results: Sequence[Result], libraries: Sequence[str], caption: str) -> None:
    """Draw, for each case and library, its time over ours as a bar from 1, and the targets as marks.

    Parameters
    ----------
    path
        Where the PNG goes.
    results, libraries
        What was measured.
    caption
        The device and the versions, under the picture.
    """
    shown = [r for r in results if any(r.figure(n) is not None for n in libraries)]
    if not shown:
        raise UserError("no ratio was measured, so there is nothing to draw")
    columns = math.ceil(len(shown) / _ROWS)
    height = math.ceil(len(shown) / columns)
    parts = [shown[n : n + height] for n in range(0, len(shown), height)]
    bars = [[[n for n in libraries if r.figure(n) is not None] for r in part] for part in parts]
    tallest = max(sum(len(names) + 1 for names in part) for part in bars)
    figure = _figure(6.2 * len(parts), max(2.5, tallest * _BAR) + 1.6)
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    found = [f for r in shown for n in libraries if (f := r.figure(n)) is not None]
    goals = [r.case.goal.ratio for r in shown if isinstance(r.case, Case) and r.case.goal is not None]
    low, high = min([0.5, *found]) / 2, max([2.0, *found, *goals]) * 1.9
    for ax, part, names in zip(axes, parts, bars, strict=True):
        _draw_bars(ax, part, names, (low, high))
    handles, labels = _legend(shown, libraries)
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 10), frameon=False)
    figure.supxlabel(
        "time of the library ÷ time of Retarget (logarithmic): to the right of 1, Retarget is faster\n"
        + _wrapped(caption, len(parts)),
        fontsize=8,
    )
    figure.savefig(path, dpi=130)


def _draw_bars(
    ax: Any, part: Sequence[Result], bars: Sequence[Sequence[str]], limits: tuple[float, float]
) -> None:
    y = 0.0
    ticks: list[float] = []
    for result, names in zip(part, bars, strict=True):
        first = y
        for name in names:
            value, spread = result.figure(name), result.ratio(name)
            assert value is not None and spread is not None
            ax.barh(y, value - 1, 0.86, left=1, color=_COLOURS[name], zorder=2)
            half = min(spread.spread, 0.9) * value
            ax.plot([value - half, value + half], [y, y], color=_OURS, linewidth=0.7, alpha=0.6, zorder=3)
            side = 1 if value >= 1 else -1
            ax.annotate(
                f"{value:.3g}" if value >= 10 else f"{value:.2f}", (max(value + side * half, limits[0]), y),
                (3 * side, 0), textcoords="offset points", va="center", ha="left" if side > 0 else "right",
                fontsize=6,
            )  # fmt: skip
            y += 1
        ticks.append((first + y - 1) / 2)
        goal = result.case.goal if isinstance(result.case, Case) else None
        if goal is not None and any(name in goal.against for name in names):
            rows = [first + n for n, name in enumerate(names) if name in goal.against]
            ax.plot(
                [goal.ratio] * 2, [min(rows) - 0.5, max(rows) + 0.5], color="black", linewidth=2.2, zorder=4
            )
        y += 1
    ax.set_yticks(ticks, [_label(result) for result in part], fontsize=8)
    for label, result in zip(ax.get_yticklabels(), part, strict=True):
        label.set_color({"met": "#00694A", "missed": "#B03A00"}.get(result.verdict, _OURS))
    ax.set_ylim(y - 0.5, -1)
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    powers = range(math.floor(math.log10(limits[0])), math.ceil(math.log10(limits[1])) + 1)
    marks = [f * 10.0**p for p in powers for f in (1, 2, 5) if limits[0] <= f * 10.0**p <= limits[1]]
    if len(marks) > 8:
        marks = [m for m in marks if math.isclose(math.log10(m) % 1, 0, abs_tol=1e-9)]
    ax.set_xticks(marks, [f"{m:g}" for m in marks], fontsize=8)
    ax.xaxis.set_minor_locator(importlib.import_module("matplotlib.ticker").NullLocator())
    ax.axvline(1, color=_OURS, linewidth=1, zorder=1)
    ax.grid(axis="x", color=_FAINT, linewidth=0.5, zorder=0)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _label(result: Result) -> str:
    mark = {"met": " ✓", "missed": " ✗"}.get(result.verdict, "")
    return f"{result.case.name}{mark}"


def _legend(results: Sequence[Result], libraries: Sequence[str]) -> tuple[list[Any], list[str]]:
    patches, lines = [importlib.import_module(f"matplotlib.{m}") for m in ("patches", "lines")]
    names = [n for n in libraries if any(r.figure(n) is not None for r in results)]
    handles = [patches.Patch(color=_COLOURS[n]) for n in names]
    if any(result.goal_text for result in results):
        handles.append(lines.Line2D([], [], color="black", linewidth=2.2))
        names.append("target")
    return handles, names


def draw_roofline(path: Path, results: Sequence[Result], limits: Mapping[str, float], caption: str) -> None:
    """Draw our rate of each case over its arithmetic intensity, under the limits of the device.

    Parameters
    ----------
    path, results, caption
        As in `draw_ratios`.
    limits
        As `roofline.measure_limits` returns them.
    """
    points: dict[str, list[tuple[float, float, str]]] = {}
    for r in results:
        if isinstance(r.case, Case) and r.ours is not None and r.case.operations and r.moved:
            rate = r.case.operations / r.seconds("retarget")
            points.setdefault(r.case.sets[-1], []).append((r.case.operations / r.moved, rate, r.case.name))
    if not points:
        raise UserError("no case with arithmetic was measured, so there is nothing to draw")
    figure = _figure(11, 7.5)
    ax = figure.subplots()
    flat = [point for part in points.values() for point in part]
    peak, copy, read = limits["operations"], limits["copy"], limits["read"]
    left = min(0.05, *[p[0] for p in flat]) / 1.5
    right = max(peak / copy * 8, *[p[0] for p in flat]) * 2
    bottom = min(copy * left, *[p[1] for p in flat]) / 2
    for bandwidth, style in ((copy, "-"), (read, "--")):
        corner = peak / bandwidth
        ax.plot([left, corner, right], [bandwidth * left, peak, peak], style, color=_OURS, linewidth=1.3)
    ax.annotate(
        f"multiply-adds: {peak / 1e9:.4g} GFLOP/s", (right, peak), (-4, 5), textcoords="offset points",
        ha="right", fontsize=8,
    )  # fmt: skip
    colours = [*_COLOURS.values()]
    for n, (part, found) in enumerate(points.items()):
        xs, ys = [p[0] for p in found], [p[1] for p in found]
        ax.scatter(xs, ys, s=34, color=colours[n % len(colours)], label=part, zorder=3)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, peak * 2.5)
    ax.set_xlabel("operations per byte of operands and result")
    ax.set_ylabel("operations per second")
    formatter = importlib.import_module("matplotlib.ticker").EngFormatter(sep="")
    ax.yaxis.set_major_formatter(formatter)
    ax.xaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").FormatStrFormatter("%g"))
    ax.grid(color=_FAINT, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False)
    figure.supxlabel(_wrapped(caption, 2), fontsize=8)
    figure.draw_without_rendering()  # what follows asks where things lie
    start, end = ax.transData.transform([(left, bottom), (left * 10, bottom * 10)])
    angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
    for bandwidth, name in ((copy, "copied"), (read, "read")):
        ax.annotate(
            f"memory {name}: {bandwidth / 1e9:.3g} GB/s", (left * 1.1, bandwidth * left * 1.1),
            (0, 6 if bandwidth == max(copy, read) else -12), textcoords="offset points", fontsize=8,
            rotation=angle, rotation_mode="anchor",
        )  # fmt: skip
    _name_points(ax, flat)
    figure.savefig(path, dpi=130)


def _name_points(ax: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside points; those that would lie on another name move down."""
    taken: list[tuple[float, float, float]] = []
    for x, y, name in sorted(points, key=lambda p: (-p[1], p[0])):
        across, up = ax.transData.transform((x, y)) * 72 / ax.figure.dpi
        width = 4.1 * len(name)
        level = up - 3
        while any(abs(level - u) < 8 and a - width < across < a + w for a, u, w in taken):
            level -= 8
        taken.append((across, level, width))
        moved = level - up
        line = {"arrowstyle": "-", "color": _FAINT, "linewidth": 0.5} if moved < -8 else None
        ax.annotate(
            name, (x, y), (7, moved), textcoords="offset points", fontsize=7, arrowprops=line, zorder=4
        )


def _figure(width: float, height: float) -> Any:
    """Return an empty figure that is drawn without a screen."""
    figure = importlib.import_module("matplotlib.figure").Figure((width, height), layout="constrained")
    importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure


def _wrapped(text: str, columns: int) -> str:
    return "\n".join(textwrap.wrap(text, 95 * columns))
