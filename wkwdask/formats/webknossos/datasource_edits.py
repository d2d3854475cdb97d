"""Edits of ``datasource-properties.json``, one field or one layer at a time.

Documents in, changed copies out; everything that an edit does not name is kept as it is. Opens nothing.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.errors import ExistsError
from wkwdask.formats.webknossos.datasource import FILE_NAME, check_layer_name, format_segment_id, largest_segment_id, layer_entry, mag_entries
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import nm_per_unit, unit_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox

    Document = dict[str, Any]


def with_scale(document: Document, factor: Sequence[float], unit: str) -> Document:
    """Set the size of a voxel of mag 1."""
    lengths = [float(length) for length in factor]
    if nm_per_unit(unit) is None:
        raise ValueError(f"unit must be a unit of length such as nanometer, micrometer or mm, got {unit!r}")
    if len(lengths) != 3 or not all(0 < length < float("inf") for length in lengths):
        raise ValueError(f"the voxel size is three positive numbers (x, y, z), got {factor!r}")
    before = document.get("scale")
    return {**document, "scale": {**(before if isinstance(before, dict) else {}), "factor": lengths, "unit": unit_name(unit)}}


def with_box(document: Document, layer: str, box: BoundingBox) -> Document:
    """Set where a layer has data [voxels of mag 1]."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    before = entry.get("boundingBox")
    entry["boundingBox"] = {**(before if isinstance(before, dict) else {}), **_box_entry(box)}
    return changed


def _box_entry(box: BoundingBox) -> dict[str, Any]:
    width, height, depth = box.size
    return {"topLeft": list(box.topleft), "width": width, "height": height, "depth": depth}


def with_largest_id(document: Document, layer: str, value: int | None) -> Document:
    """Set the largest id of a segmentation, or take the field away."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    if value is None:
        entry.pop("largestSegmentId", None)
    else:
        entry["largestSegmentId"] = format_segment_id(value)
    return changed


def with_entry(document: Document, entry: dict[str, Any]) -> Document:
    """Add a layer."""
    check_layer_name(entry["name"])
    layers = document.get("dataLayers") or []
    _check_free(layers, entry["name"])
    return {**document, "dataLayers": [*layers, entry]}


def without_layer(document: Document, layer: str) -> Document:
    """Take a layer off the list."""
    gone = layer_entry(document, layer)
    return {**document, "dataLayers": [entry for entry in document["dataLayers"] if entry is not gone]}


def with_new_name(document: Document, old: str, new: str, moved: Callable[[str], str]) -> Document:
    """Give a layer another name, wherever the document speaks of it."""
    check_layer_name(new)
    _check_free(document.get("dataLayers") or [], new)
    changed = with_paths(document, moved)
    layer_entry(changed, old)["name"] = new
    view = changed.get("defaultViewConfiguration")
    if isinstance(view, dict):
        _rename_in_view(view, old, new)
    return changed


def _rename_in_view(view: dict[str, Any], old: str, new: str) -> None:
    if isinstance(view.get("layers"), dict):
        view["layers"] = {new if name == old else name: value for name, value in view["layers"].items()}
    if isinstance(view.get("colorLayerOrder"), list):
        view["colorLayerOrder"] = [new if name == old else name for name in view["colorLayerOrder"]]
    if view.get("nativelyRenderedLayerName") == old:
        view["nativelyRenderedLayerName"] = new


def with_paths(document: Document, moved: Callable[[str], str]) -> Document:
    """Change the paths of mags and attachments."""
    changed = copy.deepcopy(document)
    for entry in changed.get("dataLayers") or []:
        for holder in path_holders(entry):
            holder["path"] = moved(holder["path"])
    return changed


def path_holders(entry: Any) -> Iterator[dict[str, Any]]:
    """Go through all parts of a layer's entry that hold a path."""
    if not isinstance(entry, dict):
        return
    attachments = entry.get("attachments")
    groups = [entry.get("mags"), entry.get("wkwResolutions"), *(attachments.values() if isinstance(attachments, dict) else ())]
    for group in groups:
        for item in group if isinstance(group, list) else [group]:
            if isinstance(item, dict) and isinstance(item.get("path"), str):
                yield item


def with_explicit_paths(document: Document, layer: str, paths: Mapping[Mag, str]) -> Document:
    """Say where mags of a layer are, in the current form, which has a place for that."""
    changed = copy.deepcopy(document)
    entry = layer_entry(changed, layer)
    if "mags" not in entry and "wkwResolutions" in entry:
        legacy = entry.pop("wkwResolutions")
        entry["mags"] = [{"mag": list(Mag.parse(item["resolution"]).factors), **_without(item, "resolution")} for item in legacy]
    for item in entry.get("mags", []):
        mag = Mag.parse(item["mag"])
        if mag in paths:
            item["path"] = paths[mag]
    return changed


def with_name(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the document of a dataset without layers that is like another one: its scale and whatever else is said of all layers."""
    changed = copy.deepcopy(document)
    identity = changed.get("id")
    changed["id"] = {**(identity if isinstance(identity, dict) else {"team": ""}), "name": name}
    changed["dataLayers"] = []
    return changed


def with_mags(document: dict[str, Any], layer: str, mags: Sequence[tuple[Mag, str, int]]) -> dict[str, Any]:
    """Add mags to a layer, or replace them; everything else is kept."""
    changed = copy.deepcopy(document)
    key, mag_key, entry = mag_entries(changed, layer)
    legacy = key == "wkwResolutions"
    known = {Mag.parse(item[mag_key]): item for item in entry.get(key, [])}
    for mag, path, file_len_vx in mags:
        item = dict(known.get(mag, {}))
        item[mag_key] = list(mag.factors)
        item["cubeLength"] = file_len_vx
        if not legacy:
            item["path"] = path
            item.setdefault("axisOrder", {"c": 0, "x": 1, "y": 2, "z": 3})
        known[mag] = item
    entry[key] = [known[mag] for mag in sorted(known, key=lambda mag: (mag.maximum, mag.factors))]
    return changed


def without_mags(document: dict[str, Any], layer: str, mags: Sequence[Mag], *, keep_layer: bool = True) -> dict[str, Any]:
    """Take mags off a layer; everything else is kept."""
    changed = copy.deepcopy(document)
    layers = changed.get("dataLayers", [])
    for entry in [entry for entry in layers if isinstance(entry, dict) and entry.get("name") == layer]:
        key, mag_key = ("mags", "mag") if "mags" in entry else ("wkwResolutions", "resolution")
        entry[key] = [item for item in entry.get(key, []) if Mag.parse(item[mag_key]) not in mags]
        if not entry[key] and not keep_layer:
            layers.remove(entry)
    return changed


class NewLayer(NamedTuple):
    """What a record says of the voxels of a layer."""

    category: str
    box: BoundingBox
    element_class: str
    num_channels: int


def with_layer(document: dict[str, Any], name: str, new: NewLayer, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Add a layer without mags, or set the box and type of one that is there; everything else is kept.

    Attributes go to a new layer; of one that is there only the largest id grows.
    """
    changed = copy.deepcopy(document)
    layers = changed.setdefault("dataLayers", [])
    entry = next((entry for entry in layers if isinstance(entry, dict) and entry.get("name") == name), None)
    if entry is None:
        entry = {"name": name, "category": new.category, **(attributes or {})}
        layers.append(entry)
    largest = [known for known in (largest_segment_id(entry), largest_segment_id(attributes or {})) if known is not None]
    if largest:
        entry["largestSegmentId"] = format_segment_id(max(largest))
    entry["boundingBox"] = _box_entry(new.box)
    entry["elementClass"] = new.element_class
    entry.setdefault("dataFormat", "wkw")
    entry["numChannels"] = new.num_channels
    if "wkwResolutions" not in entry:
        entry.setdefault("mags", [])
    return changed


def with_fields(document: dict[str, Any], layer: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Set what a layer says about itself; everything else is kept."""
    changed = copy.deepcopy(document)
    mag_entries(changed, layer)[2].update(fields)
    return changed


def with_view_configuration(document: dict[str, Any], layer: str | None, values: dict[str, Any]) -> dict[str, Any]:
    """Set how WEBKNOSSOS shows a layer by default; everything else is kept."""
    changed = copy.deepcopy(document)
    entry = changed if layer is None else layer_entry(changed, layer)
    before = entry.get("defaultViewConfiguration")
    after = {**(before if isinstance(before, dict) else {}), **values}
    entry["defaultViewConfiguration"] = {key: value for key, value in after.items() if key not in values or value is not None}
    if not entry["defaultViewConfiguration"]:
        del entry["defaultViewConfiguration"]
    return changed


def _without(item: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != key}


def _check_free(layers: Sequence[Any], name: str) -> None:
    if any(isinstance(entry, dict) and entry.get("name") == name for entry in layers):
        raise ExistsError(f"{FILE_NAME} has a layer {name!r} already")
