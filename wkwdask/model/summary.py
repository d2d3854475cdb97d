"""Presentation of results: text with units, tables, cards in notebooks; and the summary of images
outside of datasets, for ``wkwdask info``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image, Level
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray


THUMBNAIL = 160
"""Size of a picture in a notebook [pixels]."""

_drawers: list[Callable[[str, int], str]] = []


def draw_cards_with(draw: Callable[[str, int], str]) -> None:
    """Set the function that draws the mag of a path. It is above this folder, which must not import
    it."""
    _drawers[:] = [draw]


class Card(ABC):
    """Base of reports and plans, which notebooks and pages show as HTML."""

    __slots__ = ()

    @abstractmethod
    def _tables(self) -> str:
        """Return HTML tables."""

    @abstractmethod
    def _drawn(self) -> Iterable[str]:
        """List mags, finest first; one of them is drawn."""

    def to_html(self, pixels: int = THUMBNAIL) -> str:
        """Return HTML for notebooks and pages: tables, and a picture of the finest mag that is
        quickly drawn.

        Parameters
        ----------
        pixels : int
            Size of the picture [pixels].

        Returns
        -------
        str
            One HTML element.

        Examples
        --------
        >>> VolumeSummary("em.n5", "image", "uint8", 1, (), "n5").to_html()[-12:]
        '</div></div>'
        """
        picture = next(
            filter(None, (draw(path, pixels) for path in self._drawn() for draw in _drawers)), ""
        )
        return (
            "<div "
            f"style='display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start'><div>{self._tables()}</div>{picture}</div>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for notebooks and reports.

    Examples
    --------
    >>> html_table((), [("files", "<3")])
    '<table><tbody><tr><td>files</td><td>&lt;3</td></tr></tbody></table>'
    """
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    )


def box_text(box: BoundingBox | None) -> str:
    """Format top left and size of a box.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> box_text(BoundingBox((1, 2, 3), (4, 5, 6)))
    '1, 2, 3 + 4, 5, 6'
    """
    return (
        ""
        if box is None
        else f"{', '.join(map(str, box.topleft))} + {', '.join(map(str, box.size))}"
    )


def counted(number: int, noun: str) -> str:
    """Format a number with its noun.

    Examples
    --------
    >>> counted(1, "file"), counted(12_000, "file")
    ('1 file', '12,000 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_nbytes(nbytes: int) -> str:
    """Format a number of bytes with a decimal unit.

    Examples
    --------
    >>> format_nbytes(999), format_nbytes(3_400_000)
    ('999 B', '3.4 MB')
    """
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


@dataclass(frozen=True, slots=True)
class ScaleSummary:
    """Summary of one level."""

    key: str
    folder: str
    mag: Mag | None = None
    """Mag relative to the first scale, None if it has none."""
    resolution: Lengths | None = None
    """Edge lengths of a voxel [nm]."""
    box: BoundingBox | None = None
    """Bounding box [absolute voxels of the scale], None if the level cannot be opened."""
    chunk_sizes: tuple[Vec3, ...] = ()
    """All chunk sizes in which it is stored [voxels]."""
    encoding: str = ""
    """Encoding of chunks."""
    sharding: str = ""
    """Sharding, empty if each chunk is a file."""
    hidden: bool = False
    """Whether viewers hide it."""
    files: int | None = None
    """Number of stored chunks or shards, None for a remote volume."""
    nbytes: int | None = None
    """Total size of these files, None for a remote volume."""
    problem: str = ""
    """Reason why it cannot be opened, empty if it can."""


@dataclass(frozen=True, slots=True)
class VolumeSummary(Card):
    """Summary of an image, one of its levels, or the images of a container."""

    path: str
    type: str
    """``"image"`` or ``"segmentation"``."""
    dtype: str
    num_channels: int
    scales: tuple[ScaleSummary, ...]
    """Levels, finest first, or in the order of the document."""
    format: str
    notes: tuple[str, ...] = ()
    """Further properties, such as transformations that are not applied."""

    def _tables(self) -> str:
        rows = [
            (
                scale.key,
                "" if scale.mag is None else scale.mag.name,
                box_text(scale.box),
                scale.encoding,
                "" if scale.files is None else f"{scale.files:,}",
                "" if scale.nbytes is None else format_nbytes(scale.nbytes),
                scale.problem,
            )
            for scale in self.scales
        ]
        head = (
            f"{self.path}: {self.format} {self.type}, {self.dtype}, "
            f"{counted(self.num_channels, 'channel')}"
        )
        return f"{escape(head)}{html_table(('level', 'mag', 'box', 'encoding', 'files', 'bytes', ''), rows)}{'<br>'.join(map(escape, self.notes))}"  # noqa: E501

    def _drawn(self) -> Iterable[str]:
        return (scale.folder for scale in self.scales if not scale.problem)

    def to_json(self) -> JsonObject:
        head = {
            "path": self.path,
            "format": self.format,
            "type": self.type,
            "dtype": self.dtype,
            "num_channels": self.num_channels,
        }
        return {
            **head,
            "scales": [_scale_json(scale) for scale in self.scales],
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def _scale_json(scale: ScaleSummary) -> JsonObject:
    return {
        "key": scale.key,
        "folder": scale.folder,
        "mag": None if scale.mag is None else scale.mag.name,
        "resolution": scale.resolution,
        "box": None if scale.box is None else [*scale.box.topleft, *scale.box.size],
        "chunk_sizes": [list(size) for size in scale.chunk_sizes],
        "encoding": scale.encoding,
        "sharding": scale.sharding or None,
        "hidden": scale.hidden,
        "files": scale.files,
        "nbytes": scale.nbytes,
        "problem": scale.problem or None,
    }


def summarize_arrays(url: str | os.PathLike[str], layers: Sequence[Image]) -> VolumeSummary:
    """Summarize images from their metadata; local files are counted."""
    volumes = [level.open() for layer in layers for level in layer.levels if not level.problem]
    several = len(layers) > 1
    scales = [
        _summarize(layer, level, several=several) for layer in layers for level in layer.selected
    ]
    dtypes = {volume.dtype.name for volume in volumes}
    path = str(url) if several else layers[0].folder
    kind = "container" if several else layers[0].category or "volume"
    channels = max((volume.num_channels for volume in volumes), default=1)
    return VolumeSummary(
        path, kind, ", ".join(sorted(dtypes)), channels, tuple(scales), layers[0].format
    )


def _summarize(layer: Image, level: Level, *, several: bool) -> ScaleSummary:
    key = "/".join(filter(None, [layer.name if several else "", level.key])) or layer.name
    if level.problem:
        return ScaleSummary(key, f"{layer.folder}/{level.key}", problem=level.problem)
    volume = level.open()
    files, nbytes = volume.files.count() or (None, None)
    chunks = (volume.chunk_shape,)
    return ScaleSummary(
        key,
        volume.name,
        level.mag,
        volume.lengths_nm,
        volume.box,
        chunks,
        volume.codec.name,
        _shards(volume),
        files=files,
        nbytes=nbytes,
    )


def _shards(volume: StoredArray) -> str:
    grid = volume.grid
    return (
        ""
        if grid.file in (None, grid.chunk)
        else f"shards of {' x '.join(map(str, (grid.file or grid.chunk)[1:]))} voxels"
    )
