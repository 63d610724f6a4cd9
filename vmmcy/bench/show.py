"""A result as a table: for the terminal, and for a page."""

from typing import Any

from rich import box
from rich.table import Table

Result = dict[str, Any]

SIMULATED = "a simulated driver: the limits are those of a real one"


def table(result: Result) -> Table:
    """Lay the rows out side by side: ours, the peer's, the floor's, our limit.

    ``x peer`` is how many times faster than the peer, ``x floor`` how many times the floor.
    """
    sheet = Table(
        title="nanoseconds an item, all sides in one run",
        caption=SIMULATED if result["driver"] == "sim" else None,
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    sheet.add_column("row", no_wrap=True)
    sheet.add_column("holds", no_wrap=True)
    for heading in ("vmmcy", "peer", "floor", "limit", "x peer", "x floor"):
        sheet.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        ours, peer = row["ns_per_item"], row["baseline_ns_per_item"]
        sheet.add_row(
            row["id"],
            {True: "yes", False: "NO", None: "-"}[row["holds"]],
            number(ours),
            number(peer),
            number(row["floor_ns_per_item"]),
            number(row["limit_ns_per_item"]),
            times(peer, ours),
            times(ours, row["floor_ns_per_item"]),
        )
    return sheet


def number(value: float | None) -> str:
    """Format nanoseconds, a dash where there are none."""
    if value is None:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 1e3 else f"{value:.1f}"


def times(above: float | None, below: float | None) -> str:
    """Format how many times `below` goes into `above`."""
    return "-" if above is None or below is None else number(above / below)


def markdown(result: Result) -> str:
    """Lay the rows out as a table in Markdown, each limit with its formula."""
    lines = ["| row | vmmcy | peer | floor | limit | its formula | holds |", "|" + "---|" * 7]
    for row in result["rows"]:
        times_ns = (
            row["ns_per_item"],
            row["baseline_ns_per_item"],
            row["floor_ns_per_item"],
            row["limit_ns_per_item"],
        )
        holds = {True: "yes", False: "**no**", None: ""}[row["holds"]]
        cells = (row["id"], *map(in_full, times_ns), row["limit"], holds)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def in_full(value: float | None) -> str:
    """Format nanoseconds in digits alone, nothing where there are none."""
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 1e3 else f"{value:,.0f}"
