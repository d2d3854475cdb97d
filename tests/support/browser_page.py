"""Picture and console of a page in a headless browser, by the browser's debugging port."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from oracles.neuroglancer_client import browsing
from PIL import Image
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

import wkwdask

_SECONDS = 60
_CALL_SECONDS = 10


async def look(url, is_complete, size=(600, 500)):
    """Open a page in a new browser, wait until a picture of it is complete, and return the last
    picture and the messages of the console."""
    async with open_page(size) as page:
        await page.visit(url)
        return await page.picture(is_complete), page.messages


@asynccontextmanager
async def open_page(size=(600, 500)):
    """Start a browser, which ends with the block, and yield its empty page."""
    with browsing(
        "about:blank", "--remote-debugging-port=0", f"--window-size={size[0]},{size[1]}"
    ) as profile:
        end = time.monotonic() + _SECONDS
        while not (port := Path(profile, "DevToolsActivePort")).exists() or not port.read_text():
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(0.05)
        pages = json.loads(
            (
                await AsyncHTTPClient().fetch(
                    f"http://127.0.0.1:{port.read_text().split()[0]}/json"
                )
            ).body
        )
        connection = await websocket_connect(
            next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"),
            max_message_size=1 << 28,
        )
        try:
            page = Page(connection)
            for method in ("Runtime.enable", "Log.enable"):
                await page.call(method)
            yield page
        finally:
            connection.close()
            while await connection.read_message() is not None:
                # until the other side has closed it, too
                pass


@asynccontextmanager
async def open_viewer(urls, size=(600, 500)):
    """Show volumes in Neuroglancer in a new browser; yield its page and the notes of the viewer."""
    with wkwdask.view(*urls) as view:
        async with open_page(size) as page:
            await page.visit(view.url)
            yield page, view.notes


class Page:
    """A page of a browser, reached by the browser's protocol."""

    def __init__(self, connection):
        self._connection, self._number = connection, 0
        self.messages = []
        """Kind and text of what was written on the console."""

    async def visit(self, url):
        answer = await self.call("Page.navigate", url=url)
        assert "result" in answer, answer

    async def evaluate(self, expression, seconds=_SECONDS):
        """Return the value of a JavaScript expression. A page that is just replaced by another one
        may not answer: it is asked again."""
        end = time.monotonic() + seconds
        while "result" not in (
            answer := await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        ):
            assert time.monotonic() < end, f"the page does not answer {expression}: {answer}"
        return answer["result"]["result"]["value"]

    async def picture(self, is_complete, seconds=_SECONDS):
        """Wait until a picture of the page (rows, columns, 3) is complete, and return the last
        one."""
        end = time.monotonic() + seconds
        while True:
            answer = await self.call("Page.captureScreenshot", format="png")
            # a busy browser may fail to draw a frame in time, and says so or never answers
            if "result" in answer:
                picture = np.asarray(
                    Image.open(io.BytesIO(base64.b64decode(answer["result"]["data"]))).convert(
                        "RGB"
                    )
                )
                if is_complete(picture) or time.monotonic() > end:
                    return picture
            assert time.monotonic() < end, f"no picture of the page: {answer}"
            await asyncio.sleep(0.1)

    async def call(self, method, **parameters):
        """Return the answer of the browser, or an empty one if there is none in time."""
        self._number += 1
        await self._connection.write_message(
            json.dumps({"id": self._number, "method": method, "params": parameters})
        )
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                while True:
                    text = await self._connection.read_message()
                    assert text is not None, f"the browser has ended during {method}"
                    answer = json.loads(text)
                    if answer.get("id") == self._number:
                        return answer
                    if "method" in answer:  # else the late answer of another call
                        self._keep(answer["method"], answer["params"])
        except TimeoutError:
            return {}

    def _keep(self, event, parameters):
        if event == "Runtime.consoleAPICalled":
            self.messages.append(
                (
                    parameters["type"],
                    " ".join(str(each.get("value")) for each in parameters["args"]),
                )
            )
        elif event == "Runtime.exceptionThrown":
            self.messages.append(("error", parameters["exceptionDetails"]["text"]))
        elif event == "Log.entryAdded":
            self.messages.append(
                (
                    parameters["entry"]["level"],
                    f"{parameters['entry']['text']} {parameters['entry'].get('url')}",
                )
            )
