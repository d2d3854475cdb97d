"""Tables for terminals and logs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape

from wkwdask.cli.messages import on_command_line
from wkwdask.formats.webknossos.layer_metadata import other_format, type_text
from wkwdask.model.faults import SEVERITIES
from wkwdask.model.summary import VolumeSummary, box_text, format_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.clusters.finding import Finding
    from wkwdask.formats.webknossos.summary import DatasetSummary, LayerSummary, MagSummary
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.summary import ScaleSummary
    from wkwdask.verbs.verify import VerifyReport

_LOG_WIDTH = 160
_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def _console() -> Console:
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _LOG_WIDTH
    return Console(width=width, highlight=False)


def _print_rows(
    console: Console, left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a table, or one paragraph per row if the table is wider than the terminal."""
    names = (*left, *right)
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join(
            cell + space if number < len(left) else space + cell
            for number, (cell, space) in enumerate(zip(cells, spaces, strict=True))
        ).rstrip()

    if sum(widths) + 2 * (len(names) - 1) <= console.width:
        console.print(f"[bold]{escape(line(names))}[/bold]", soft_wrap=True)
        click.echo("\n".join(map(line, rows)), nl=bool(rows))
        return
    for row in rows:
        for text in _wrapped(
            [
                f"{name} {cell}"
                for name, cell in zip(names, row, strict=True)
                if cell not in ("", "-")
            ],
            console.width,
        ):
            console.print(escape(text), soft_wrap=True)


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Distribute parts over lines without breaking a part; all lines after the first are
    indented."""
    lines = [""]
    for part in parts:
        if lines == [""]:
            lines = [part]
        elif len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"  {part}")
    return lines


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what a check found, one line each."""
    console, width = _console(), max(len(finding.name) for finding in findings)
    for finding in findings:
        state = "fine " if finding.is_fine else f"[{_STYLES['error']}]WRONG[/]"
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        console.print(
            f"{state}  {escape(f'{finding.name:{width}}  {finding.value}{remedy}')}", soft_wrap=True
        )


def print_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records with the same keys, numbers mostly."""
    if records:
        texts = [
            [f"{value:g}" if isinstance(value, float) else str(value) for value in record.values()]
            for record in records
        ]
        is_text = isinstance(next(iter(records[0].values())), str)
        names = tuple(records[0])
        _print_rows(_console(), names if is_text else (), () if is_text else names, texts)


def print_contents(summary: DatasetSummary | VolumeSummary) -> None:
    """Print the contents of a dataset or volume."""
    if isinstance(summary, VolumeSummary):
        print_volume(summary)
    else:
        print_summary(summary)


def print_summary(summary: DatasetSummary) -> None:
    """Print the layers and mags of a dataset as a table."""
    console = _console()
    voxel_size = _lengths(summary.voxel_size_nm, "nm")
    if summary.unit != "nanometer":
        voxel_size = f"{_lengths(summary.voxel_size, summary.unit)} ({voxel_size})"
    console.print(f"[bold]{escape(summary.path)}[/bold]\nvoxel size {voxel_size}", soft_wrap=True)
    rows, problems, external = [], [], []
    for layer in summary.layers:
        for number, mag in enumerate(layer.mags):
            rows.append((*_layer_cells(layer, first=number == 0), *_mag_cells(mag)))
            if mag.problem:
                problems.append(mag.problem)
            if mag.elsewhere is not None:
                external.append(f"mag {mag.mag} of {layer.name}: {mag.elsewhere}")
        if layer.problem:
            problems.append(layer.problem)
            rows.append((layer.name, "-", "", "cannot be used", "", "", "", "", "", ""))
        elif not layer.mags:
            rows.append(
                (*_layer_cells(layer, first=True), "none", "", "", "", layer.data_format, "", "")
            )
    _print_rows(
        console,
        ("layer", "category", "type", "mag", "box"),
        ("block", "file", "compression", "files", "bytes"),
        rows,
    )
    for location in external:
        console.print(f"[yellow]elsewhere:[/yellow] {escape(location)}", soft_wrap=True)
    for problem in problems:
        console.print(f"[red]problem:[/red] {escape(problem)}", soft_wrap=True)
    for note in summary.notes:
        console.print(escape(note), soft_wrap=True)


def print_volume(summary: VolumeSummary) -> None:
    """Print the scales of a precomputed volume, N5 or Zarr as a table."""
    console = _console()
    channels = f" x {summary.num_channels} channels" if summary.num_channels > 1 else ""
    console.print(
        (
            f"[bold]{escape(summary.path)}[/bold]\n{summary.format} {summary.type}, "
            f"{summary.dtype}{channels}"
        ),
        soft_wrap=True,
    )
    rows = [_scale_cells(scale) for scale in summary.scales]
    _print_rows(
        console,
        ("scale", "mag", "voxel [nm]", "box", "chunk", "encoding", "shards"),
        ("files", "bytes"),
        rows,
    )
    for scale in summary.scales:
        if scale.problem:
            console.print(f"[red]problem:[/red] {escape(scale.problem)}", soft_wrap=True)
    for note in summary.notes:
        console.print(escape(note), soft_wrap=True)


def _scale_cells(scale: ScaleSummary) -> tuple[str, ...]:
    resolution = (
        "-"
        if scale.resolution is None
        else " x ".join(f"{length:g}" for length in scale.resolution)
    )
    if scale.problem:
        return scale.key, "-", resolution, "cannot be opened", "", "", "", "", ""
    chunks = ", ".join("x".join(map(str, shape)) for shape in scale.chunk_sizes)
    shown = f"{scale.encoding} (hidden)" if scale.hidden else scale.encoding
    mag, counted = "-" if scale.mag is None else scale.mag.name, _counted(scale.files, scale.nbytes)
    return (
        scale.key,
        mag,
        resolution,
        _box(scale.box),
        chunks,
        shown or "-",
        scale.sharding.removeprefix("shards of ") or "-",
        *counted,
    )


def _lengths(size: tuple[float, float, float] | None, unit: str) -> str:
    return "unknown" if size is None else f"{' x '.join(f'{length:g}' for length in size)} {unit}"


def print_verification(report: VerifyReport, limit: int) -> None:
    """Print the result of a verification: a table of the mags, then the faults."""
    console = _console()
    console.print(f"[bold]{escape(report.path)}[/bold]", soft_wrap=True)
    rows = []
    for mag in report.mags:
        faults = [
            fault
            for fault in report.faults
            if fault.path.startswith(f"{mag.folder}/") or fault.path == mag.folder
        ]
        counts = [
            sum(1 + fault.more for fault in faults if fault.severity == severity)
            for severity in SEVERITIES
        ]
        cells = (
            f"{mag.files:,}",
            format_nbytes(mag.nbytes),
            f"{mag.blocks:,}" if report.decoded else "-",
            f"{mag.compared:,}" if mag.compared else "-",
        )
        rows.append(
            (mag.layer, mag.mag, *cells, *(f"{count:,}" if count else "-" for count in counts))
        )
    _print_rows(
        console,
        ("layer", "mag"),
        ("files", "bytes", "blocks decoded", "files compared", "errors", "warnings", "notes"),
        rows,
    )
    for fault in report.faults[:limit]:
        style = _STYLES[fault.severity]
        console.print(
            f"[{style}]{fault.severity}[/{style}]{escape(on_command_line(str(fault).removeprefix(fault.severity)))}",
            soft_wrap=True,
        )
    if len(report.faults) > limit:
        console.print(f"... and {len(report.faults) - limit:,} more (--limit, --json)")
    for remedy in report.remedies(limit):
        console.print(escape(on_command_line(remedy)), soft_wrap=True)
    console.print(f"[bold]{escape(report.verdict)}[/bold]", soft_wrap=True)


def _layer_cells(layer: LayerSummary, *, first: bool) -> tuple[str, str, str]:
    if not first:
        return "", "", ""
    stored = f" ({other})" if (other := other_format(layer.data_format)) else ""
    return (
        layer.name,
        layer.category or "-",
        f"{type_text(layer.element_class, layer.num_channels)}{stored}",
    )


def _mag_cells(mag: MagSummary) -> tuple[str, ...]:
    if mag.problem:
        return mag.mag.name, "cannot be opened", "", "", "", "", ""
    edge = mag.block_len * mag.file_len
    block, file = (str(mag.block_len), str(edge)) if edge else ("-", "-")
    return (
        mag.mag.name,
        _box(mag.box),
        block,
        file,
        mag.compression,
        *_counted(mag.files, mag.nbytes),
    )


def _counted(files: int | None, nbytes: int | None) -> tuple[str, str]:
    """Format number and size of files; remote ones are not counted."""
    return ("-", "-") if files is None or nbytes is None else (f"{files:,}", format_nbytes(nbytes))


def _box(box: BoundingBox | None) -> str:
    return box_text(box) or "-"
