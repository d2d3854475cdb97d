"""Meshes as attachments of a layer, as webknossos-libs 4.3 reads and writes them: folders of
Neuroglancer's format that the layer lists in ``datasource-properties.json``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import ExistsError, MissingError
from wkwdask.formats.edits import DocumentEdit
from wkwdask.formats.webknossos.datasource import FILE_NAME, layer_entry, with_fields
from wkwdask.formats.webknossos.document import (
    check_datasource_writable,
    read_datasource,
    update_datasource,
)
from wkwdask.formats.webknossos.layer_metadata import attachments_of
from wkwdask.model.placement import placed_name, plain_name
from wkwdask.store.paths import is_remote, stated_path

if TYPE_CHECKING:
    from wkwdask.formats.webknossos.layer_metadata import Attachment
    from wkwdask.model.json_text import JsonObject

DATA_FORMAT = "neuroglancerPrecomputed"
_KIND = "meshes"


def attached_meshes(dataset_folder: str, entry: JsonObject) -> list[str]:
    """Return the folders of meshes in Neuroglancer's format that a layer lists; a remote document
    must not name a local folder."""
    paths = [stated_path(dataset_folder, each.path) for each in _meshes_of(entry)]
    return [path for path in paths if is_remote(path) or not is_remote(dataset_folder)]


def _meshes_of(entry: JsonObject) -> list[Attachment]:
    return [
        each
        for each in attachments_of(entry)
        if each.kind == _KIND and each.data_format == DATA_FORMAT
    ]


@dataclass(frozen=True, slots=True)
class MeshAttachment(DocumentEdit):
    """Entry of a layer that names a folder of meshes."""

    kind: ClassVar[str] = "meshes of a layer"
    folder_names: ClassVar[tuple[str, ...]] = ("dataset_folder",)
    dataset_folder: str
    layer: str
    name: str
    """Name of the attachment."""
    path: str
    """Path of the folder, relative to the dataset."""
    replaces: bool = False
    """Whether another attachment of this name is replaced."""

    def check_writable(self) -> None:
        check_datasource_writable(self.dataset_folder)

    def check_current(self) -> None:
        """Raise an error if the layer is gone, or lists other meshes of this name."""
        source = read_datasource(self.dataset_folder)
        document = f"{self.dataset_folder}/{FILE_NAME}"
        if source is None or source.layer(self.layer) is None:
            raise MissingError(f"{document}: lists no layer {self.layer!r}")
        for each in attachments_of(layer_entry(source.document, self.layer)):
            is_own = plain_name(self._folder_of(each.path)) == plain_name(
                self._folder_of(self.path)
            )
            if (each.kind, each.name) == (_KIND, self.name) and not is_own and not self.replaces:
                raise ExistsError(
                    f"{document}: layer {self.layer!r} lists the meshes {self.name!r} in "
                    f'{each.path}; existing="overwrite" names {self.path} in their place'
                )

    def apply(self) -> None:
        update_datasource(self.dataset_folder, self._listed, allow_external=True)

    def _listed(self, document: JsonObject) -> JsonObject:
        groups = layer_entry(document, self.layer).get("attachments")
        groups = groups if isinstance(groups, dict) else {}
        stated = groups.get(_KIND)
        others = [each for each in stated if each.get("name") != self.name] if stated else []
        own: dict[str, Any] = {"name": self.name, "path": self.path, "dataFormat": DATA_FORMAT}
        return with_fields(document, self.layer, {"attachments": {**groups, _KIND: [*others, own]}})

    def _folder_of(self, path: str) -> str:
        return stated_path(self.dataset_folder, path)

    @property
    def names_places(self) -> bool:
        return True

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> MeshAttachment:
        del listed
        return replace(self, path=placed_name(self.path, job))

    def listed_now(self) -> tuple[str | None, ...]:
        """Return the folder of the meshes that these replace."""
        source = read_datasource(self.dataset_folder)
        entry = {} if source is None else layer_entry(source.document, self.layer)
        place = self._folder_of(plain_name(self.path))
        known = (self._folder_of(each.path) for each in _meshes_of(entry))
        return (next((folder for folder in known if plain_name(folder) == place), None),)
