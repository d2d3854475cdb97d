"""Make the picture of README.md, ``docs/view.md`` and ``docs/guides/meshes.md``:
``PYTHONPATH=tests python tests/support/view_picture.py``; needs Chromium and the extras ``view``
and ``meshes``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
from PIL import Image
from support.browser_page import open_viewer

import wkwdask

PICTURE = Path(__file__).resolve().parent.parent.parent / "docs" / "images" / "view.jpg"
SIZE = (1000, 640)
NUMBER = 22
SECONDS = 30  # until the client has loaded all meshes
HIDDEN = ("showDefaultAnnotations", "showAxisLines")


async def picture_of(urls, size=SIZE):
    """Return the first view of volumes, once it has not changed for three pictures, and the
    messages of the console."""
    async with open_viewer(urls, size) as (page, _):
        pictures = []
        while (
            len(pictures) < 4
            or len({picture.tobytes() for picture in pictures[-3:]}) > 1
            or np.ptp(pictures[-1]) == 0
        ):
            pictures.append(await page.picture(lambda _: True))
            await asyncio.sleep(1)
        return pictures[-1], page.messages


async def picture_of_meshes(url, segments):
    """Return a section beside the 3-D view of some segments of the last layer."""
    async with open_viewer([url], SIZE) as (page, _):
        while "#!" not in (address := await page.evaluate("location.href")):
            await asyncio.sleep(0.1)
        base, _, text = address.partition("#!")
        state = json.loads(unquote(text))
        state["layers"][-1] |= {
            "segments": list(map(str, segments)),
            "selectedAlpha": 0.6,
            "notSelectedAlpha": 0.2,
        }
        state |= {
            "layout": "xy-3d",
            "projectionScale": 800,
            "crossSectionScale": 1.05,
            "projectionBackgroundColor": "#ffffff",
        }
        state |= {"projectionOrientation": [0.35, 0.25, 0.1, 0.9]} | dict.fromkeys(HIDDEN, False)
        await page.visit(f"{base}#!{quote(json.dumps(state))}")
        await asyncio.sleep(SECONDS)
        return await page.picture(lambda _: True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = f"{folder}/demo-dataset"
        wkwdask.make_demo(dataset)
        wkwdask.meshes(f"{dataset}/segmentation/2-2-1")
        table = wkwdask.label_statistics(dataset, layer="segmentation", mag="4-4-2")
        picture = asyncio.run(picture_of_meshes(dataset, table.nlargest(NUMBER, "voxels").index))
    Image.fromarray(picture).save(PICTURE, quality=76, optimize=True)


if __name__ == "__main__":
    main()
