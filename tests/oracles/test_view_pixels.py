"""The pixels of Neuroglancer's canvas are the voxels that ``wkwdask.read`` reads, however ``wkwdask
view`` serves them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import partial
from urllib.parse import quote, unquote

import numpy as np
import pytest
from oracles.neuroglancer_client import missing
from support.browser_page import open_viewer

import wkwdask
from wkwdask.geometry.mag import Mag

pytestmark = [
    pytest.mark.needs("neuroglancer"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
SHAPE = (40, 32, 24)
TOPLEFT = (101, 35, 17)
VOXEL_SIZE = (11.0, 11.0, 22.0)
PIXELS = (4, 4, 8)  # of a voxel of mag 1; half a voxel too far is seen
# Of a pixel: no center of a pixel lies on the border of two voxels, be the length of the panel even
# or odd, which depends on the fonts of the machine.
SHIFT = 0.25
SECONDS = 20
# The client writes its own state into the address a moment after each change, and so may write over
# a state that was just asked for.
AGAIN = 5
PLACED = {"offset": TOPLEFT, "voxel_size": VOXEL_SIZE}
# the client looks for such files in each folder
HARMLESS = r"GPU stall|WebGL|404 .*/(attributes\.json|\.zarray)$"
MARGIN = 8  # pixels around the voxels
PLAIN = {"crossSectionScale": 1 / PIXELS[0], "crossSectionBackgroundColor": "#000000"}
PLAIN |= dict.fromkeys(("showAxisLines", "showScaleBar", "showDefaultAnnotations"), False)
SOURCES = {  # how each is served, its mag, and its first voxel of mag 1
    "ds/image/1": ("zarr3", "1", TOPLEFT),
    "ds/pyramid/2-2-1": ("zarr3", "2-2-1", (100, 34, 17)),
    "ds/raw": ("zarr3", "1", TOPLEFT),
    "ds/labels": ("zarr3", "1", TOPLEFT),
    "ds/float64": ("decoded", "1", TOPLEFT),
    "precomputed": ("precomputed", "1", TOPLEFT),
    "gzip": ("precomputed", "1", TOPLEFT),
    "sharded": ("precomputed", "1", TOPLEFT),
    "v.n5/em": ("n5", "1", (0, 0, 0)),
    "v.n5/placed": ("decoded", "1", TOPLEFT),
    "v2.zarr": ("zarr2", "1", TOPLEFT),
    "v3.zarr": ("zarr3", "1", TOPLEFT),
    "spliced.ome.zarr": ("zarr3", "1", TOPLEFT),
}
PANELS = """[...document.querySelectorAll('.neuroglancer-rendered-data-panel')].map(panel => {
  const place = panel.getBoundingClientRect();
  return [place.left + panel.clientLeft, place.top + panel.clientTop, panel.clientWidth, panel.clientHeight].map(Math.round);
})"""  # noqa: E501
RANDOM = np.random.default_rng(5)


def _image(dtype=np.uint8):
    return RANDOM.integers(1, 255, SHAPE).astype(dtype)


def _labels(dtype=np.uint64):
    """Make cubes of 40 labels; some differ in their upper bits only."""
    ids = np.append(
        RANDOM.integers(1, 1 << 60, 20, np.uint64),
        RANDOM.integers(1, 1 << 28, 20, np.uint64) << np.uint64(32) | np.uint64(7),
    ).astype(dtype)
    return np.kron(RANDOM.choice(ids, (10, 8, 6)), np.ones((4, 4, 4), dtype))


def _wkw(voxels, url, **options):
    wkwdask.to_wkw(voxels, url / "1", offset=TOPLEFT, block_len=8, file_len=2, **options)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Folders of volumes: WKW below ``ds``."""
    root = tmp_path_factory.mktemp("pixels")
    folder = root / "ds"
    wkwdask.create_dataset(folder, voxel_size=VOXEL_SIZE)
    _wkw(_image(), folder / "image")
    _wkw(_image(), folder / "pyramid")
    wkwdask.build_pyramid(folder, "pyramid", mags=["2-2-1"])
    _wkw(_image(np.uint16) * 257, folder / "raw", compression="raw")
    _wkw(_image(np.float64), folder / "float64")
    _wkw(_labels(), folder / "labels")
    wkwdask.to_precomputed(
        _image(),
        root / "precomputed",
        **PLACED,
        chunk_shape=(16, 16, 16),
        shard_shape=False,
        compression="raw",
    )
    wkwdask.to_precomputed(
        _image(np.float32),
        root / "gzip",
        **PLACED,
        chunk_shape=(16, 16, 16),
        shard_shape=False,
        compression="gzip",
    )
    wkwdask.to_precomputed(
        _labels(),
        root / "sharded",
        **PLACED,
        chunk_shape=(16, 16, 16),
        encoding="compressed_segmentation",
    )
    wkwdask.to_n5(
        _image(), root / "v.n5" / "em" / "s0", voxel_size=VOXEL_SIZE, chunk_shape=(16, 16, 16)
    )
    wkwdask.to_n5(_labels(), root / "v.n5" / "placed" / "s0", **PLACED, chunk_shape=(16, 16, 16))
    wkwdask.to_zarr(_image(), root / "v2.zarr", **PLACED, ngff="0.4", chunk_shape=(16, 16, 16))
    wkwdask.to_zarr(_labels(), root / "v3.zarr", **PLACED, chunk_shape=(16, 16, 16))
    wkwdask.convert(folder / "image", root / "spliced.ome.zarr")
    return root


async def _difference(page, state, expect):
    """Return the difference between the panel and what it should show, as soon as there is none;
    ``expect`` draws a panel of some size."""
    found, end, visited = 255, time.monotonic() + SECONDS, 0.0
    while found > 1 and (now := time.monotonic()) < end:
        if now > visited + AGAIN:  # which does not load the page again
            base = (await page.evaluate("location.href")).partition("#")[0]
            await page.visit(f"{base}#!{quote(json.dumps(state))}")
            visited = now
        picture = await page.picture(lambda _: True)
        for left, top, width, height in await page.evaluate(PANELS):
            expected, part = expect((width, height))
            found = np.abs(
                picture[top : top + height, left : left + width][part].astype(int) - expected[part]
            ).max()
    return found


@pytest.fixture(scope="module")
def viewer(volumes):
    """Yield the page with all volumes, their first state, the names of those that are decoded, and
    the function that runs coroutines."""
    with asyncio.Runner() as runner:
        context = open_viewer([volumes / url for url in SOURCES])
        page, notes = runner.run(context.__aenter__())
        try:
            end = time.monotonic() + SECONDS
            while "#!" not in (url := runner.run(page.evaluate("location.href"))):
                assert time.monotonic() < end, url
                time.sleep(0.1)
            yield (
                page,
                json.loads(unquote(url.partition("#!")[2])),
                {note.partition(":")[0] for note in notes},
                runner.run,
            )
        finally:
            runner.run(context.__aexit__(None, None, None))


def _colors(voxels, kind):
    """Return the color of each voxel, shape (x, y, z, 3), and the colors of labels as the client
    takes them."""
    if kind == "image":
        gray = (voxels // 257 if voxels.dtype == np.uint16 else voxels).astype(np.uint8)
        return np.repeat(gray[..., np.newaxis], 3, -1), {}
    ids, index = np.unique(voxels, return_inverse=True)
    table = np.random.default_rng(1).choice(np.arange(1, 1 << 24), len(ids), replace=False)
    colors = np.stack([table >> 16, table >> 8 & 255, table & 255], -1).astype(np.uint8)
    return colors[index.reshape(voxels.shape)], {
        str(label): f"#{color:06x}"
        for label, color in zip(ids.tolist(), table.tolist(), strict=True)
    }


def _draw(colors, topleft, factors, layout, center, panel):
    """Draw a section, shape (rows, columns, 3), and return it with the part of it that is around
    the voxels."""
    normal = next(n for n in range(3) if "xyz"[n] not in layout)
    plane, parts = colors.take(center[normal] // factors[normal] - topleft[normal], normal), []
    for axis, (letter, pixels) in enumerate(zip(layout, panel, strict=True)):
        n = "xyz".index(letter)
        places = center[n] + (np.arange(pixels) + 0.5 + SHIFT - pixels / 2) / PIXELS[n]
        index = np.floor(places / factors[n]).astype(int) - topleft[n]
        index[(index < 0) | (index >= colors.shape[n])] = -1  # black
        plane = np.pad(plane, [(0, n == axis) for n in range(3)]).take(index, axis)
        inside = np.flatnonzero(index >= 0)
        parts.append(slice(max(0, inside[0] - MARGIN), inside[-1] + 1 + MARGIN))
    return plane.swapaxes(0, 1), tuple(parts[::-1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("url", SOURCES)
def test_pixels_are_voxels(volumes, viewer, url):
    (page, state, decoded, run), (served_as, mag, first) = viewer, SOURCES[url]
    layer = dict(
        next(
            layer
            for layer in state["layers"]
            if f"/data/{[*SOURCES].index(url)}/" in json.dumps(layer["source"])
        )
    )
    assert (
        served_as == "decoded"
        if layer["name"] in decoded
        else f"{served_as}://" in json.dumps(layer["source"])
    )
    voxels, factors = wkwdask.read(volumes / url)[0], Mag.parse(mag).factors
    colors, layer["segmentColors"] = _colors(voxels, layer["type"])
    value = "getDataValue() / 255.0" if voxels.dtype.kind == "f" else "toNormalized(getDataValue())"
    layer |= {
        "shader": f"void main() {{ emitGrayscale({value}); }}",
        "shaderControls": {},
        "opacity": 1,
        "selectedAlpha": 1,
        "notSelectedAlpha": 1,
    }
    topleft, center = (
        [round(n) for n in np.divide(first, factors)],
        [t + n // 2 for t, n in zip(first, SHAPE, strict=True)],
    )
    for layout in ("xy", "xz"):
        position = [
            n + (SHIFT / pixels if axis in layout else 0.5)
            for n, pixels, axis in zip(center, PIXELS, "xyz", strict=True)
        ]
        expect = partial(_draw, colors, topleft, factors, layout, center)
        shown = state | PLAIN | {"layers": [layer], "layout": layout, "position": position}
        assert run(_difference(page, shown, expect)) <= 1, layout
    assert [
        text
        for kind, text in page.messages
        if kind in ("error", "warning") and not re.search(HARMLESS, text)
    ] == []
