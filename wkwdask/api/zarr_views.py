"""WKW and N5 as Zarr, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find
from wkwdask.formats.webknossos.dataset import locate
from wkwdask.formats.zarr.views import plan_view, remove_view, write_view
from wkwdask.geometry.mag import vec3
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def zarr_view(url: str | os.PathLike[str], *, layer: str | None = None, chunk_shape: Sequence[int] | None = None) -> Any:
    """See a dataset, layer or mag as Zarr, without writing anything: a store that decodes chunks when they are asked for.

    The store holds Zarr version 3 with OME-NGFF 0.5: each layer is an image with all its mags, segmentations are also labels of each image whose mags they
    have. Arrays have the axes z, y, x (or c, z, y, x) and begin with the bounding box; where that lies, the ``translation`` of each level says. Any reader
    that takes a zarr-python store can use it, without a codec of ours; dask workers too.

    Parameters
    ----------
    url : str or path
        A dataset, layer or mag in any format that :func:`wkwdask.open` opens.
    layer : str, optional
        Only this one, which then is the root of the store.
    chunk_shape : sequence of 3 int, optional
        Chunks along x, y, z [voxels]; by default about 1 MiB.

    Returns
    -------
    zarr.abc.store.Store
        Read-only.

    Raises
    ------
    MissingError
        There is no such dataset or layer, or no mag with voxels.
    ModuleNotFoundError
        zarr is not installed: ``pip install 'wkwdask[zarr]'``.
    ValueError
        The chunk shape makes no sense.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> dataset = wkwdask.create_dataset(f"{folder}/ds", voxel_size=(4, 4, 40))
    >>> report = wkwdask.to_wkw(np.ones((40, 30, 20), np.uint8), f"{folder}/ds/color/1")
    >>> import zarr  # doctest: +SKIP
    >>> zarr.open_group(wkwdask.zarr_view(f"{folder}/ds"), mode="r")["color/1"].shape  # doctest: +SKIP
    (20, 30, 40)
    """
    import_extra("zarr", "zarr_view", "zarr")
    from wkwdask.formats.zarr.view_store import ViewStore
    from wkwdask.formats.zarr.views import virtual_group

    shape = None if chunk_shape is None else vec3(chunk_shape, "chunk_shape")
    if shape is not None and min(shape) < 1:
        raise ValueError(f"chunk_shape must be positive, got {chunk_shape!r}")
    found = find(url)
    layers = tuple(map(found.readable, found.layers)) if layer is None else (found.choose(layer),)
    if not layers:
        raise MissingError(f"{found.path}: the dataset has no layers")
    is_dataset = layer is None and any(one.container is not None and one.container.dataset_folder == found.path for one in found.layers)
    return ViewStore(virtual_group(layers, found.mag, shape, as_root=len(layers) == 1 and not is_dataset), found.path)


def write_zarr_view(url: str | os.PathLike[str], *, layer: str | None = None, allow_external: bool = False) -> tuple[str, ...]:
    """Write small ``zarr.json`` files beside the WKW files, by which zarr-python and what builds on it reads these in place.

    Dataset, layers and mags become groups and arrays of Zarr version 3 with OME-NGFF 0.5; chunks are the WKW files, which the codec ``wkw`` reads block by
    block. It is found wherever wkwdask is installed; readers that are not zarr-python refuse it. Segmentations are also labels of each color layer whose mags
    they have, by symbolic links in ``COLOR/labels``. Arrays begin at voxel 0 and end with the bounding box. Writing again brings the files up to date.

    Parameters
    ----------
    url : str or path
        A dataset, layer or mag in WKW.
    layer : str, optional
        Only this one.
    allow_external : bool
        Write where links lead out of the dataset.

    Returns
    -------
    tuple of str
        The files and links.

    Raises
    ------
    ExistsError
        There is a ``zarr.json`` that something else made; then nothing is written.
    MissingError
        There is no such dataset or layer, or no mag with voxels.
    UnsupportedError
        The mags of a layer are in several folders, remote, or outside of the dataset.

    Notes
    -----
    What files hold before the bounding box is seen too, since chunks are whole files. Arrays can be written through zarr: a chunk is then a whole WKW file
    that is made anew, without a lock, so that one process at a time may write a file. After a mag was replaced, removed or has grown, write the view again.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> dataset = wkwdask.create_dataset(f"{folder}/ds", voxel_size=(4, 4, 40))
    >>> report = wkwdask.to_wkw(np.ones((40, 30, 20), np.uint8), f"{folder}/ds/color/1")
    >>> [path.removeprefix(folder) for path in wkwdask.write_zarr_view(f"{folder}/ds")]
    ['/ds/color/1/zarr.json', '/ds/color/zarr.json', '/ds/zarr.json']
    >>> len(wkwdask.remove_zarr_view(f"{folder}/ds"))
    3
    """
    return write_view(plan_view(locate(url), layer, allow_external=allow_external))


def remove_zarr_view(url: str | os.PathLike[str], *, layer: str | None = None) -> tuple[str, ...]:
    """Remove what :func:`write_zarr_view` wrote, and nothing else.

    Parameters
    ----------
    url : str or path
        The dataset, layer or mag.
    layer : str, optional
        Only this one.

    Returns
    -------
    tuple of str
        What was removed.

    Raises
    ------
    MissingError
        There is no such dataset.
    """
    return remove_view(locate(url), layer)


def n5_as_zarr(
    url: str | os.PathLike[str], *, form: Literal["n5_default", "offset"] = "n5_default", write: bool = False, remove: bool = False
) -> dict[str, dict[str, Any]]:
    """Describe N5 data as Zarr v3, so that zarr-python opens the same files.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, with or without ``n5://`` before it.
    form : {"n5_default", "offset"}
        The registered codec ``n5_default``, which this package brings; or the chain transpose, bytes, compressor and ``offset`` for datasets whose blocks are
        all whole and in one mode, which is looked up.
    write : bool
        Write each ``zarr.json`` beside its ``attributes.json`` (local only); one that somebody else wrote is never replaced.
    remove : bool
        Remove what was written so.

    Returns
    -------
    dict
        The content of every ``zarr.json``, by its name inside of the folder: ``"zarr.json"``, ``"s0/zarr.json"``... The axes of arrays are those of N5, x
        first. Groups with levels are OME-NGFF 0.5 images too, where all axes are spatial.

    Raises
    ------
    ExistsError
        A ``zarr.json`` is there that was not made of N5 attributes.
    FormatError
        An ``attributes.json`` or the header of a block is broken.
    MissingError
        There is no dataset.
    UnsupportedError
        Zarr has no codec for a compression, or the form cannot say how a dataset is stored.
    ValueError
        There is no such form, or both ``write`` and ``remove`` are asked for.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw")
    >>> documents = wkwdask.n5_as_zarr(f"{folder}/v.n5")
    >>> sorted(documents), documents["raw/zarr.json"]["codecs"][0]["name"]
    (['raw/zarr.json', 'zarr.json'], 'n5_default')
    """
    from wkwdask.formats.n5.zarr_view import remove_documents, write_documents, zarr_documents

    if write and remove:
        raise ValueError("write and remove exclude each other")
    documents = zarr_documents(url, form)
    if write:
        write_documents(url, documents)
    elif remove:
        remove_documents(url, documents)
    return documents


def n5_store(url: str | os.PathLike[str]) -> Any:
    """Give a read-only Zarr store of N5 data, in which every ``zarr.json`` is made when it is asked for; nothing is written.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, local or remote, with or without ``n5://`` before it.

    Returns
    -------
    zarr.abc.store.Store
        For ``zarr.open_group``, ``zarr.open_array``, ``xarray.open_zarr``...

    Raises
    ------
    ModuleNotFoundError
        zarr-python or a driver is not installed.
    """
    from wkwdask.formats.n5.zarr_store import open_n5_store

    return open_n5_store(url)
