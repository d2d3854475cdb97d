"""Make the picture of ``docs/view.md``: ``PYTHONPATH=tests python tests/support/view_picture.py``;
needs Chromium and the extra ``view``."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from support.browser_page import open_viewer

import wkwdask

PICTURE = Path(__file__).resolve().parent.parent.parent / "docs" / "images" / "view.jpg"
SIZE = (1000, 740)


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


def main():
    with tempfile.TemporaryDirectory() as folder:
        wkwdask.make_demo(f"{folder}/demo-dataset")
        picture, _ = asyncio.run(picture_of([f"{folder}/demo-dataset"]))
    PICTURE.parent.mkdir(exist_ok=True)
    Image.fromarray(picture).save(PICTURE, quality=72, optimize=True)


if __name__ == "__main__":
    main()
