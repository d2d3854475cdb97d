"""Repair ``datasource-properties.json`` from the existing folders and files."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from wkwdask.formats.leftovers import quarantine, remove_quarantined_temporaries
from wkwdask.formats.repair import EDIT_JSON, Action, DocumentRepair, RepairOptions, Unrepaired
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    NewLayer,
    format_datasource,
    new_document,
    valid_parts,
    with_box,
    with_fields,
    with_largest_id,
    with_layer,
    with_mags,
    without_box_and_mags,
    without_mags,
)
from wkwdask.formats.webknossos.document import update_datasource
from wkwdask.formats.webknossos.layer_metadata import type_text
from wkwdask.geometry.mag import Mag
from wkwdask.model.voxel_type import element_class, guess_category
from wkwdask.store.documents import read_object, update_document
from wkwdask.store.paths import basename, is_bucket, relpath
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.formats.webknossos.inspection import LayerScope, Scope
    from wkwdask.model.faults import Fault, Findings
    from wkwdask.model.json_text import JsonObject


class JsonRepair(DocumentRepair):
    """Planned changes of the JSON of a dataset."""

    def __init__(
        self, scope: Scope, findings: Mapping[str, Findings], options: RepairOptions
    ) -> None:
        super().__init__()
        self._scope = scope
        self._findings = findings
        self._options = options
        self._changes: list[Callable[[JsonObject], JsonObject]] = []
        self._new: JsonObject | None = None

    def plan(self, faults: Sequence[Fault]) -> set[str]:
        """Plan actions for the faults of the JSON, and return the paths of all faults that are
        settled."""
        if self._scope.dataset_folder is None:
            return set()
        handled: set[str] = set()
        for fault in faults:
            if fault.kind in ("json.missing", "json.broken") and self._plan_new(fault):
                return {
                    self._scope.json_path,
                    *(
                        other.path
                        for other in faults
                        if other.kind in ("layer.unlisted", "mag.unlisted")
                    ),
                }
        for layer in self._scope.layers:
            for fault in dict.fromkeys(faults):
                # layers that list the same missing mag have equal faults
                if self._concerns(fault, layer):
                    self._plan_fault(layer, fault, handled)
        return handled

    def _concerns(self, fault: Fault, layer: LayerScope) -> bool:
        if fault.kind.startswith("json."):
            return fault.found.startswith((f"layer {layer.name}:", f"layer {layer.name},"))
        if fault.kind == "mag.missing":  # its folder can be that of another layer
            return fault in layer.missing_mags
        return fault.path == layer.folder or fault.path.startswith(f"{layer.folder}/")

    def _plan_fault(self, layer: LayerScope, fault: Fault, handled: set[str]) -> None:
        plans = {
            "json.element_class": self._plan_type,
            "json.num_channels": self._plan_type,
            "json.cube_length": self._plan_lengths,
            "json.largest_id": self._plan_largest,
            "mag.unlisted": self._plan_mag,
            "layer.unlisted": self._plan_layer,
        }
        if fault.kind in plans:
            handled.add(fault.path)
            plans[fault.kind](layer, fault)
        elif fault.kind == "mag.missing" and self._options.drop_missing:
            handled.add(fault.path)
            mag = Mag.parse(fault.expected.removeprefix("mag "))
            self._change(
                fault,
                f"mag {mag.name} is removed from layer {layer.name}",
                lambda document: without_mags(document, layer.name, [mag]),
            )
        elif fault.kind == "json.box_smaller" and self._options.grow_box:
            handled.update(
                {fault.path},
                {
                    f"{scope.folder}/z{z}/y{y}/x{x}.wkw"
                    for scope in layer.wkw_mags
                    for x, y, z in scope.listing.shards.tolist()
                },
            )
            self._plan_box(layer, fault)
        elif fault.kind == "json.box_smaller":
            handled.add(fault.path)
            self.left.append(Unrepaired(fault, "grow_box=True makes the box larger"))

    def _change(self, fault: Fault, how: str, change: Callable[[JsonObject], JsonObject]) -> None:
        self._changes.append(change)
        self.actions.append(
            Action(EDIT_JSON, self._scope.json_path, f"{fault.kind} ({fault.found})", how)
        )

    def _plan_type(self, layer: LayerScope, fault: Fault) -> None:
        types = {scope.voxel_type for scope in layer.mags if scope.voxel_type is not None}
        inspected = {scope.mag for scope in layer.mags}
        if layer.record is not None and not {entry.mag for entry in layer.record.mags} <= inspected:
            self.left.append(Unrepaired(fault, "not all mags that the JSON lists were checked"))
            return
        if len(types) != 1:
            self.left.append(Unrepaired(fault, "the mags differ from each other"))
            return
        ((dtype, num_channels),) = types
        fields = {"elementClass": element_class(dtype, num_channels), "numChannels": num_channels}
        self._change(
            fault,
            "from the types of the mags",
            lambda document: with_fields(document, layer.name, fields),
        )

    def _plan_lengths(self, layer: LayerScope, fault: Fault) -> None:
        paths = (
            {} if layer.record is None else {entry.mag: entry.path for entry in layer.record.mags}
        )
        known = [(scope, scope.header) for scope in layer.wkw_mags if scope.header is not None]
        mags = [
            (scope.mag, paths.get(scope.mag) or self._relative(scope.folder), header.file_len_vx)
            for scope, header in known
        ]
        self._change(
            fault,
            "from the headers of the mags",
            lambda document: with_mags(document, layer.name, mags),
        )

    def _plan_largest(self, layer: LayerScope, fault: Fault) -> None:
        self._change(
            fault,
            f"becomes {fault.expected}",
            lambda document: with_largest_id(document, layer.name, int(fault.expected)),
        )

    def _plan_mag(self, layer: LayerScope, fault: Fault) -> None:
        scope = next((scope for scope in layer.wkw_mags if scope.folder == fault.path), None)
        if scope is None or scope.header is None or layer.record is None:
            self.left.append(Unrepaired(fault, "no valid header in header.wkw or in its files"))
            return
        if (
            element_class(scope.header.dtype, scope.header.num_channels)
            != layer.record.element_class
        ):
            listed = type_text(layer.record.element_class, layer.record.num_channels)
            self.left.append(
                Unrepaired(fault, f"its voxels are {scope.header.dtype.name}, the layer's {listed}")
            )
            return
        entry = (scope.mag, self._relative(scope.folder), scope.header.file_len_vx)
        self._change(
            fault,
            f"mag {scope.mag.name} is added",
            lambda document: with_mags(document, layer.name, [entry]),
        )

    def _plan_layer(self, layer: LayerScope, fault: Fault) -> None:
        if not any(scope.header is not None for scope in layer.wkw_mags):
            self.left.append(Unrepaired(fault, "no valid header in header.wkw or in its files"))
            return
        self._change(
            fault, "the layer is added", lambda document: self._with_layer(document, layer)
        )

    def _plan_box(self, layer: LayerScope, fault: Fault) -> None:
        outside = layer.nonzero_outside(self._findings)
        if outside is None or layer.record is None:
            return
        box = layer.record.bounding_box.union(outside)
        self._change(
            fault, f"the box becomes {box}", lambda document: with_box(document, layer.name, box)
        )

    def _plan_new(self, fault: Fault) -> bool:
        """Plan a new document: valid parts of the old one, and layers from their files. Return
        whether that settles all faults of the JSON."""
        head, kept, others = valid_parts(
            read_object(store_at(str(self._scope.dataset_folder)), FILE_NAME)
        )
        size = self._options.voxel_size_nm
        if is_bucket(self._scope.json_path):
            reason = "in a bucket, no layers are looked for: restore it from a backup"
            self.left.append(Unrepaired(fault, reason))
            return True
        if "scale" not in head and size is None:
            self.left.append(
                Unrepaired(fault, "the voxel size is in no file: pass voxel_size= in nanometers")
            )
            return True
        # Valid fields and layers of the old document stay. A broken layer is restored from its
        # files, and keeps its other fields. A broken entry without files stays unchanged, because
        # nothing better is known.
        document = {
            **new_document(basename(self._scope.path), size or (1.0, 1.0, 1.0)),
            **head,
            "dataLayers": kept,
        }
        known = {entry["name"] for entry in kept}
        restored = [
            layer
            for layer in self._scope.layers
            if layer.name not in known and any(scope.header is not None for scope in layer.wkw_mags)
        ]
        before = {
            entry["name"]: entry
            for entry in others
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
        lost = [
            entry
            for entry in others
            if not any(before.get(layer.name) is entry for layer in restored)
        ]
        if others and not restored and "scale" in head:
            self.left.append(
                Unrepaired(
                    fault, "no files of the layer to restore it from; its record stays unchanged"
                )
            )
            return False
        for layer in restored:
            document = self._with_layer(
                document,
                layer,
                without_box_and_mags(before[layer.name]) if layer.name in before else None,
            )
        document["dataLayers"] = [*document["dataLayers"], *lost]
        self._new = document
        how = (
            f"rewritten with layers {', '.join(layer.name for layer in restored)} from their files"
            if restored
            else "rewritten"
        )
        what = f"; layers {', '.join(sorted(known))} unchanged" if known else ""
        what += "; invalid entries without files are kept" if lost else ""
        self.actions.append(
            Action(EDIT_JSON, self._scope.json_path, f"{fault.kind} ({fault.found})", how + what)
        )
        return True

    def _with_layer(
        self, document: JsonObject, layer: LayerScope, before: JsonObject | None = None
    ) -> JsonObject:
        mags = [scope for scope in layer.wkw_mags if scope.header is not None]
        header = mags[0].header
        if header is None:
            return document
        elements, category = (
            element_class(header.dtype, header.num_channels),
            guess_category(header.dtype, header.num_channels),
        )
        if before is not None:
            document = {
                **document,
                "dataLayers": [*document["dataLayers"], {"category": category, **before}],
            }
        document = with_layer(
            document,
            layer.name,
            NewLayer(category, layer.box_from_files(self._findings), elements, header.num_channels),
        )
        entries = [
            (scope.mag, self._relative(scope.folder), scope.header.file_len_vx)
            for scope in mags
            if scope.header is not None
        ]
        return with_mags(document, layer.name, entries)

    def _relative(self, folder: str) -> str:
        return f"./{relpath(folder, self._scope.dataset_folder or '')}"

    def _with_new(self, damaged: bytes | None) -> bytes:
        """Return the new document, after the damaged one was set aside."""
        path, folder = self._scope.json_path, f"{self._scope.dataset_folder}/."
        if store_at(path).is_taken():
            remove_quarantined_temporaries(folder)
            quarantine(path, folder, basename(path), "cannot be read")
        return format_datasource(self._new or {}).encode()

    def run(self) -> None:
        dataset = self._scope.dataset_folder
        if dataset is None:
            return
        if self._new is not None:
            update_document(store_at(dataset), FILE_NAME, self._with_new, "repair")
        if self._changes:
            update_datasource(
                dataset,
                lambda document: reduce(
                    lambda changed, change: change(changed), self._changes, document
                ),
                allow_external=True,
            )
