"""Make the picture of ``docs/guides/meshes.md``: ``PYTHONPATH=tests python
tests/support/mesh_picture.py``; needs Chromium and the extras ``view`` and ``meshes``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

from PIL import Image
from support.browser_page import open_viewer

import wkwdask

PICTURE = Path(__file__).resolve().parent.parent.parent / "docs" / "images" / "meshes.jpg"
SIZE = (1000, 740)
NUMBER = 14
SECONDS = 25  # until the client has loaded all
HIDDEN = ("showAxisLines", "showScaleBar", "showDefaultAnnotations")


async def picture_of(url, segments):
    """Return the 3-D view of some segments."""
    async with open_viewer([url], SIZE) as (page, _):
        while "#!" not in (address := await page.evaluate("location.href")):
            await asyncio.sleep(0.1)
        base, _, text = address.partition("#!")
        state = json.loads(unquote(text))
        state["layers"][0]["segments"] = list(map(str, segments))
        state |= {"layout": "3d", "projectionBackgroundColor": "#ffffff"}
        state |= {"projectionScale": 680, "projectionOrientation": [0.35, 0.25, 0.1, 0.9]}
        state |= dict.fromkeys(HIDDEN, False)
        await page.visit(f"{base}#!{quote(json.dumps(state))}")
        await asyncio.sleep(SECONDS)
        return await page.picture(lambda _: True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        wkwdask.make_demo(f"{folder}/demo-dataset")
        url = f"precomputed://{folder}/neurons"
        wkwdask.convert(f"{folder}/demo-dataset", url, layer="segmentation")
        wkwdask.meshes(url, mag="2-2-1", cell=128)
        table = wkwdask.label_statistics(url, mag="4-4-2")
        picture = asyncio.run(picture_of(url, table.nlargest(NUMBER, "voxels").index))
    Image.fromarray(picture).save(PICTURE, quality=72, optimize=True)


if __name__ == "__main__":
    main()
