"""First state of Neuroglancer for some layers, and the page that opens it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths
    from wkwdask.viewer.layers import ShownLayer

_PIXELS = 350  # edge of a panel that shows a whole section
# of the coarsest mag: more would load a whole section of an array that has no coarser mags
_MOST_VOXELS_PER_PIXEL = 4


def make_state(
    layers: Sequence[ShownLayer], position: Vec3 | None, shader: str | None
) -> JsonObject:
    """Return a state whose sources are the numbers of layers, with those of their meshes behind all
    layers: segmentations over images, around the middle of the first layer."""
    size = next((layer.voxel_size_nm for layer in layers if layer.voxel_size_nm is not None), None)
    box = layers[0].box
    smallest = min(size or (1.0,))
    extent = max(n * s for n, s in zip(box.size[:2], size or (1.0, 1.0), strict=False)) / smallest
    depth = max(n * s for n, s in zip(box.size, size or (1.0, 1.0, 1.0), strict=True)) / smallest
    most = _MOST_VOXELS_PER_PIXEL * max(layers[0].coarsest.box.mag.factors)
    center = [t + n // 2 + 0.5 for t, n in zip(box.topleft, box.size, strict=True)]
    entries = _entries(layers, shader)
    return {
        "dimensions": _dimensions(size),
        "position": center if position is None else [n + 0.5 for n in position],
        "crossSectionScale": min(max(extent / _PIXELS, 0.05), most),
        "projectionScale": min(max(depth * 1.5, 1.0), most * _PIXELS),
        "layers": entries,
        "layout": "4panel",
        "selectedLayer": {"layer": entries[0]["name"], "visible": False},
    }


def _dimensions(size: Lengths | None) -> JsonObject:
    return {axis: [1, ""] if size is None else [size[n] / 1e9, "m"] for n, axis in enumerate("xyz")}


def _entries(layers: Sequence[ShownLayer], shader: str | None) -> list[JsonObject]:
    """Return the layers of a state, with distinct names."""
    order = sorted(range(len(layers)), key=lambda n: layers[n].is_segmentation)
    with_meshes = [n for n, layer in enumerate(layers) if layer.meshes is not None]
    meshes = {n: len(layers) + k for k, n in enumerate(with_meshes)}
    entries = [
        {"source": [n, meshes[n]] if n in meshes else [n], **_layer(layers[n], shader)}
        for n in order
    ]
    for name in {entry["name"] for entry in entries}:
        # several datasets may have layers of one name
        same = [entry for entry in entries if entry["name"] == name]
        for n, entry in enumerate(same[1:], 2):
            entry["name"] = f"{name} {n}"
    return entries


def _layer(layer: ShownLayer, shader: str | None) -> JsonObject:
    entry: JsonObject = {
        "type": "segmentation" if layer.is_segmentation else "image",
        "name": layer.name,
    }
    if layer.is_segmentation:
        return {**entry, "selectedAlpha": 0.4, "notSelectedAlpha": 0.15, "hideSegmentZero": True}
    if layer.is_rgb:
        return {**entry, "shader": shader or _RGB_SHADER}
    contrast = layer.contrast()
    if contrast is not None:
        is_integer = layer.coarsest.dtype.kind in "iu"
        low, high = (int(n) if is_integer else n for n in contrast)
        entry["shaderControls"] = {
            "normalized": {"range": [low, max(high, low + 1) if is_integer else high]}
        }
    return {**entry, "shader": shader or _SHADER}


_SHADER = "#uicontrol invlerp normalized\nvoid main() {\n  emitGrayscale(normalized());\n}\n"
_RGB_SHADER = (
    f"void main() {{\n  "
    f"emitRGB(vec3({', '.join(f'toNormalized(getDataValue({n}))' for n in range(3))}));\n}}\n"
)


def format_page(state: JsonObject, layers: Sequence[ShownLayer]) -> bytes:
    """Return a page that opens the client with a state. The page knows its own URL, which the
    server does not know behind a proxy."""
    schemes = [layer.scheme for layer in layers] + ["precomputed"] * len(layers)
    entries = [
        {**entry, "source": [f"{schemes[n]}://{_DATA}/{n}/" for n in entry["source"]]}
        for entry in state["layers"]
    ]
    # no text may end the script
    text = json.dumps({**state, "layers": entries}).replace("<", "\\u003c")
    return _PAGE.format(state=text, data=_DATA).encode()


_DATA = "DATA"
_PAGE = """<!DOCTYPE html>
<meta charset="utf-8"><title>wkwdask view</title>
<script>
const state = {state};
const data = new URL("data", location.href).href;
for (const layer of state.layers) layer.source = layer.source.map((url) => url.replace("{data}", data));
location.replace("v/0/#!" + encodeURIComponent(JSON.stringify(state)));
</script>
"""  # noqa: E501
