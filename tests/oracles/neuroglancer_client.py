"""The real Neuroglancer client in a headless browser, and what it needs: a server of files, and
readers of what it decoded.

``reading(folder)`` starts all of it, ``reading_from(url)`` leaves out the server; ``Client.read``
returns the voxels of a volume below that folder as the client's own code decoded them.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import wait
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--no-first-run",
    "--window-size=300,300",
    "--disable-sync",
    "--disable-component-update",
    "--disable-dev-shm-usage",
)
_SECONDS = 60


def missing() -> str | None:
    """Say what is not installed; None where all is there."""
    if not any(map(shutil.which, BROWSERS)):
        return "Chromium is absent: no " + ", ".join(BROWSERS)
    return None


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves files and ranges of them, and files named *.gz as compressed content."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name that http.server looks for
        path = Path(self.translate_path(self.path))
        compressed = path.with_name(path.name + ".gz")
        if path.is_file():
            self._send(path.read_bytes(), {})
        elif compressed.is_file():
            self._send(compressed.read_bytes(), {"Content-Encoding": "gzip"})
        else:
            self._reply(404, b"", {})

    do_HEAD = do_GET  # noqa: N815

    def _send(self, body: bytes, headers: dict[str, str]) -> None:
        requested = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if requested is None or not any(requested.groups()):
            self._reply(200, body, headers)
            return
        if requested[1]:
            first, last = int(requested[1]), min(int(requested[2] or len(body)), len(body) - 1)
        else:  # so many bytes at the end, where shards of Zarr have their index
            first, last = max(0, len(body) - int(requested[2])), len(body) - 1
        self._reply(
            206,
            body[first : last + 1],
            headers | {"Content-Range": f"bytes {first}-{last}/{len(body)}"},
        )

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (
            headers
            | {
                "Access-Control-Allow-Origin": "*",
                "Access-Control-Expose-Headers": "Content-Range",
                "Content-Length": str(len(body)),
            }
        ).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Serve a folder on a port of this machine; yields the URL."""

    def handler(*arguments: Any) -> _Files:
        return _Files(*arguments, directory=os.fspath(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def browsing(url: str, *flags: str) -> Iterator[str]:
    """Open a page in a headless browser with a fresh profile, the folder that is yielded; the
    browser and all its processes end with the block."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # it ends with this process even if that is killed
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*guard, browser, *_FLAGS, *flags, f"--user-data-dir={profile}", url]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield profile
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _metres(entry: dict[str, Any]) -> list[float]:
    """Return the edge lengths of a voxel; the client compares them with its own, which are divided
    so."""
    return [length / 1e9 for length in entry["resolution"]]


@contextlib.contextmanager
def _one_change(state: Any) -> Iterator[None]:
    """Send all changes of a state of the viewer together."""
    changes: list[Any] = []
    state.retry_txn = lambda change, **_: changes.append(change)  # in place of the method
    try:
        yield
    finally:
        del state.retry_txn
    state.retry_txn(lambda draft: [change(draft) for change in changes], lock=True)


class Client:
    """A viewer whose page is open in a browser.

    Parameters
    ----------
    viewer : neuroglancer.Viewer
        The viewer, on the side of Python.
    url : str
        Address of the parent of the volumes, ``s3+http://HOST/BUCKET`` for the objects of a bucket.
    """

    def __init__(self, viewer: Any, url: str) -> None:
        self.viewer, self._url = viewer, url
        self._count = 0

    def _document(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url.removeprefix('s3+')}/{name}") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def source(self, name: str) -> str:
        """Return the URL of a volume."""
        return f"precomputed://{self._url}/{name}"

    def read(self, name: str, scale: int = 0) -> np.ndarray:
        """Read a scale of a volume chunk by chunk; voxels of uint32 and uint64 must be cubes, in
        chunks of 8 along an edge and more.

        Returns
        -------
        ndarray, shape (c, x, y, z)
            Voxels that the client decoded; zeros for absent chunks.
        """
        info = self._document(f"{name}/info")
        entry = info["scales"][scale]
        shape, chunk, dtype = entry["size"], entry["chunk_sizes"][0], np.dtype(info["data_type"])
        # with blocks of (8, 8, 8) where voxels are cubes
        is_recoded = dtype.name in ("uint32", "uint64") and info["num_channels"] == 1
        self.viewer.block_size = entry.get(
            "compressed_segmentation_block_size", [8, 8, 8] if is_recoded else None
        )
        layer, found = self._shown(
            info["type"], self.source(name), _metres(entry), self._dimensions(info, entry)
        )
        out = np.zeros((info["num_channels"], *shape), dtype)
        for cell, voxels in self._chunks(
            layer, found, [range(-(-n // edge)) for n, edge in zip(shape, chunk, strict=True)]
        ):
            low = [n * edge for n, edge in zip(cell, chunk, strict=True)]
            x, y, z = (
                slice(a, min(a + edge, n)) for a, edge, n in zip(low, chunk, shape, strict=True)
            )
            out[:, x, y, z] = voxels if voxels.ndim == 3 else voxels.transpose(3, 0, 1, 2)
        return out

    def read_zarr(self, name: str, number: int = 0, *, is_v2: bool = False) -> np.ndarray:
        """Read a level of an OME-NGFF image with one channel, shape (x, y, z)."""
        group = (
            self._document(f"{name}/.zattrs")
            if is_v2
            else self._document(f"{name}/zarr.json")["attributes"]["ome"]
        )
        level = group["multiscales"][0]["datasets"][number]
        space = self._space(
            [length / 1e9 for length in reversed(level["coordinateTransformations"][0]["scale"])]
        )
        source = f"zarr{2 if is_v2 else 3}://{self._url}/{name}/"
        layer, found = self._shown("image", source, space.scales, space)
        # as in read(): voxels must be cubes
        self.viewer.block_size = [8, 8, 8] if found.data_type in ("uint32", "uint64") else None
        ends = zip(
            found.lower_bound - found.grid_origin,
            found.upper_bound - found.grid_origin,
            found.chunk_shape,
            strict=True,
        )
        out = np.zeros(found.upper_bound - found.lower_bound, found.data_type)
        for cell, voxels in self._chunks(
            layer, found, [range(low // edge, -(-high // edge)) for low, high, edge in ends]
        ):
            low = np.multiply(cell, found.chunk_shape) + found.grid_origin - found.lower_bound
            first = np.maximum(-low, 0)
            part = voxels[tuple(map(slice, first, found.upper_bound - found.lower_bound - low))]
            out[tuple(map(slice, low + first, low + first + part.shape))] = part
        return out

    def _chunks(
        self, layer: str, found: Any, ranges: Sequence[range]
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """Request chunks of all cells (x, y, z) of a box together; yield cell and voxels of
        each."""
        with _one_change(self.viewer.config_state):
            futures = {
                cell: self.viewer._volume_chunk(layer, found, [*cell, *[0] * (found.rank - 3)])
                for cell in product(*ranges)
            }
        wait(futures.values(), _SECONDS)
        return ((cell, future.result(0)) for cell, future in futures.items())

    def screenshot(
        self, image: str, segmentation: str, size: tuple[int, int], scale: float = 1.0
    ) -> bytes:
        """Draw the middle of an image with a segmentation over it.

        Parameters
        ----------
        image, segmentation : str
            The volumes.
        size : tuple of 2 int
            Width and height of the picture [pixels].
        scale : float
            Voxels of the finest scale per pixel.

        Returns
        -------
        bytes
            PNG, drawn when all chunks are there.
        """
        import neuroglancer

        entry = self._document(f"{image}/info")["scales"][0]
        drawn: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(3):
            # the client's own changes of the state may undo a request, whose caller would wait for
            # ever
            with self.viewer.txn() as state:
                state.dimensions = neuroglancer.CoordinateSpace(
                    names=["x", "y", "z"], units="m", scales=_metres(entry)
                )
                state.position = [
                    first + n / 2
                    for first, n in zip(entry["voxel_offset"], entry["size"], strict=True)
                ]
                state.cross_section_scale = scale
                state.layers.clear()
                state.layers["image"] = neuroglancer.ImageLayer(
                    source=self.source(image), cross_section_render_scale=4
                )
                state.layers["segmentation"] = neuroglancer.SegmentationLayer(
                    source=self.source(segmentation), not_selected_alpha=0.35
                )
                state.layout, state.show_axis_lines = "4panel", False
            threading.Thread(
                target=lambda: drawn.put(self.viewer.screenshot(size=list(size))), daemon=True
            ).start()
            with contextlib.suppress(queue.Empty):
                picture: bytes = drawn.get(timeout=_SECONDS).screenshot.image
                return picture
        raise TimeoutError(
            f"Neuroglancer drew no picture of {image} and {segmentation} in {3 * _SECONDS} s"
        )

    def _shown(
        self, kind: str, source: str, scales: Sequence[float], dimensions: Any
    ) -> tuple[str, Any]:
        """Show a volume in place of those before it, by ever new names until the client knows one:
        its own changes of the state may undo ours."""
        deadline = time.monotonic() + _SECONDS
        while True:
            self._count += 1
            layer = f"layer{self._count}"
            self._show(layer, kind, source, scales)
            try:
                return layer, self.viewer.volume_info(layer, dimensions=dimensions).result(_SECONDS)
            except ValueError as error:
                if "Invalid layer" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    def _show(self, layer: str, kind: str, source: str, scales: Sequence[float]) -> None:
        import neuroglancer

        with self.viewer.txn() as state:
            state.dimensions = self._space(scales)
            state.layers.clear()
            kinds = {
                "image": neuroglancer.ImageLayer,
                "segmentation": neuroglancer.SegmentationLayer,
            }
            state.layers[layer] = kinds[kind](source=source)
            # decoded on request all the same, and nothing is drawn
            state.layers[layer].visible = False

    @staticmethod
    def _space(scales: Sequence[float]) -> Any:
        import neuroglancer

        return neuroglancer.CoordinateSpace(names=["x", "y", "z"], units="m", scales=list(scales))

    @staticmethod
    def _dimensions(info: dict[str, Any], entry: dict[str, Any]) -> Any:
        import neuroglancer

        names, units, scales = ["x", "y", "z"], ["m"] * 3, _metres(entry)
        if info["num_channels"] > 1:
            names, units, scales = [*names, "c^"], [*units, ""], [*scales, 1]
        return neuroglancer.CoordinateSpace(names=names, units=units, scales=scales)


def _viewer_class() -> type:
    import compressed_segmentation
    import neuroglancer

    class Viewer(neuroglancer.Viewer):
        """A viewer that understands replies that are still compressed: the client keeps labels so,
        and sends what it keeps."""

        block_size: Sequence[int] | None = None

        def _handle_volume_chunk_reply(self, request_id: str, params: Any, data: bytes) -> None:
            if (
                self.block_size is not None
                and "error" not in params
                and not params.get("isFillValue")
            ):
                shape = params["chunkDataSize"]
                words = np.frombuffer(data, "<u4")
                channels = words[: 1 if len(shape) == 3 else shape[3]]
                one = np.ones(1, "<u4")  # a channel by itself begins one word after its offset
                beyond = np.zeros(1024, "<u4")  # the decoder may look beyond the end
                parts = [
                    compressed_segmentation.decompress(
                        np.concatenate([one, words[start:], beyond]).tobytes(),
                        shape[:3],
                        np.dtype(params["dtype"]),
                        tuple(self.block_size),
                        order="F",
                    ).tobytes(order="F")
                    for start in channels
                ]
                data = b"".join(parts)
            super()._handle_volume_chunk_reply(request_id, params, data)

    return Viewer


@contextlib.contextmanager
def reading(folder: str | os.PathLike[str]) -> Iterator[Client]:
    """Start servers and the browser for the volumes below a folder."""
    with serving(folder) as url, reading_from(url) as client:
        yield client


@contextlib.contextmanager
def reading_from(url: str) -> Iterator[Client]:
    """Start the browser for the volumes below a URL."""
    import neuroglancer

    neuroglancer.set_server_bind_address("127.0.0.1")
    viewer = _viewer_class()()
    try:
        with browsing(viewer.get_viewer_url()):
            yield Client(viewer, url)
    finally:
        neuroglancer.server.stop()
