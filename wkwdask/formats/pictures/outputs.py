"""Export targets: ``.npy``, Zarr and folders of TIFFs, written box by box in any order, and single
TIFF files, written section by section.

Each target is written in the hidden folder of the export, which renames it to its final path once
it is complete.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import AlignmentError
from wkwdask.formats.pictures.scratch import Scratch
from wkwdask.geometry.bounding_box import counted_from
from wkwdask.geometry.vectors import minus
from wkwdask.model.extras import import_extra
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import count_cells
from wkwdask.plans.chunks import largest_multiple
from wkwdask.store.documents import read_object
from wkwdask.store.paths import dirname, naming
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.volume import Volume

SLAB_NBYTES = 256 << 20
_STRETCH_NBYTES = 64 << 20
_ZARR_SHARD_NBYTES = 128 << 20
# of raw voxels; the 32-bit offsets of classic TIFF end at 4 GiB, and tags need a part of that
_BIG_TIFF_NBYTES = 3 << 30
_TILE_VX = 512
_SECTION_NAME = re.compile(r"z\d{4,}\.tif", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExportedArray:
    """Geometry and type of an exported mag."""

    box: BoundingBox
    num_channels: int
    dtype: np.dtype[Any]
    chunk_shape: Vec3
    shard_shape: Vec3
    voxel_size_nm: tuple[float, float, float] | None

    @property
    def voxel_nbytes(self) -> int:
        return voxel_nbytes(self)

    @property
    def axes(self) -> str:
        return "zyx" if self.num_channels == 1 else "czyx"

    def outer(self, shape: Vec3) -> tuple[int, ...]:
        """Return the shape of an exported array, (z, y, x) or (c, z, y, x), for a shape along x, y,
        z."""
        return (*((self.num_channels,) if self.num_channels > 1 else ()), *reversed(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outer(self.box.size)

    def in_order(self, array: AnyArray) -> AnyArray:
        """Return an array (c, x, y, z) as (z, y, x), or (c, z, y, x) if there are several
        channels."""
        transposed = array.transpose(0, 3, 2, 1)
        return transposed[0] if self.num_channels == 1 else transposed


@dataclass(frozen=True, slots=True)
class Output(ABC):
    """Export target whose cells may be written in any order; picklable, since tasks carry it."""

    path: str
    spec: ExportedArray
    note: ClassVar[str] = ""
    """Advice for the user, shown in the plan."""

    @property
    @abstractmethod
    def cell_shape(self) -> Vec3:
        """Shape that one task writes [voxels]."""

    @property
    @abstractmethod
    def corner(self) -> Vec3:
        """Origin of the grid of cells [voxels]."""

    @property
    def num_cells(self) -> int:
        return count_cells(counted_from(self.spec.box, self.corner), self.cell_shape)

    @property
    @abstractmethod
    def num_files(self) -> int:
        """Number of files, at most."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the file or folder that tasks write to; a second call changes nothing."""

    @abstractmethod
    def write(self, source: Volume, box: BoundingBox) -> None:
        """Write the part of one cell that lies in the box."""


def read_box(source: Volume, box: BoundingBox) -> AnyArray:
    """Read a box, shape (c, x, y, z), with x fastest."""
    out = np.empty((source.num_channels, *reversed(box.size)), source.dtype).transpose(0, 3, 2, 1)
    source.read_into(out, box.topleft)
    return out


@dataclass(frozen=True, slots=True)
class NpyOutput(Output):
    @property
    def num_files(self) -> int:
        return 1

    @property
    def cell_shape(self) -> Vec3:
        # Whole rows, so that each section of a cell is one contiguous range of the file.
        width, (_, y, z) = self.spec.box.size[0], self.spec.chunk_shape
        while (
            2 * y * width * z * self.spec.voxel_nbytes <= _STRETCH_NBYTES
            and y < self.spec.box.size[1]
        ):
            y *= 2
        return width, y, z

    @property
    def corner(self) -> Vec3:
        """Voxel 0 along y and z, which aligns cells with the source's grid."""
        return self.spec.box.topleft[0], 0, 0

    def _header(self) -> bytes:
        header = BytesIO()
        description = {
            "descr": np.lib.format.dtype_to_descr(self.spec.dtype),
            "fortran_order": False,
            "shape": self.spec.shape,
        }
        np.lib.format.write_array_header_1_0(header, description)
        return header.getvalue()

    def prepare(self) -> None:
        """Write the header and set the size of the file; unwritten voxels are zero."""
        header = self._header()
        nbytes = len(header) + int(np.prod(self.spec.shape)) * self.spec.dtype.itemsize
        with contextlib.closing(folders_of(self.path).create(self.path, exclusive=False)) as file:
            file.write(memoryview(header), 0)
            if store_at(self.path).status().st_size != nbytes:
                file.set_nbytes(nbytes)

    def write(self, source: Volume, box: BoundingBox) -> None:
        spec = self.spec
        array = read_box(source, box)
        start = len(self._header())
        x, y, z = minus(box.topleft, spec.box.topleft)
        if (x, box.size[0]) != (0, spec.box.size[0]):
            raise AlignmentError(f"{self.path}: {box} does not cover whole rows of {spec.box}")
        width, height, depth = spec.box.size
        with (
            contextlib.closing(folders_of(self.path).create(self.path, exclusive=False)) as file,
            naming(self.path),
        ):
            for c in range(spec.num_channels):
                for n in range(box.size[2]):
                    first = ((c * depth + z + n) * height + y) * width
                    section = np.ascontiguousarray(array[c, :, :, n].T).reshape(-1).view(np.uint8)
                    file.write(section.data, start + first * spec.dtype.itemsize)
            file.sync()


@dataclass(frozen=True, slots=True)
class ZarrOutput(Output):
    """A Zarr array of version 3 with the chunks of the source, and with its shards if they fit into
    memory."""

    @property
    def cell_shape(self) -> Vec3:
        return largest_multiple(
            self.spec.chunk_shape, self.spec.shard_shape, self.spec.voxel_nbytes, _ZARR_SHARD_NBYTES
        )

    @property
    def corner(self) -> Vec3:
        """Lowest corner of the box: index 0 of the array."""
        return self.spec.box.topleft

    @property
    def num_files(self) -> int:
        """Number of shards, and the document."""
        return self.num_cells + 1

    def prepare(self) -> None:
        """Create the array, with axes, voxel size and offset in its metadata."""
        if store_at(self.path).exists("zarr.json"):
            return
        spec = self.spec
        attributes: JsonObject = {
            "mag": list(spec.box.mag.factors),
            "offset_vx": list(spec.box.topleft),
        }
        if spec.voxel_size_nm is not None:
            attributes["voxel_size_nm"] = list(spec.voxel_size_nm)
        import_extra("zarr", self.path).create_array(
            self.path,
            shape=spec.shape,
            dtype=spec.dtype,
            chunks=self.spec.outer(spec.chunk_shape),
            shards=self.spec.outer(self.cell_shape),
            dimension_names=list(spec.axes),
            attributes=attributes,
            fill_value=0,
            zarr_format=3,
        )

    def write(self, source: Volume, box: BoundingBox) -> None:
        array = import_extra("zarr", self.path).open_array(self.path, mode="r+")
        where = tuple(
            slice(a - b, a - b + n)
            for a, b, n in zip(box.topleft, self.spec.box.topleft, box.size, strict=True)
        )
        voxels = self.spec.in_order(read_box(source, box))
        with naming(self.path):
            array[(..., *reversed(where))] = voxels


@dataclass(frozen=True, slots=True)
class SectionsOutput(Output):
    """A folder with one TIFF for each section, named by its z in the mag."""

    compression: str
    note: ClassVar[str] = (
        "a folder with one TIFF for each section, named by its z; a path that ends with .ome.tif, "
        ".tif, .npy or .zarr chooses another format"
    )

    @property
    def cell_shape(self) -> Vec3:
        """Whole sections, as deep as a chunk of the source."""
        return (*self.spec.box.size[:2], self.spec.chunk_shape[2])

    @property
    def corner(self) -> Vec3:
        """Voxel 0 along z, which aligns cells with the source's grid."""
        return (*self.spec.box.topleft[:2], 0)

    @property
    def num_files(self) -> int:
        return self.spec.box.size[2]

    def prepare(self) -> None:
        store_at(self.path).make()

    def write(self, source: Volume, box: BoundingBox) -> None:
        tifffile = import_extra("tifffile", self.path)
        digits = max(4, len(str(self.spec.box.bottomright[2] - 1)))
        for z, plane in sections(source, box, self.path):
            data = BytesIO()
            image = plane[0] if len(plane) == 1 else plane.transpose(1, 2, 0)
            tifffile.imwrite(
                data,
                image,
                photometric="rgb"
                if image.ndim == 3 and image.shape[2] in (3, 4) and image.dtype.kind == "u"
                else "minisblack",
                compression=None if self.compression == "raw" else self.compression,
                metadata=None,
                **_resolution(self.spec),
                **({"planarconfig": "contig"} if image.ndim == 3 else {}),
            )
            # Temporary files lie in the folder of the export, so that those of a killed process are
            # removed with it.
            file = store_at(self.path).new_file(f"z{z:0{digits}}.tif", dirname(self.path))
            try:
                file.write(data.getbuffer(), 0)
            except BaseException:
                file.discard()
                raise
            file.publish(flush_folder=False)


def is_section(name: str) -> bool:
    """Return whether a file name is one that :class:`SectionsOutput` writes.

    Examples
    --------
    >>> is_section("z0012.tif"), is_section("section_012.tif")
    (True, False)
    """
    return _SECTION_NAME.fullmatch(name) is not None


def is_exported_zarr(path: str) -> bool:
    """Return whether a folder contains a Zarr array that :class:`ZarrOutput` wrote, and nothing
    else."""
    record = read_object(store_at(path), "zarr.json") or {}
    attributes = record.get("attributes")
    is_ours = (
        record.get("node_type") == "array"
        and isinstance(attributes, dict)
        and {"mag", "offset_vx"} <= set(attributes)
    )
    return is_ours and set(store_at(path).names()) <= {"zarr.json", "c"}


def write_tiff(
    path: str, source: Volume, spec: ExportedArray, compression: str, *, ome: bool, on_section: Any
) -> None:
    """Write one TIFF file of tiles, section by section."""
    tifffile = import_extra("tifffile", path)
    channels = (spec.num_channels,) if spec.num_channels > 1 else ()
    metadata: JsonObject = {"axes": "ZCYX" if channels else "ZYX"}
    if spec.voxel_size_nm is not None and ome:
        for axis, length in zip("XYZ", spec.voxel_size_nm, strict=True):
            metadata |= {f"PhysicalSize{axis}": length, f"PhysicalSize{axis}Unit": "nm"}
    width, height, depth = spec.box.size
    tile = min(_TILE_VX, -(-max(width, height) // 16) * 16)
    is_big = width * height * depth * spec.voxel_nbytes >= _BIG_TIFF_NBYTES
    planes = (
        plane for box in slab_boxes(spec) for _, plane in sections(source, box, dirname(path))
    )
    with naming(path), tifffile.TiffWriter(path, ome=ome, bigtiff=is_big) as writer:
        # without planarconfig and extrasamples, tifffile takes the x axis for samples if the box is
        # one voxel wide
        writer.write(
            _tiles(planes, tile, on_section),
            shape=(depth, *channels, height, width),
            dtype=spec.dtype,
            tile=(tile, tile),
            photometric="minisblack",
            planarconfig="contig",
            extrasamples=(),
            compression=None if compression == "raw" else compression,
            metadata=metadata,
            **_resolution(spec),
        )


def slab_boxes(spec: ExportedArray) -> Iterator[BoundingBox]:
    """Yield slabs of the exported box along z, each within one layer of chunks."""
    box, step = spec.box, spec.chunk_shape[2]
    for z in range(box.topleft[2] // step * step, box.bottomright[2], step):
        low, high = max(z, box.topleft[2]), min(z + step, box.bottomright[2])
        yield type(box).from_corners((*box.topleft[:2], low), (*box.bottomright[:2], high), box.mag)


def sections(source: Volume, slab: BoundingBox, scratch: str) -> Iterator[tuple[int, AnyArray]]:
    """Yield the z of each section of a slab and its voxels, shape (c, y, x); each chunk is read
    once."""
    # A slab that exceeds memory is read in strips along y, whose sections wait in a scratch file:
    #     strip 0 | z 0  z 1  z 2 ...        written row by row,
    #     strip 1 | z 0  z 1  z 2 ...        read column by column: section z = strips 0, 1, ... of z  # noqa: E501
    nbytes_per_voxel = voxel_nbytes(source)
    if slab.volume * nbytes_per_voxel <= SLAB_NBYTES:
        array = read_box(source, slab).transpose(3, 0, 2, 1)
        for n, plane in enumerate(array):
            yield slab.topleft[2] + n, plane
        return
    with contextlib.closing(Scratch(scratch)) as waiting:
        rows = source.chunk_shape[1]
        while 2 * rows * slab.size[0] * slab.size[2] * nbytes_per_voxel <= SLAB_NBYTES:
            rows *= 2
        (left, top, front), (right, bottom, back) = slab.topleft, slab.bottomright
        starts = [top, *range((top // rows + 1) * rows, bottom, rows), bottom]
        for n, (low, high) in enumerate(pairwise(starts)):
            strip = read_box(
                source, type(slab).from_corners((left, low, front), (right, high, back), slab.mag)
            )
            for z in range(slab.size[2]):
                waiting.put((z, n), strip[:, :, :, z].transpose(0, 2, 1))
            del strip
        for z in range(slab.size[2]):
            yield (
                front + z,
                np.concatenate([waiting.get((z, n)) for n in range(len(starts) - 1)], axis=1),
            )


def _tiles(planes: Iterable[AnyArray], edge: int, on_section: Any) -> Iterator[AnyArray]:
    """Yield the tiles of sections, padded with zeros: TIFF stores tiles of full size."""
    for plane in planes:
        for channel in plane:
            for y in range(0, channel.shape[0], edge):
                for x in range(0, channel.shape[1], edge):
                    tile = np.zeros((edge, edge), channel.dtype)
                    part = channel[y : y + edge, x : x + edge]
                    tile[: part.shape[0], : part.shape[1]] = part
                    yield tile
        on_section()


def _resolution(spec: ExportedArray) -> JsonObject:
    """Return tifffile's arguments for the pixel size (TIFF 6.0, section 8, "ResolutionUnit")."""
    if spec.voxel_size_nm is None:
        return {}
    # pixels per centimeter, which is 1e7 nm
    return {
        "resolution": (1e7 / spec.voxel_size_nm[0], 1e7 / spec.voxel_size_nm[1]),
        "resolutionunit": "CENTIMETER",
    }
