"""Reports of finished jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.summary import Card, counted, format_nbytes, html_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.model.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class MagReport:
    """Result of a job for one mag."""

    path: str
    """Folder of the mag."""
    files: int
    """Files written; a file whose voxels are all zero is not written."""
    voxels: int
    """Voxels of the box, zeros included."""
    nbytes: int
    """Bytes stored."""
    minimum: float | int | None
    """Smallest value, ignoring NaN; None for an empty box, or if blocks were copied without
    decoding."""
    maximum: float | int | None
    """Largest value, ignoring NaN."""
    nonzero: BoundingBox | None
    """Smallest box around all nonzero voxels [voxels of the mag]; None if all are zero."""


@dataclass(frozen=True, slots=True)
class Report(Card):
    """Result of a job."""

    mags: tuple[MagReport, ...]
    """One entry per mag written, finest first."""
    nbytes_in: int
    """Decoded voxel bytes read."""
    seconds: float
    """Wall time."""
    note: str = ""
    """Further information for the user."""

    @property
    def files(self) -> int:
        """Files written."""
        return sum(mag.files for mag in self.mags)

    @property
    def voxels(self) -> int:
        """Voxels written, zeros included."""
        return sum(mag.voxels for mag in self.mags)

    @property
    def nbytes_out(self) -> int:
        """Bytes stored."""
        return sum(mag.nbytes for mag in self.mags)

    @property
    def mb_per_second(self) -> float:
        """Voxel bytes read per second of wall time [MB/s]."""
        return self.nbytes_in / 1e6 / self.seconds if self.seconds > 0 else float("inf")

    def __str__(self) -> str:
        lines = [
            f"{mag.path}: {counted(mag.files, 'file')}, {counted(mag.voxels, 'voxel')}, "
            f"{format_nbytes(mag.nbytes)}"
            + (f", values {mag.minimum} to {mag.maximum}" if mag.minimum is not None else "")
            for mag in self.mags
        ]
        return "\n".join([*lines, *self._totals()])

    def _totals(self) -> list[str]:
        speed = (
            f"{format_nbytes(self.nbytes_in)} in, {format_nbytes(self.nbytes_out)} out, "
            f"{self.seconds:.1f} s, {self.mb_per_second:,.0f} MB/s"
        )
        return [*([speed] if self.mags else []), *([self.note] if self.note else [])]

    def _tables(self) -> str:
        rows = [
            (
                mag.path,
                f"{mag.files:,}",
                f"{mag.voxels:,}",
                format_nbytes(mag.nbytes),
                "" if mag.minimum is None else f"{mag.minimum} to {mag.maximum}",
            )
            for mag in self.mags
        ]
        table = html_table(("mag", "files", "voxels", "bytes", "values"), rows)
        return f"{table}{'<br>'.join(map(escape, self._totals()))}"

    def _drawn(self) -> Iterable[str]:
        return (mag.path for mag in self.mags)

    def to_json(self) -> JsonObject:
        """Return the form kept in the provenance of a mag."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: JsonObject, note: str, folders: Sequence[str]) -> Report:
        """Parse the form kept in the provenance of a mag; raises KeyError, TypeError or ValueError
        if it is not valid."""
        mags = [
            _mag_report(entry, folder) for entry, folder in zip(value["mags"], folders, strict=True)
        ]
        nbytes_in, seconds = value["nbytes_in"], value["seconds"]
        if not isinstance(nbytes_in, int) or not isinstance(seconds, (int, float)):
            raise TypeError(f"expected numbers, found nbytes_in {nbytes_in!r}, seconds {seconds!r}")
        return cls(tuple(mags), nbytes_in, float(seconds), note)


def _mag_report(entry: JsonObject, folder: str) -> MagReport:
    box = entry["nonzero"]
    nonzero = (
        None
        if box is None
        else BoundingBox(vec3(box["topleft"]), vec3(box["size"]), Mag(**box["mag"]))
    )
    report = MagReport(**{**entry, "path": folder, "nonzero": nonzero})
    counts, values = (report.files, report.voxels, report.nbytes), (report.minimum, report.maximum)
    if not all(isinstance(count, int) for count in counts) or not all(
        value is None or isinstance(value, (int, float)) for value in values
    ):
        raise TypeError(f"expected numbers, found {entry}")
    return report


@dataclass(frozen=True, slots=True)
class RmReport:
    """Result of a removal, or of its dry run."""

    files: int
    """Number of files removed."""
    nbytes: int
    """Bytes removed."""
    paths: tuple[str, ...]
    """Folders of the removed mags."""
    remaining: tuple[str, ...] = ()
    """Other files and folders beside the mags, which stay."""
    note: str = ""
    """Further information for the user."""

    def __str__(self) -> str:
        lines = [
            *self.paths,
            f"{counted(self.files, 'file')}, {format_nbytes(self.nbytes)}",
            *(f"stays: {path}" for path in self.remaining),
        ]
        return "\n".join([*lines, self.note] if self.note else lines)


def merge_reports(reports: Sequence[Report]) -> Report:
    """Combine the reports of consecutive jobs."""
    if len(reports) == 1:
        return reports[0]
    notes = dict.fromkeys(note for report in reports for note in report.note.split("; ") if note)
    mags = tuple(mag for report in reports for mag in report.mags)
    return Report(
        mags,
        sum(report.nbytes_in for report in reports),
        sum(report.seconds for report in reports),
        "; ".join(notes),
    )
