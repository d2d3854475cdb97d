"""Show layers and arrays in Neuroglancer."""

from __future__ import annotations

import itertools
import operator
import os
import signal
import sys
import threading
import weakref
import webbrowser
from collections.abc import Iterable, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, vec3, whole_number
from wkwdask.store.lru import LruCache
from wkwdask.viewer.client_state import format_page, make_state
from wkwdask.viewer.layers import layers_of
from wkwdask.viewer.server import ViewerServer, client_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.api.options import MagLike, Url, Voxels
    from wkwdask.viewer.layers import ShownLayer

    Shown: TypeAlias = Url | Voxels

_CACHE_NBYTES = 512 << 20
_HEIGHT = 600  # of the frame in a notebook [pixels]


class View:
    """Layers in Neuroglancer, which this process serves in threads until the view is closed.

    A view that is collected, or whose process ends, is closed too.

    In a notebook it is displayed as a link and a frame. Returned by :func:`view`, and by the
    methods of :class:`Dataset` and :class:`Layer`.
    """

    def __init__(
        self, server: ViewerServer, names: Sequence[str], notes: Sequence[str], proxy: str | None
    ) -> None:
        self.names = tuple(names)
        """Names of the layers."""
        self.notes = tuple(notes)
        """Notes on layers whose chunks are decoded, because Neuroglancer cannot read their
        files."""
        self.port = server.port
        """Port on the loopback interface."""
        self._url = (
            server.url if proxy is None else f"{proxy.rstrip('/')}/{server.port}/{server.token}/"
        )
        self._close = weakref.finalize(self, server.close)

    @property
    def url(self) -> str:
        """Link to the first page. It contains a secret: who has it may read the layers."""
        return self._url

    def close(self) -> None:
        """Stop the server. Further calls have no effect."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"View of {', '.join(self.names)}: {self.url if self._close.alive else 'closed'}"

    def _repr_html_(self) -> str:
        if not self._close.alive:
            return f"<p>{escape(repr(self))}</p>"
        url, notes = escape(self.url), "".join(f"<br>{escape(note)}" for note in self.notes)
        frame = (
            f'<iframe src="{url}" style="width: 100%; height: {_HEIGHT}px; border: 0" '
            "allowfullscreen></iframe>"
        )
        return (
            f'<p><a href="{url}" target="_blank" '
            f'rel="noreferrer">{escape(", ".join(self.names))}</a>{notes}</p>{frame}'
        )


def view(
    *sources: Shown | Mapping[str, Shown],
    layer: str | Sequence[str] | None = None,
    mag: MagLike | None = None,
    offset: Sequence[int] | None = None,
    voxel_size: Sequence[float] | None = None,
    category: Literal["color", "segmentation"] | None = None,
    position: Sequence[int] | None = None,
    shader: str | None = None,
    port: int = 0,
    cors: str | None = None,
    proxy: str | None = None,
    cache_nbytes: int = _CACHE_NBYTES,
    allow_external: bool = False,
) -> View:
    """Show datasets, volumes and arrays in Neuroglancer, in a browser or in a notebook.

    Nothing is written.

    Parameters
    ----------
    *sources : str, path, dask.array.Array, ndarray, xarray.DataArray or mapping
        Paths or URLs of any format that :func:`wkwdask.open` opens, and arrays of shape (x, y, z)
        or (c, x, y, z). The keys of a mapping are names of layers. Chunks of dask arrays are
        computed when the viewer asks for them, by the scheduler that dask would use.
    layer : str or sequence of str, optional
        Only these layers of datasets.
    mag : Mag, str, int or sequence of 3 int, optional
        Only this mag of datasets and volumes; the mag of arrays, by default 1.
    offset : sequence of 3 int, optional
        Position of element 0 of arrays [absolute voxels of the mag]; by default 0, or the position
        given by the coordinates x, y, z of a DataArray.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for arrays; by default those of the
        coordinates of a DataArray, or else of the other layers.
    category : {"color", "segmentation"}, optional
        Category of arrays; by default integers of 32 bits and more, and booleans, are a
        segmentation.
    position : sequence of 3 int, optional
        First position [voxels of mag 1]; by default the middle of the first layer.
    shader : str, optional
        Shader of images in GLSL, as Neuroglancer expects it.
    port : int
        Port on this machine; by default any free one.
    cors : str, optional
        Origin of other pages that may read the layers, such as
        ``https://neuroglancer-demo.appspot.com``.
    proxy : str, optional
        Path or URL below which jupyter-server-proxy serves the ports of this machine, such as
        ``/proxy``; by default that of JupyterHub inside of a hub.
    cache_nbytes : int
        Memory for computed chunks of dask arrays [bytes]. Larger chunks are not kept: only the part
        that the viewer asks for is computed.
    allow_external : bool
        Show levels that a document of a volume names outside of it, such as ``../other/8_8_8``;
        refused by default. Links and the paths of mags in ``datasource-properties.json`` are always
        followed.

    Returns
    -------
    View
        Its ``url`` is the link. Closing or forgetting it stops the server; it is a context manager
        too.

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag, or it has no files.
    ModuleNotFoundError
        neuroglancer is not installed: ``pip install 'wkwdask[view]'``.
    UnsupportedError
        A document names a level outside of its volume.
    ValueError
        The shape of an array or an option is invalid.

    Examples
    --------
    >>> import dask.array as da
    >>> import wkwdask
    >>> noise = da.random.random((2048, 2048, 512), chunks=128)
    >>> with wkwdask.view(
    ...     {"noise": noise, "smooth": noise.map_overlap(lambda part: part, depth=2)},
    ...     voxel_size=(4, 4, 35),
    ... ) as shown:  # doctest: +SKIP
    ...     print(shown.names)
    ('noise', 'smooth')
    """
    first = None if position is None else vec3(position, "position")
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')
    if whole_number(port, "port", 0) >= 1 << 16:
        raise ValueError(f"port must be below 65536, got {port}")
    client = client_files()
    is_one = isinstance(layer, str) or not isinstance(layer, Iterable)
    names: Sequence[Any] = () if layer is None else [layer] if is_one else [*layer]
    parsed = None if mag is None else Mag.parse(mag)
    named = list(_named(sources))
    groups = [
        []
        if _is_array(source)
        else _stored(source, name, names, parsed, allow_external=allow_external)
        for name, source in named
    ]
    size = next(
        (
            shown.voxel_size_nm
            for group in groups
            for shown in group
            if shown.voxel_size_nm is not None
        ),
        None,
    )
    if any(_is_array(source) for _, source in named):
        from wkwdask.viewer.arrays import ArrayOptions, layer_of  # imports dask

        cache: LruCache[Any] = LruCache(cache_nbytes, operator.attrgetter("nbytes"))
        options = ArrayOptions(parsed or MAG_1, offset, voxel_size, size, category, cache_nbytes)
        groups = [
            [layer_of(source, name, options, cache)] if _is_array(source) else group
            for (name, source), group in zip(named, groups, strict=True)
        ]
    layers = list(itertools.chain(*groups))
    if not layers:
        raise ValueError("nothing to show: give a path, a URL or an array")

    def make_page() -> bytes:
        return format_page(make_state(layers, first, shader), layers)

    if proxy is None and "JUPYTERHUB_SERVICE_PREFIX" in os.environ:
        proxy = f"{os.environ['JUPYTERHUB_SERVICE_PREFIX']}proxy"
    notes = [
        f"{each.name}: Neuroglancer cannot read its files; chunks are decoded on request"
        for each in layers
        if each.is_decoded
    ]
    meshes = [each.meshes for each in layers if each.meshes is not None]
    server = ViewerServer(
        [*(each.source for each in layers), *meshes],
        make_page,
        client,
        port=port,
        cors=cors,
        is_proxied=proxy is not None,
    )
    return View(server, [each.name for each in layers], notes, proxy)


def _named(sources: Iterable[Shown | Mapping[str, Shown]]) -> Iterator[tuple[str | None, Shown]]:
    for source in sources:
        if isinstance(source, Mapping):
            yield from source.items()
        else:
            yield None, source


def _is_array(source: Any) -> bool:
    return hasattr(source, "ndim")


def _stored(
    source: Any, name: str | None, names: Sequence[str], mag: Mag | None, *, allow_external: bool
) -> list[ShownLayer]:
    """Return the layers of a dataset, layer or volume."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"expected a path, URL or array to show, got {type(source).__name__}")
    layers = layers_of(source, names, mag, allow_external=allow_external)
    if name is None:
        return layers
    return [
        replace(layer, name=name if len(layers) == 1 else f"{name} {layer.name}")
        for layer in layers
    ]


def stop_event() -> threading.Event:
    """Return an event that SIGINT or SIGTERM sets from now on."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def tunnel_command(port: int) -> str | None:
    """Return the command that makes the server reachable from the user's own machine, None if this
    is it."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return f"ssh -L {port}:127.0.0.1:{port} {connection[2]}" if len(connection) == 4 else None


def open_browser(url: str) -> bool:
    """Open a page if there is a display, and return whether a browser was started."""
    has_display = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return has_display and "SSH_CONNECTION" not in os.environ and webbrowser.open(url)
