"""Edits of a dataset's JSON that a job applies once its mags are published."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from wkwdask.errors import MissingError
from wkwdask.formats.edits import DocumentEdit, check_listed
from wkwdask.formats.mesh_folders import warn_of_meshes
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    MagFields,
    NewLayer,
    format_datasource,
    largest_segment_id,
    layer_entry,
    new_document,
    parse_datasource,
    with_explicit_paths,
    with_largest_id,
    with_layer,
    with_mags,
    without_mags,
)
from wkwdask.formats.webknossos.document import (
    check_datasource_writable,
    folders_of_mags,
    read_datasource,
    update_datasource,
)
from wkwdask.formats.webknossos.mesh_attachment import attached_meshes
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.coordinates import same_lengths
from wkwdask.model.placement import job_in, placed_name
from wkwdask.store.paths import basename

if TYPE_CHECKING:
    from wkwdask.formats.webknossos.datasource import DataSource
    from wkwdask.model.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class LayerEdit(DocumentEdit):
    """Edit that lists new mags of a layer, and the layer itself if it is new."""

    kind: ClassVar[str] = "layer"
    folder_names: ClassVar[tuple[str, ...]] = ("dataset_folder",)
    dataset_folder: str
    layer: str
    mags: tuple[tuple[Mag, str, MagFields], ...]
    """Mag, path relative to the dataset, and other fields of its entry."""
    new_layer: NewLayer | None = None
    """Set if the layer is new or its box changes."""
    attributes: JsonObject = field(default_factory=dict)
    """Other fields of a new layer."""
    voxel_size_nm: tuple[float, float, float] | None = None
    """Edge lengths of a mag-1 voxel [nm], for a JSON that does not exist yet."""
    is_listed: bool = False
    """Whether the JSON listed the layer when the job was planned."""
    maxima: tuple[int | None, ...] = ()
    """Largest value of each mag, None if unknown; empty if all are unknown."""
    is_new_content: bool = False
    """Whether the finest mag replaces one with other voxels: then a larger id in the JSON belongs
    to voxels that no longer exist."""
    data_format: str = "wkw"
    """Storage format of a new layer."""
    listed: tuple[str | None, ...] | None = None
    """Folder of each mag in the JSON that the job was planned on, None where that does not
    matter."""

    def apply(self) -> None:
        def change(document: JsonObject) -> JsonObject:
            if self.new_layer is not None:
                new = self.new_layer._replace(box=self._grown(self.new_layer.box, document))
                document = with_layer(document, self.layer, new, self.attributes, self.data_format)
            document = with_mags(document, self.layer, self.mags)
            placed = {mag: path for mag, path, _ in self.mags if job_in(path)}
            if placed:  # the legacy form of the list has no paths
                document = with_explicit_paths(document, self.layer, placed)
            return self._with_largest(document)

        new = (
            None
            if self.voxel_size_nm is None
            else new_document(basename(self.dataset_folder), self.voxel_size_nm)
        )
        update_datasource(self.dataset_folder, change, new, allow_external=True)

    def joined(self, other: LayerEdit) -> LayerEdit:
        return replace(self, mags=(*self.mags, *other.mags))

    @property
    def names_places(self) -> bool:
        return True

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> LayerEdit:
        mags = [
            (mag, placed_name(path.rstrip("/"), job), fields) for mag, path, fields in self.mags
        ]
        return replace(self, mags=tuple(mags), listed=listed)

    def listed_now(self) -> tuple[str | None, ...]:
        return self._listed_in(read_datasource(self.dataset_folder))

    def _listed_in(self, source: DataSource | None) -> tuple[str | None, ...]:
        record = None if source is None else source.layer(self.layer)
        folder = f"{self.dataset_folder}/{self.layer}"
        known = {} if record is None else folders_of_mags(folder, self.dataset_folder, record)
        return tuple(known.get(mag) for mag, _, _ in self.mags)

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> LayerEdit:
        """Return the edit that also sets the largest id; warn if meshes are those of voxels that
        are replaced."""
        source = read_datasource(self.dataset_folder) if is_new_content else None
        if source is not None and source.layer(self.layer) is not None:
            entry = layer_entry(source.document, self.layer)
            warn_of_meshes(*attached_meshes(self.dataset_folder, entry))
        return replace(self, maxima=maxima, is_new_content=is_new_content)

    def _with_largest(self, document: JsonObject) -> JsonObject:
        """Set the largest id of a segmentation if the written voxels determine it."""
        record = parse_datasource(format_datasource(document), self.dataset_folder).layer(
            self.layer
        )
        known = {
            mag: value
            for (mag, _, _), value in zip(self.mags, self.maxima, strict=False)
            if value is not None
        }
        if record is None or record.category != "segmentation" or not known:
            return document
        # The finest mag determines the id. A coarser one can only raise it, because labels may
        # vanish in downsampling.
        stated, of_finest, largest = (
            largest_segment_id(record.attributes),
            known.get(record.mags[0].mag),
            max(known.values()),
        )
        if of_finest is not None and (self.is_new_content if stated is not None else of_finest > 0):
            return with_largest_id(document, self.layer, max(0, of_finest))
        return (
            document
            if stated is None or stated >= largest
            else with_largest_id(document, self.layer, largest)
        )

    def check_writable(self) -> None:
        check_datasource_writable(self.dataset_folder)

    def check_current(self) -> None:
        """Raise if the JSON no longer lists the layer, or if another job has created the dataset
        with another voxel size."""
        source = (
            read_datasource(self.dataset_folder)
            if self.is_listed or self.voxel_size_nm is not None or self.listed is not None
            else None
        )
        check_listed(self.listed, self._listed_in(source))
        if self.is_listed and (source is None or source.layer(self.layer) is None):
            raise MissingError(
                f"{self.dataset_folder}/{FILE_NAME}: layer {self.layer!r} was renamed or removed "
                "since planning; use its current name"
            )
        if self.voxel_size_nm is None or source is None or source.voxel_size_nm is None:
            return
        if not same_lengths(self.voxel_size_nm, source.voxel_size_nm):
            raise ValueError(
                f"{self.dataset_folder}/{FILE_NAME}: the voxel size is {source.voxel_size_nm} nm, "
                f"not {self.voxel_size_nm} nm: "
                "another job created the dataset with voxels of another size than those of layer "
                f"{self.layer}"
            )

    def _grown(self, box: BoundingBox, document: JsonObject) -> BoundingBox:
        """Return the new box, united with the current box unless the mags of the layer are those
        of this edit alone; those published during the job count too."""
        known = parse_datasource(format_datasource(document), self.dataset_folder).layer(self.layer)
        ours = {mag for mag, _, _ in self.mags}
        if known is None or (known.mags and all(record.mag in ours for record in known.mags)):
            return box
        return box.union(known.bounding_box)

    def to_json(self) -> JsonObject:
        new_layer = None
        if self.new_layer is not None:
            category, box, element_class, num_channels = self.new_layer
            new_layer = [category, [*box.topleft, *box.size], element_class, num_channels]
        mags = [[list(mag.factors), path, fields] for mag, path, fields in self.mags]
        return {**DocumentEdit.to_json(self), "mags": mags, "new_layer": new_layer}

    @classmethod
    def from_json(cls, value: JsonObject) -> LayerEdit:
        new_layer = None
        if value["new_layer"] is not None:
            category, numbers, element_class, num_channels = value["new_layer"]
            new_layer = NewLayer(category, BoundingBox.parse(numbers), element_class, num_channels)
        mags = tuple((Mag.parse(mag), path, fields) for mag, path, fields in value["mags"])
        size = value.get("voxel_size_nm")
        voxel_size = None if size is None else (size[0], size[1], size[2])
        return cls(
            value["dataset_folder"],
            value["layer"],
            mags,
            new_layer,
            value.get("attributes", {}),
            voxel_size,
            value.get("is_listed", False),
            tuple(value.get("maxima", ())),
            value.get("is_new_content", False),
            value.get("data_format", "wkw"),
        )


@dataclass(frozen=True, slots=True)
class LargestIdEdit(DocumentEdit):
    """Edit that raises the largest id in the JSON after a part of a segmentation was written; a
    JSON without a largest id is not changed."""

    kind: ClassVar[str] = "largestSegmentId"
    folder_names: ClassVar[tuple[str, ...]] = ("dataset_folder",)
    dataset_folder: str
    layer: str
    value: int = 0
    """Largest id that was written."""

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> LargestIdEdit:
        del is_new_content
        return replace(self, value=max((value for value in maxima if value is not None), default=0))

    def apply(self) -> None:
        source = read_datasource(self.dataset_folder)
        before = (
            None
            if source is None or source.layer(self.layer) is None
            else self._stated(source.document)
        )
        if before is not None and before < self.value:
            update_datasource(self.dataset_folder, self._with_largest, allow_external=True)

    def _with_largest(self, document: JsonObject) -> JsonObject:
        return with_largest_id(document, self.layer, max(self.value, self._stated(document) or 0))

    def _stated(self, document: JsonObject) -> int | None:
        return largest_segment_id(layer_entry(document, self.layer))


@dataclass(frozen=True, slots=True)
class MagRemoval(DocumentEdit):
    """Edit that removes mags from the JSON."""

    kind: ClassVar[str] = "removal of mags"
    folder_names: ClassVar[tuple[str, ...]] = ("dataset_folder",)
    dataset_folder: str
    layer: str
    """Name of the layer; it is removed with its last mag."""
    mags: tuple[Mag, ...]

    @property
    def names_places(self) -> bool:
        return True

    def apply(self) -> None:
        update_datasource(
            self.dataset_folder,
            lambda document: without_mags(document, self.layer, self.mags, keep_layer=False),
            allow_external=True,
        )

    def check_writable(self) -> None:
        check_datasource_writable(self.dataset_folder)

    def to_json(self) -> JsonObject:
        return {**DocumentEdit.to_json(self), "mags": [list(mag.factors) for mag in self.mags]}

    @classmethod
    def from_json(cls, value: JsonObject) -> MagRemoval:
        return super(MagRemoval, cls).from_json(
            {**value, "mags": tuple(map(Mag.parse, value["mags"]))}
        )
