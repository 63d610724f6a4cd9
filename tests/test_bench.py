"""The benchmark's command and the shape of its result; its times are not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vmmcy import _loader
from vmmcy.bench.arena import _create_row
from vmmcy.bench.measure import ROW_COUNT, beside_first, notch

IDS = [
    "walk-arrays",
    "walk-lists",
    "walk-lists-1k",
    "walk-scale-1kx1",
    "walk-scale-1kx64",
    "malloc-1",
    "malloc-64-last",
    "malloc-4096-last",
    "malloc-16384-last",
    "malloc-64-best",
    "malloc-4096-best",
    "malloc-65536-best",
    "free",
    "malloc-8-threads",
    "malloc-8-arenas",
    "set-extents-65536",
    "arena-create",
    "map-unmap-2MiB",
    "map-unmap-2MiB-retain",
    "map-unmap-1GiB",
    "map-unmap-1GiB-retain",
    "allocate-2MiB",
    "reserve-close",
    "commit-1GiB",
    "pool-2MiB",
    "commit-many-512",
    "pause-resume-1GiB",
    "pause-resume-host-256MiB",
    "gil-elastic",
    "gil",
    "import",
]
BENCH = [sys.executable, "-m", "vmmcy.bench"]
RESULTS = Path(__file__).parents[1] / "bench" / "results"
# Work that no peer does at all, or none that can run everywhere.
WITHOUT_PEER = {
    "set-extents-65536",
    "arena-create",
    "pause-resume-host-256MiB",
    "gil-elastic",
    "import",
}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """One quick run from an empty folder."""
    folder = tmp_path_factory.mktemp("bench")
    answer = subprocess.run(
        [*BENCH, "--quick", "--json", "result.json"],
        cwd=folder,
        env={**os.environ, "VMMCY_COMMIT": "0123abc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout, json.loads((folder / "result.json").read_text())


def test_result_says_where_it_was_taken(quick_run):
    _, result = quick_run
    assert result["driver"] == ("sim" if _loader.simulator_is_loaded() else "cuda")
    assert result["device"]
    assert result["driver_version"] >= 12000
    assert result["commit"] == "0123abc"
    assert result["recorded"][:2] == "20"


def test_every_row_has_its_time_its_peer_and_its_limit(quick_run):
    _, result = quick_run
    assert [row["id"] for row in result["rows"]] == IDS
    for row in result["rows"]:
        assert row["ns_per_item"] > 0, row
        # A quick run compiles no stub: without its peer the row is not judged.
        if row["id"] == "arena-create":
            assert row["limit_ns_per_item"] is row["holds"] is None, row
            continue
        assert row["limit_ns_per_item"] > 0, row
        assert row["holds"] in (True, False), row
        if row["id"] not in WITHOUT_PEER:
            assert row["baseline_ns_per_item"] > 0, row


@pytest.mark.parametrize(("stub_ns", "limit_ns"), [(2e7, 2_000), (3e8, 5_000), (None, None)])
def test_an_arena_is_made_in_5_us_and_ten_thousand_times_faster_than_a_stub(stub_ns, limit_ns):
    assert _create_row(1, 1, stub_ns).limit_ns_per_item == limit_ns


def test_the_progress_bar_ends_with_the_last_row(quick_run):
    assert ROW_COUNT[True] == len(quick_run[1]["rows"])


@pytest.mark.skipif(not RESULTS.is_dir(), reason="needs a checkout: results are not installed")
def test_the_page_tells_of_every_row_that_the_newest_recorded_run_lacks():
    newest = max(RESULTS.glob("h200_????-??-??.json"))
    recorded = {row["id"] for row in json.loads(newest.read_text())["rows"]}
    of_quick_runs_alone = {"pause-resume-1GiB", "pause-resume-host-256MiB"}
    lacking = set(IDS) - recorded - of_quick_runs_alone
    assert len(recorded) + len(lacking) == ROW_COUNT[False]
    page = (RESULTS.parents[1] / "docs" / "performance.md").read_text()
    assert [row for row in lacking if f"**{row}** is not in it" not in page] == []


@pytest.mark.skipif(not RESULTS.is_dir(), reason="needs a checkout: results are not installed")
def test_the_page_shows_the_newest_recorded_run(tmp_path):
    newest = max(RESULTS.glob("h200_????-??-??.json"))
    table = tmp_path / "table.md"
    subprocess.run([*BENCH, "--from", newest, "--markdown", table], check=True, capture_output=True)
    page = (RESULTS.parents[1] / "docs" / "performance.md").read_text()
    assert table.read_text() in page
    assert page.count(f"results/{newest.name}") > 0


def test_a_figure_beside_its_floor_is_of_the_same_rounds():
    """Medians of each series alone would say 21 - 20."""
    assert beside_first([[10, 20, 30], [13, 21, 36]]) == [20, 23]


def test_a_notch_is_as_wide_as_the_middle_half_of_the_differences_says():
    first = [100, 90, 80, 70, 60, 50, 40]
    times = [101, 92, 83, 74, 65, 56, 47]
    assert notch(times, first) == pytest.approx(1.57 * (6 - 2) / 7**0.5)


def test_the_table_shows_every_row(quick_run):
    shown, _ = quick_run
    for name in IDS:
        assert name in shown
    assert ("the limits are those of a real one" in shown) == _loader.simulator_is_loaded()


def test_a_driver_that_is_not_there_is_told_in_one_line():
    if _loader._real_driver_works():
        pytest.skip("needs a machine without a CUDA device")
    answer = subprocess.run(
        BENCH,
        env={**os.environ, "VMMCY_DRIVER": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("python -m vmmcy.bench: no CUDA driver on this machine")


def test_the_table_and_the_plot_can_be_made_of_an_earlier_run(quick_run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'vmmcy[bench]'")
    _, result = quick_run
    (tmp_path / "result.json").write_text(json.dumps(result))
    answer = subprocess.run(
        [*BENCH, "--from", "result.json", "--plot", "result.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "walk-arrays" in answer.stdout
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--from", "none.json"], "none.json"),
        (["--from", str(Path(__file__).with_name("h200_580.json"))], "is no result"),
        (["--from", __file__], "is no result"),
        (["--json", "."], "is a folder"),
        (["--markdown", "."], "is a folder"),
        (["--plot", "result.xyz"], "--plot: .xyz"),
        (["--plot", "no/such/folder/result.png"], "no/such/folder"),
        (["--json", "no/such/folder/result.json"], "no/such/folder"),
        (["--markdown", "no/such/folder/result.md"], "no/such/folder"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_measured(options, text, tmp_path):
    if "--plot" in options:
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'vmmcy[bench]'")
    answer = subprocess.run(
        [*BENCH, *options], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20
    )
    assert answer.returncode == 2
    assert text in answer.stderr


def test_fallback_to_the_simulator_is_said_in_one_line(tmp_path):
    if _loader._real_driver_works():
        pytest.skip("needs a machine without a CUDA device")
    kept = {name: value for name, value in os.environ.items() if name != _loader.VARIABLE}
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "from vmmcy import _loader; print(_loader.fall_back_to_simulator())",
        ],
        env=kept,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == _loader.FALLBACK_NOTICE + "\n"
