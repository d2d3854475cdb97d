"""Show layers in Neuroglancer, until the process is interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import webbrowser
from functools import partial
from typing import TYPE_CHECKING

from wkwdask.viewer.client_state import format_fragment, make_state
from wkwdask.viewer.layers import layers_of
from wkwdask.viewer.server import ViewerServer, client_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.geometry.mag import Mag, Vec3


def make_server(
    urls: Sequence[str | os.PathLike[str]],
    *,
    layers: Sequence[str] = (),
    mag: Mag | None = None,
    position: Vec3 | None = None,
    shader: str | None = None,
    port: int = 0,
    cors: str | None = None,
) -> tuple[ViewerServer, list[str]]:
    """Return a server of the layers of datasets and volumes, and notes on layers that it decodes."""
    if position is not None and len(position) != 3:
        raise ValueError(f"position must be three numbers, got {position}")
    client = client_files()
    shown = [layer for url in urls for layer in layers_of(url, layers, mag)]
    state = make_state(shown, position, shader)
    server = ViewerServer([layer.source for layer in shown], partial(format_fragment, state, shown), client, port=port, cors=cors)
    return server, [f"{layer.name}: Neuroglancer cannot read its files; chunks are decoded on request" for layer in shown if layer.is_decoded]


def serve(server: ViewerServer, on_start: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM."""

    async def run() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        server.start()
        on_start()
        await stopped.wait()
        await server.stop()

    asyncio.run(run())


def tunnel_command(port: int) -> str | None:
    """Return the command that makes the server reachable from the user's own machine, None if this is it."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return f"ssh -L {port}:127.0.0.1:{port} {connection[2]}" if len(connection) == 4 else None


def open_browser(url: str) -> bool:
    """Open a page if there is a display, and return whether a browser was started."""
    has_display = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_display and "SSH_CONNECTION" not in os.environ and webbrowser.open(url)
