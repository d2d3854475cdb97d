"""Picture and console of a page in a headless browser, by the browser's debugging port."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from pathlib import Path

import numpy as np
from oracles.neuroglancer_client import browsing
from PIL import Image
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

_SECONDS = 60


async def look(url, is_complete, size=(600, 500)):
    """Open a page, wait until a picture of it (rows, columns, 3) is complete, and return the picture and the messages of the console."""
    with browsing("about:blank", "--remote-debugging-port=0", f"--window-size={size[0]},{size[1]}") as profile:
        end = time.monotonic() + _SECONDS
        while not (port := Path(profile, "DevToolsActivePort")).exists() or not port.read_text():
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(0.05)
        pages = json.loads((await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port.read_text().split()[0]}/json")).body)
        page = await websocket_connect(next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"), max_message_size=1 << 28)
        messages, number = [], 0

        async def call(method, **parameters):
            nonlocal number
            number += 1
            await page.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
            while (answer := json.loads(await page.read_message())).get("id") != number:
                if answer["method"] == "Runtime.consoleAPICalled":
                    messages.append((answer["params"]["type"], " ".join(str(each.get("value")) for each in answer["params"]["args"])))
                elif answer["method"] == "Runtime.exceptionThrown":
                    messages.append(("error", answer["params"]["exceptionDetails"]["text"]))
                elif answer["method"] == "Log.entryAdded":
                    messages.append((answer["params"]["entry"]["level"], f"{answer['params']['entry']['text']} {answer['params']['entry'].get('url')}"))
            return answer["result"]

        await call("Runtime.enable")
        await call("Log.enable")
        await call("Page.navigate", url=url)
        while True:
            shot = base64.b64decode((await call("Page.captureScreenshot", format="png"))["data"])
            picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
            if is_complete(picture) or time.monotonic() > end:
                page.close()
                return picture, messages
            await asyncio.sleep(0.3)
