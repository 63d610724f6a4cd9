"""``python -m vmmcy.bench``: measure, show, record and draw."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from vmmcy import CudaDriverNotFoundError, _loader

try:
    from rich.console import Console
    from rich.progress import Progress
except ImportError:
    sys.exit("python -m vmmcy.bench needs rich: pip install 'vmmcy[bench]'")

from vmmcy.bench.facts import device_in_use, facts_of
from vmmcy.bench.measure import ROW_COUNT, Row
from vmmcy.bench.show import Result, markdown, table

DEVICE = 0
TABLE_WIDTH = 100
SYSTEMS = ("walk", "arena", "reservation", "backing", "elastic", "process")


def measure(quick: bool, systems: Sequence[str], console: Console) -> list[Row]:
    """Run the systems' rows behind a progress bar, which knows how many all have together."""
    done: list[Row] = []
    total = ROW_COUNT[quick] if len(systems) == len(SYSTEMS) else None
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        for name in systems:
            # After the choice of a driver: these rooms bind to it.
            system = import_module(f"vmmcy.bench.{name}")
            for row in system.rows(quick, DEVICE):
                done.append(row)
                progress.update(task, advance=1, description=row.id)
    return done


def measured(quick: bool, systems: Sequence[str], console: Console) -> Result:
    """Measure, and return the result as JSON takes it."""
    if notice := _loader.fall_back_to_simulator():
        console.print(notice)
    try:
        with device_in_use(DEVICE):
            facts = facts_of(DEVICE)
            rows = measure(quick, systems, console)
    except CudaDriverNotFoundError as error:
        sys.exit(f"python -m vmmcy.bench: {error}")
    return {
        **facts,
        "quick": quick,
        "rows": [row.as_json() for row in rows],
    }


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, refused here if their files cannot be read or written."""
    parser = argparse.ArgumentParser(prog="python -m vmmcy.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer inputs and repeats")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SYSTEMS,
        default=SYSTEMS,
        metavar="SYSTEM",
        help=f"measure these rows alone: {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result to FILE")
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        metavar="FILE",
        help="show the result in FILE, and measure nothing",
    )
    options = parser.parse_args(arguments)
    if options.earlier:
        try:
            options.earlier = json.loads(options.earlier.read_text())
            options.earlier["rows"][0]["holds"]
        except OSError:
            parser.error(f"--from: there is no file {options.earlier}")
        except (ValueError, LookupError, TypeError):
            parser.error("--from: the file is no result of this benchmark (see --json)")
    for name in ("json", "markdown", "plot"):
        path = getattr(options, name)
        if path and not path.parent.is_dir():
            parser.error(f"--{name}: there is no folder {path.parent}")
        if path and path.is_dir():
            parser.error(f"--{name}: {path} is a folder")
    if options.plot:
        try:
            from vmmcy.bench import plot
        except ImportError:
            parser.error("--plot needs matplotlib: pip install 'vmmcy[bench]'")
        if options.plot.suffix not in plot.formats():
            kinds = ", ".join(sorted(plot.formats()))
            parser.error(f"--plot: {options.plot.suffix or 'no ending'} is none of {kinds}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read a result, show it, and write what was asked for."""
    options = parsed(arguments)
    console = Console()
    result = options.earlier or measured(options.quick, options.only, console)
    # A narrow terminal breaks lines; it shall not lose columns.
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(result))
    if options.plot:
        from vmmcy.bench import plot

        plot.draw(result, options.plot)
    return 0


sys.exit(main())
