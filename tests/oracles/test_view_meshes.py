"""Neuroglancer's client shows the meshes of a volume that ``wkwdask view`` serves, in place and
whole, and lists its labels by their properties."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import quote, unquote

import numpy as np
import pytest
from oracles.neuroglancer_client import missing
from support.browser_page import open_viewer

import wkwdask

pytestmark = [
    pytest.mark.needs("neuroglancer", "zmesh", "DracoPy", "pyfqmr"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
LENGTHS, OFFSET, SHAPE = (8.0, 8.0, 20.0), (50, 30, 9), (120, 90, 20)
LABEL, OTHER = 2**53 + 1, 424242
LOW, HIGH = np.array([10, 20, 5]), np.array([110, 70, 15])  # of a box
PIXELS = 3.0  # of a voxel along x and y
TOP = 50  # of the panel, about [pixels]
SECONDS = 60


async def shown(url, is_complete, texts):
    """Return the picture of a view along z at the box, the text of the list of segments, once it
    has some texts, and the messages of the console."""
    center = (LOW + HIGH) / 2 + OFFSET
    async with open_viewer([url], (700, 500)) as (page, _):
        end = time.monotonic() + SECONDS
        while "#!" not in (address := await page.evaluate("location.href")):
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        base, _, text = address.partition("#!")
        state = json.loads(unquote(text))
        (layer,) = state["layers"]
        layer |= {"segments": [str(LABEL)], "segmentColors": {str(LABEL): "#ff8000"}}
        state |= {
            "position": center.tolist(),
            "layout": {"type": "3d", "orthographicProjection": True},
            "projectionBackgroundColor": "#000000",
            "projectionScale": 500 / PIXELS,
            "showSlices": False,
            **dict.fromkeys(("showAxisLines", "showScaleBar", "showDefaultAnnotations"), False),
        }
        while time.monotonic() < end:
            await page.visit(f"{base}#!{quote(json.dumps(state))}")
            await asyncio.sleep(2)
            picture = await page.picture(lambda _: True)
            if is_complete(picture):
                break
        state["selectedLayer"] = {"layer": layer["name"], "visible": True}
        layer |= {"tab": "segments", "segmentQuery": "|voxels"}  # a column
        await page.visit(f"{base}#!{quote(json.dumps(state))}")
        listed = ""
        while time.monotonic() < end and not all(text in listed for text in texts):
            await asyncio.sleep(0.1)
            listed = await page.evaluate("document.body.innerText")
        return picture, listed, page.messages


def orange(picture):
    """Return the pixels of the mesh, whatever the light is, below the name of the layer."""
    red, green, blue = np.moveaxis(picture[TOP:, :, :3].astype(int), -1, 0)
    return (red > 60) & (red > 1.4 * green) & (green > 3 * blue)


def test_the_client_shows_a_mesh(tmp_path):
    labels = np.zeros(SHAPE, np.uint64)
    labels[tuple(map(slice, LOW, HIGH))] = LABEL
    labels[:3, :5, :7] = OTHER
    url = f"precomputed://{tmp_path / 'cells'}"
    wkwdask.save(labels, url, offset=OFFSET, voxel_size=LENGTHS, category="segmentation")
    wkwdask.meshes(url, cell=32, segment_properties=True)
    size = (HIGH - LOW)[:2]

    def is_complete(picture):
        rows, columns = np.nonzero(orange(picture))
        if not len(rows):
            return False
        width, height = (np.ptp(places) + 1 for places in (columns, rows))
        is_full = len(rows) > 0.97 * width * height
        return is_full and abs(width / height - size[0] / size[1]) < 0.05

    # the label that is not selected is in the list by its properties alone
    texts = str(OTHER), "voxels", str(3 * 5 * 7), str((HIGH - LOW).prod())
    picture, listed, messages = asyncio.run(shown(url, is_complete, texts))
    assert is_complete(picture), messages
    assert not [text for text in texts if text not in listed], listed
    assert not [text for text in messages if "mesh" in text], messages
