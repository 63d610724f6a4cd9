"""A result as a picture: ratios to peer and floor, and how walk and malloc scale."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Result = dict[str, Any]

PEER, FLOOR, LIMIT = "tab:blue", "tab:gray", "tab:red"


def formats() -> set[str]:
    """Return the file endings that can be written, such as ``.png``."""
    return {f".{kind}" for kind in Figure().canvas.get_supported_filetypes()}


def draw(result: Result, path: Path) -> None:
    """Write the picture of `result` to `path`, in the format that its ending names."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(13, 9), layout="constrained")
        ratios, walk, malloc = figure.subplot_mosaic(
            [["ratios", "walk"], ["ratios", "malloc"]], width_ratios=(1.1, 1)
        ).values()
        _draw_ratios(ratios, result["rows"])
        _draw_curves(walk, result["rows"], "walk-scale", "graph inputs", "ns an input")
        _draw_curves(malloc, result["rows"], "malloc", "extents", "ns a malloc")
        version = result["driver_version"]
        machine = f"{result['device']}, CUDA {version // 1000}.{version % 1000 // 10}"
        figure.suptitle(f"vmmcy on {machine} ({result['driver']}), {result['recorded'][:10]}")
        figure.savefig(path, dpi=130)


def _draw_ratios(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw each row's peer, floor and limit as multiples of our time."""
    marks = (("baseline", PEER, "o", "peer"), ("floor", FLOOR, "s", "floor"))
    for place, row in enumerate(rows):
        for kind, colour, mark, _ in marks:
            if theirs := row[f"{kind}_ns_per_item"]:
                ratio = theirs / row["ns_per_item"]
                axes.plot([1, ratio], [place, place], color=colour, linewidth=1, alpha=0.5)
                axes.plot(ratio, place, mark, color=colour, markersize=5)
        if limit := row["limit_ns_per_item"]:
            axes.plot(limit / row["ns_per_item"], place, "|", color=LIMIT, markersize=9)
    for _, colour, mark, name in (*marks, ("limit", LIMIT, "|", "limit: right of 1 it holds")):
        axes.plot([], [], mark, color=colour, label=name)
    axes.axvline(1, color="black", linewidth=1, label="vmmcy")
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["id"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("times our time")
    axes.set_title("Beside peer and floor")
    axes.legend(loc="lower right")


def _draw_curves(
    axes: Axes, rows: list[dict[str, Any]], prefix: str, x_label: str, y_label: str
) -> None:
    """Draw our time over the size of the work, with the peer's and the limit's."""
    curves = defaultdict(list)
    for row in rows:
        if row["curve"] and row["id"].startswith(prefix):
            curves[row["curve"]].append(row)
    for number, (name, points) in enumerate(curves.items()):
        colour = f"C{number}"
        at = [row["at"] for row in points]
        axes.plot(at, [row["ns_per_item"] for row in points], "o-", color=colour, label=name)
        for kind, style in (("baseline", "x--"), ("limit", ":")):
            figures = [row[f"{kind}_ns_per_item"] for row in points]
            axes.plot(at, figures, style, color=colour, linewidth=1, alpha=0.6)
    axes.plot([], [], "x--", color="black", alpha=0.6, label="peer")
    axes.plot([], [], ":", color="black", alpha=0.6, label="limit")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend()
