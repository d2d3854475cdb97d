"""Tables of the documentation, made from results: ``docs/speed.md`` and ``README.md`` have marks
around each."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .data import LAYERS
from .measure import MB
from .table import VOXELS_DIFFER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure import Outcome
    from .results import Result, Results
    from .table import Row

_REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = tuple(_REPOSITORY / name for name in ("docs/speed.md", "README.md"))
_MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NO_PEERS = ("wkwdask*", "sum of its parts", "its parts alone", "cp, *")


@dataclass(frozen=True)
class Line:
    """A line of a table: ours beside the fastest of the others."""

    work: str
    """First column."""
    row: str
    """Name of the row; ``{}`` is EM, and the segmentation after a slash."""
    tool: str = "wkwdask"
    """Pattern of the label of our unit."""
    peers: str = ""
    """Pattern of the labels of peers, by default all other packages."""
    speed: str = "cpu_speed"
    """What is compared."""

    def rows(self) -> list[str]:
        """Name the rows of the results."""
        return list(dict.fromkeys(self.row.format(layer) for layer in LAYERS))

    def is_peer(self, label: str) -> bool:
        """Return whether ours may be set beside a tool."""
        if self.peers:
            return fnmatch.fnmatchcase(label, self.peers)
        return not any(fnmatch.fnmatchcase(label, pattern) for pattern in _NO_PEERS)

    def best(self, result: Result | None) -> Row | None:
        """Find the comparison with the fastest peer, None if there is none."""
        found = [
            row
            for row in (result.comparisons if result else [])
            if fnmatch.fnmatchcase(row.tool.label, self.tool)
            and row.ratio() is not None
            and self.is_peer(row.against.label)
        ]
        return max(found, key=lambda row: getattr(row.against, self.speed), default=None)


@dataclass(frozen=True)
class Speeds:
    """A table of MB per second, and of bytes where any are written."""

    lines: tuple[Line, ...]
    """Its lines."""

    def rows(self) -> list[str]:
        """Name the rows of the results."""
        return [row for line in self.lines for row in line.rows()]

    def format(self, results: Results) -> str:
        """Format the table."""
        cells = [self._cells(line, results) for line in self.lines]
        head = ["work", "wkwdask", "best peer", "ratio", "MB written", "by the peer"]
        if not any(written for *_, written, _ in cells):
            head, cells = head[:4], [line[:4] for line in cells]
        return format_markdown(head, cells)

    def _cells(self, line: Line, results: Results) -> list[str]:
        rows = [line.best(results.by_row.get(name)) for name in line.rows()]
        if not any(rows):
            return [line.work, "-", "-", "-", "", ""]
        ours = [row and getattr(row.tool, line.speed) for row in rows]
        theirs = [row and getattr(row.against, line.speed) for row in rows]
        written = [
            _joined([row and getattr(row, side).written / MB for row in rows], _format_mb)
            if any(row.tool.written for row in rows if row)
            else ""
            for side in ("tool", "against")
        ]
        ratios = [row and a / b for row, a, b in zip(rows, ours, theirs, strict=True)]
        differ = any(row.voxels == VOXELS_DIFFER for row in rows if row)
        return [
            line.work,
            _joined(ours, _format_number),
            _format_peers([row and row.against for row in rows], theirs),
            _joined(ratios, _format_ratio) + (", voxels differ" if differ else ""),
            *written,
        ]


@dataclass(frozen=True)
class Traffic:
    """A table of requests, MB, seconds and CPU seconds."""

    lines: tuple[Line, ...]
    """Its lines."""

    def rows(self) -> list[str]:
        """Name the rows of the results."""
        return [row for line in self.lines for row in line.rows()]

    def format(self, results: Results) -> str:
        """Format the table."""
        cells = []
        for line in self.lines:
            best = replace(line, speed="wall_speed").best(results.by_row.get(line.row))
            cells.append(
                [line.work, "-", "-", "-"]
                if best is None
                else [
                    line.work,
                    _format_traffic(best.tool),
                    f"`{best.against.label}` {_format_traffic(best.against)}",
                    _format_ratio(best.against.wall / best.tool.wall),
                ]
            )
        return format_markdown(["work", "wkwdask", "peer", "ratio of seconds"], cells)


@dataclass(frozen=True)
class Processes:
    """The table of processes from start to end."""

    row: str
    """Name of the row."""

    def rows(self) -> list[str]:
        """Name the row of the results."""
        return [self.row]

    def format(self, results: Results) -> str:
        """Format the table."""
        result = results.by_row.get(self.row)
        cells = [
            [
                row.work.removeprefix(f"{self.row}: "),
                f"{row.tool.cpu:.2f}",
                f"{row.tool.wall:.2f}",
                f"{row.tool.peak / MB:.0f}",
            ]
            for row in (result.comparisons if result else [])
            if row.tool.samples
        ]
        return format_markdown(["process", "CPU seconds", "wall seconds", "MB of memory"], cells)


@dataclass(frozen=True)
class Conditions:
    """Date, machine, code and versions."""

    def rows(self) -> list[str]:
        """Name no row."""
        return []

    def format(self, results: Results) -> str:
        """Format a paragraph."""
        found = [results.by_row[row] for row in sorted(documented_rows() & results.by_row.keys())]
        outcomes = [
            outcome
            for result in found
            for row in result.comparisons
            for outcome in (row.tool, row.against)
            if outcome is not None and outcome.version
        ]
        versions = {
            (outcome.label.partition(",")[0], outcome.version)
            for outcome in outcomes
            if not outcome.label.startswith("wkwdask")
        }
        dates = sorted({result.date[:10] for result in found})
        machines = sorted({f"{result.cores} cores of {result.cpu}" for result in found})
        commits = sorted({result.commit for result in found})
        return (
            f"Measured on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, on "
            f"{' and '.join(machines)}, by commit {', '.join(commits)}, beside "
            f"{', '.join(f'{tool} {version}' for tool, version in sorted(versions))}.\n"
            if found
            else "Nothing was measured.\n"
        )


def format_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of Markdown, with a line break at its end."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _joined(values: Sequence[float | None], form: object) -> str:
    """Format the values of EM and segmentation."""
    return " / ".join("-" if value is None else form(value) for value in values)


def _format_number(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _format_ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def _format_mb(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _format_traffic(outcome: Outcome) -> str:
    return (
        f"{outcome.requests}, {_format_mb(outcome.received / MB)}, {outcome.wall:.2f}, "
        f"{outcome.cpu:.2f}"
    )


def _format_peers(peers: Sequence[Outcome | None], speeds: Sequence[float | None]) -> str:
    """Format names and speeds; a name that both layers share once."""
    labels = [peer.label for peer in peers if peer]
    tools = {label.partition(",")[0] for label in labels}
    if len(tools) == 1:
        tool, comma, settings = labels[0].partition(",")
        settings = f"{comma}{settings}" if len(set(labels)) == 1 else ""
        return f"`{tool}`{settings} {_joined(speeds, _format_number)}"
    return " / ".join(
        "-" if peer is None else f"`{peer.label.partition(',')[0]}` {_format_number(speed)}"
        for peer, speed in zip(peers, speeds, strict=True)
    )


_ARRAYS = {
    "Zarr, zstd, shards": "zarr/read/{}/zstd/shards",
    "N5, gzip": "n5/read/{}/gzip",
    "precomputed, shards": "precomputed/boxes/{}/shards",
}
_PRECOMPUTED = {
    "write/{}/sharded": "write, shards",
    "write/{}/files": "write, a file per chunk",
    "read/{}/sharded": "read, shards",
    "pyramid/{}/sharded": "pyramid, shards",
    "pyramid/{}/files": "pyramid, a file per chunk",
    "convert/{}/sharded": "WKW to precomputed, shards",
}
_REQUESTED = {"box": "open, a box of 128^3", "whole": "open, all"}

TABLES = {
    "run": Conditions(),
    "read": Speeds(
        (
            Line("a whole mag", "read/{}/whole"),
            Line("`open(...).compute()`", "read/{}/open", "wkwdask, open czyx"),
            Line("boxes of 128^3", "read/{}/box128"),
            Line("boxes of 32^3", "read/{}/box32"),
            Line(
                "`read_many`, 64 boxes of 64^3 near each other, beside a loop of `read`",
                "many/{}/near",
                "wkwdask, read_many",
                "wkwdask, loop*",
            ),
            Line(
                "a whole mag by two threads, MB per wall second",
                "threads/{}/whole",
                "wkwdask, 2 threads",
                speed="wall_speed",
            ),
            *(
                Line(f"slices {plane} at random places", f"slices/{{}}/{plane}")
                for plane in ("xy", "yz")
            ),
            *(
                Line(
                    f"50 slices {plane} that follow each other, {cache} cache",
                    f"slices/{{}}/{plane}/next",
                    f"wkwdask, {cache} cache",
                )
                for cache in ("empty", "full")
                for plane in ("xy", "yz")
            ),
        )
    ),
    "boxes": Speeds(
        tuple(
            Line(f"{name}, boxes of {edge}^3, {how}", f"{row}/box{edge}", f"wkwdask, {how}")
            for name, row in _ARRAYS.items()
            for edge, how in ((64, "opened once"), (64, "by path"), (32, "by path"))
        )
    ),
    "wkw": Speeds(
        (
            Line("pyramid, LZ4HC, level auto", "pyramid/{}/lz4hc/1", "wkwdask, level auto"),
            Line("pyramid, LZ4", "pyramid/{}/lz4/1"),
            *(
                Line(
                    f"pyramid, {name}, beside its parts",
                    f"pyramid/{{}}/{name.lower()}/limit",
                    "wkwdask, 1 thread",
                    "sum of its parts",
                )
                for name in ("LZ4HC", "LZ4")
            ),
            Line("files of 512^3 cut into 128^3, LZ4HC", "rechunk/{}/split", "wkwdask, spliced"),
            Line("raw to LZ4HC, level 5", "rechunk/{}/raw-to-lz4hc", "wkwdask, level 5"),
            Line("table of labels", "labels/seg", peers="cc3d*"),
            Line("26-connected components", "components/{}", "wkwdask, files"),
        )
    ),
    "precomputed": Speeds(
        tuple(Line(work, f"precomputed/{row}", "wkwdask*") for row, work in _PRECOMPUTED.items())
    ),
    "zarr": Speeds(
        (
            Line("WKW to Zarr, Zstandard", "zarr/export/{}", "wkwdask, zstd 3"),
            Line("WKW to Zarr, blocks copied", "zarr/splice/{}", "wkwdask, blocks copied"),
            Line("pyramid, Zstandard", "zarr/pyramid/{}/zstd"),
            Line("the same beside its parts", "zarr/pyramid/{}/zstd", peers="its parts alone"),
            Line("pyramid, Blosc of LZ4", "zarr/pyramid/{}/blosc-lz4"),
            Line("`zarr_view`, a whole mag", "zarr/view/{}/whole", "zarr, zarr_view", "wkwdask"),
            Line("N5: pyramid", "n5/pyramid/{}"),
            Line("WKW to N5", "n5/convert/{}"),
            *(
                Line(
                    f"zarr_benchmarks, {form}: {work}",
                    f"zarr/public/{form}/{work.replace(' ', '-')}",
                )
                for work in ("read", "round trip")
                for form in ("raw", "zstd", "sharded")
            ),
        )
    ),
    "servers": Traffic(
        (
            *(
                Line(f"{name}: {work}", f"remote/{form}/{part}")
                for form, name in (
                    ("wkw", "WKW, files of 128^3"),
                    ("precomputed-sharded", "precomputed, shards"),
                    ("zarr", "Zarr, shards"),
                )
                for part, work in _REQUESTED.items()
            ),
            Line("to a bucket: write precomputed", "bucket/save/precomputed"),
            Line("to a bucket: pyramid of precomputed", "bucket/pyramid/precomputed"),
            Line("to a bucket: write Zarr", "bucket/save/zarr"),
            Line("to a bucket: pyramid of Zarr", "bucket/pyramid/zarr"),
            Line("to a bucket: WKW to Zarr, blocks copied", "bucket/convert/zarr"),
        )
    ),
    "view": Speeds(
        (
            *(
                Line("chunks of 32^3 of WKW served by `view`", "view/{}", "*view, WKW", peers)
                for peers in ("cloud-volume*", "nginx*")
            ),
            *(
                Line(f"meshes simplified by {simplifier}", f"meshes/seg/{simplifier}", "wkwdask*")
                for simplifier in ("pyfqmr", "meshoptimizer")
            ),
        )
    ),
    "start": Processes("start"),
    "summary": Speeds(
        (
            Line("read a whole mag", "read/{}/whole"),
            Line("read boxes of 32^3", "read/{}/box32"),
            Line("pyramid of 4 mags, LZ4HC", "pyramid/{}/lz4hc/1", "wkwdask, level auto"),
            Line("pyramid of 4 mags, LZ4", "pyramid/{}/lz4/1"),
            Line("cut files of 512^3 into 128^3", "rechunk/{}/split", "wkwdask, spliced"),
            Line(
                "convert WKW to sharded precomputed", "precomputed/convert/{}/sharded", "wkwdask*"
            ),
            Line("convert WKW to Zarr, blocks copied", "zarr/splice/{}", "wkwdask, blocks copied"),
            Line("pyramid of sharded OME-Zarr", "zarr/pyramid/{}/zstd"),
        )
    ),
}
"""The tables by the names in their marks."""


def documented_rows() -> set[str]:
    """Name all rows that the tables show."""
    return {row for table in TABLES.values() for row in table.rows()}


def render(page: str, results: Results) -> str:
    """Replace the tables of a page."""
    return _MARKED.sub(
        lambda found: f"{found[1]}{TABLES[found[2]].format(results)}{found[3]}", page
    )


def names_of(page: str) -> list[str]:
    """Name the tables of a page."""
    return [found[2] for found in _MARKED.finditer(page)]


def write_pages(results: Results) -> list[str]:
    """Replace the tables of all pages, and return the rows that are missing."""
    for path in PAGES:
        path.write_text(render(path.read_text(), results))
    return sorted(documented_rows() - results.by_row.keys())
