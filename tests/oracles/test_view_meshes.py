"""Neuroglancer's client shows the meshes of a volume that ``wkwdask view`` serves, in place and
whole."""

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
LABEL = 2**53 + 1
LOW, HIGH = np.array([10, 20, 5]), np.array([110, 70, 15])  # of a box
PIXELS = 3.0  # of a voxel along x and y
TOP = 50  # of the panel, about [pixels]
SECONDS = 60


async def picture_of(url, is_complete):
    """Return the picture of a view along z at the box, and the messages of the console."""
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
        return picture, page.messages


def orange(picture):
    """Return the pixels of the mesh, whatever the light is, below the name of the layer."""
    red, green, blue = np.moveaxis(picture[TOP:, :, :3].astype(int), -1, 0)
    return (red > 60) & (red > 1.4 * green) & (green > 3 * blue)


def test_the_client_shows_a_mesh(tmp_path):
    labels = np.zeros(SHAPE, np.uint64)
    labels[tuple(map(slice, LOW, HIGH))] = LABEL
    url = f"precomputed://{tmp_path / 'cells'}"
    wkwdask.save(labels, url, offset=OFFSET, voxel_size=LENGTHS, category="segmentation")
    wkwdask.meshes(url, cell=32)
    size = (HIGH - LOW)[:2]

    def is_complete(picture):
        rows, columns = np.nonzero(orange(picture))
        if not len(rows):
            return False
        width, height = (np.ptp(places) + 1 for places in (columns, rows))
        is_full = len(rows) > 0.97 * width * height
        return is_full and abs(width / height - size[0] / size[1]) < 0.05

    picture, messages = asyncio.run(picture_of(url, is_complete))
    assert is_complete(picture), messages
    assert not [text for text in messages if "mesh" in text], messages
