"""Folders of meshes in several levels of detail, and the field of ``info`` that names one
(neuroglancer, ``precomputed/meshes.rst``, "multi-resolution mesh format")."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from wkwdask.errors import ExistsError, MissingError
from wkwdask.formats.edits import DocumentEdit
from wkwdask.formats.mesh_folders import PROPERTIES_NAME
from wkwdask.formats.precomputed.info import FILE_NAME
from wkwdask.formats.precomputed.info_file import named_meshes, read_info, update_info
from wkwdask.formats.precomputed.layer import is_volume
from wkwdask.formats.precomputed.sharding import format_sharding
from wkwdask.model.json_text import format_json
from wkwdask.model.placement import placed_name, plain_name
from wkwdask.store.documents import check_replaceable
from wkwdask.store.paths import dirname, stated_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.info import VolumeInfo
    from wkwdask.formats.precomputed.sharding import Sharding

TYPE = "neuroglancer_multilod_draco"
BITS = 16
"""Bits of a coordinate of a vertex in its fragment."""
LARGEST = (1 << BITS) - 1
MANIFEST_SUFFIX = ".index"
_SEGMENTATION = "segmentation"
_PROPERTIES = "segment_properties"


class LevelOfDetail(NamedTuple):
    """Fragments of one label in one level of detail."""

    positions: npt.NDArray[np.int64]
    """Cells along x, y, z, in Morton order, shape (n, 3)."""
    sizes: Sequence[int]
    """Bytes of each fragment."""


def format_manifest(chunk_shape: Sequence[float], levels: Sequence[LevelOfDetail]) -> bytes:
    """Return the manifest of a label, finest level first; the grid of cells begins at 0.

    Examples
    --------
    >>> level = LevelOfDetail(np.array([[0, 0, 0], [1, 0, 0]]), [100, 80])
    >>> len(format_manifest((256, 256, 256), [level]))
    80
    """
    parts = [
        np.array([*chunk_shape, 0, 0, 0], "<f4"),
        np.array([len(levels)], "<u4"),
        np.array([1 << lod for lod in range(len(levels))], "<f4"),
        np.zeros((len(levels), 3), "<f4"),
        np.array([len(level.sizes) for level in levels], "<u4"),
    ]
    for level in levels:
        parts += [level.positions.astype("<u4").T, np.array(level.sizes, "<u4")]
    return b"".join(part.tobytes() for part in parts)


def format_mesh_info(origin: Sequence[float], edge: float, sharding: Sharding | None) -> bytes:
    """Return the ``info`` of a folder of meshes whose grid of cells begins at a point, and whose
    finest level shows details of some size [nm]."""
    x, y, z = origin
    document: dict[str, Any] = {
        "@type": TYPE,
        "vertex_quantization_bits": BITS,
        "transform": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z],
        "lod_scale_multiplier": edge,
    }
    if sharding is not None:
        document["sharding"] = format_sharding(sharding)
    return format_json(document).encode()


def format_segment_properties(
    labels: npt.NDArray[np.uint64], voxels: npt.NDArray[np.int64]
) -> bytes:
    """Return the ``info`` of the properties of segments: their voxels (neuroglancer,
    ``precomputed/segment_properties.rst``).

    Examples
    --------
    >>> import json
    >>> document = json.loads(format_segment_properties(np.array([7]), np.array([30])))
    >>> document["inline"]["ids"], document["inline"]["properties"][0]["values"]
    (['7'], [30])
    """
    # the format has no integers of 64 bits
    is_large = bool(len(voxels)) and int(voxels.max()) >= 1 << 32
    size = {
        "id": "voxels",
        "type": "number",
        "description": "voxels of the meshed mag",
        "data_type": "float32" if is_large else "uint32",
        "values": voxels.tolist(),
    }
    inline = {"ids": list(map(str, labels.tolist())), "properties": [size]}
    return json.dumps({"@type": "neuroglancer_segment_properties", "inline": inline}).encode()


def meshed_volume(folder: str) -> VolumeInfo:
    """Return the ``info`` of the volume that a folder of meshes belongs to; raises an error if that
    is no segmentation."""
    volume = dirname(folder)
    if is_volume(folder):
        raise ValueError(
            f"{folder}: is a volume; name a folder for meshes in it, such as {folder}/mesh"
        )
    try:
        info = read_info(store_at(volume))
    except MissingError:
        raise MissingError(
            f"{volume}: not a Neuroglancer precomputed volume; meshes are written into the folder "
            "of one, such as precomputed://volume/mesh: wkwdask convert makes it"
        ) from None
    if info.redirect is not None or info.type != _SEGMENTATION:
        found = f"a redirect to {info.redirect}" if info.redirect else f"of type {info.type!r}"
        raise ValueError(f"{volume}/{FILE_NAME}: expected a segmentation, found {found}")
    return info


def _are_of_meshes(document: dict[str, Any]) -> bool:
    """Return whether the properties of segments that ``info`` names lie in its folder of meshes."""
    return bool(document.get(_PROPERTIES) == f"{document.get('mesh')}/{PROPERTIES_NAME}")


@dataclass(frozen=True, slots=True)
class MeshEdit(DocumentEdit):
    """Field of ``info`` that names the folder of meshes."""

    kind: ClassVar[str] = "precomputed meshes"
    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    """Folder of the volume."""
    name: str
    """Name of the folder of meshes in it."""
    replaces: bool = False
    """Whether ``info`` may name another folder now."""
    has_properties: bool = False
    """Whether ``info`` names the properties of segments, which lie in the folder of meshes."""

    def check_writable(self) -> None:
        check_replaceable(store_at(self.folder), FILE_NAME, "volume")

    def check_current(self) -> None:
        """Raise an error if ``info`` names other meshes, or properties of segments that are not
        those of meshes."""
        document = meshed_volume(f"{self.folder}/{self.name}").document
        named, stated = document.get("mesh"), document.get(_PROPERTIES)
        is_other = named is not None and plain_name(str(named)) != plain_name(self.name)
        if is_other and not self.replaces:
            raise ExistsError(
                f'{self.folder}/{FILE_NAME}: names the meshes in {named!r}; existing="overwrite" '
                f"names {self.name!r} in its place"
            )
        has_others = stated is not None and not _are_of_meshes(document)
        if self.has_properties and has_others and not self.replaces:
            raise ExistsError(
                f"{self.folder}/{FILE_NAME}: names the properties of segments in {stated!r}; "
                'existing="overwrite" names those of the meshes instead'
            )

    def apply(self) -> None:
        update_info(self.folder, self._named)

    @property
    def names_places(self) -> bool:
        return True

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> MeshEdit:
        del listed
        return replace(self, name=placed_name(self.name, job))

    def listed_now(self) -> tuple[str | None, ...]:
        """Return the folder of the meshes that these replace."""
        named = named_meshes(self.folder, read_info(store_at(self.folder)))
        place = stated_path(self.folder, plain_name(self.name))
        return (named if named is not None and plain_name(named) == place else None,)

    def _named(self, document: dict[str, Any]) -> dict[str, Any]:
        """Name the meshes. Properties of the meshes that they replace are no longer named."""
        dropped = _PROPERTIES if _are_of_meshes(document) else None
        kept = {n: v for n, v in document.items() if n != dropped}
        own = {_PROPERTIES: f"{self.name}/{PROPERTIES_NAME}"} if self.has_properties else {}
        return {**kept, "mesh": self.name, **own}
