"""Open WKW and N5 data as Zarr, without a copy."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats.as_zarr.wkw_view import plan_view, remove_view, why_no_documents, write_view
from wkwdask.formats.opening import find
from wkwdask.formats.registry import opening_format
from wkwdask.formats.roots import check_served, root_of
from wkwdask.formats.webknossos.dataset import locate
from wkwdask.geometry.mag import vec3
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Sequence


def zarr_view(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    chunk_shape: Sequence[int] | None = None,
    allow_external: bool = False,
) -> Any:
    """Return a read-only Zarr store of a dataset, layer or mag, which decodes chunks on demand.
    Nothing is written.

    The store presents Zarr version 3 with OME-NGFF 0.5. Each layer is an image with all its mags; a
    segmentation is also a label of each image that has its mags. Arrays have the axes z, y, x (or
    c, z, y, x) and begin at the bounding box; the ``translation`` of each level states its
    position. Every reader that accepts a zarr-python store can use it, including dask workers,
    without a codec of wkwdask.

    Parameters
    ----------
    url : str or path
        A dataset, layer or mag in any format that :func:`wkwdask.open` opens.
    layer : str, optional
        Only this layer, which becomes the root of the store.
    chunk_shape : sequence of 3 int, optional
        Chunks along x, y, z [voxels]; by default about 1 MiB.
    allow_external : bool
        Serve levels that a document of a volume names outside of it, such as ``../other/8_8_8``;
        refused by default. Links and the paths of mags in ``datasource-properties.json`` are always
        followed.

    Returns
    -------
    zarr.abc.store.Store
        Read-only.

    Raises
    ------
    MissingError
        The dataset or layer does not exist, or no mag has voxels.
    ModuleNotFoundError
        zarr is not installed: ``pip install 'wkwdask[zarr]'``.
    UnsupportedError
        A document names a level outside of its volume.
    ValueError
        The chunk shape is invalid.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> dataset = wkwdask.create_dataset(f"{folder}/ds", voxel_size=(4, 4, 40))
    >>> report = wkwdask.to_wkw(np.ones((40, 30, 20), np.uint8), f"{folder}/ds/color/1")
    >>> import zarr  # doctest: +SKIP
    >>> zarr.open_group(wkwdask.zarr_view(f"{folder}/ds"), mode="r")[
    ...     "color/1"
    ... ].shape  # doctest: +SKIP
    (20, 30, 40)
    """
    import_extra("zarr", "zarr_view", "zarr")
    from wkwdask.formats.as_zarr.view_store import ViewStore
    from wkwdask.formats.as_zarr.wkw_view import virtual_group

    shape = None if chunk_shape is None else vec3(chunk_shape, "chunk_shape")
    if shape is not None and min(shape) < 1:
        raise ValueError(f"chunk_shape must be positive, got {chunk_shape!r}")
    resolved = find(url)
    layers = (
        tuple(map(resolved.readable, resolved.layers))
        if layer is None
        else (resolved.choose(layer),)
    )
    if not layers:
        raise MissingError(f"{resolved.path}: the dataset has no layers")
    for image in layers:
        check_served(replace(image, allow_external=allow_external))
    is_dataset = layer is None and any(
        image.is_layer and root_of(image).folder == resolved.path for image in resolved.layers
    )
    return ViewStore(
        virtual_group(layers, resolved.mag, shape, as_root=len(layers) == 1 and not is_dataset),
        resolved.path,
    )


def write_zarr_view(
    url: str | os.PathLike[str], *, layer: str | None = None, allow_external: bool = False
) -> tuple[str, ...]:
    """Add Zarr metadata so that zarr-python can read WKW files in place.

    Dataset, layers and mags become groups and arrays of Zarr version 3 with OME-NGFF 0.5, described
    by small ``zarr.json`` files. A chunk is a WKW file, which the codec ``wkw`` reads block by
    block. zarr-python finds the codec if wkwdask is installed; other Zarr readers reject it. A
    segmentation is also a label of each color layer that has its mags, through symbolic links in
    ``COLOR/labels``. Arrays begin at voxel 0 and end with the bounding box. Writing again updates
    the files.

    Parameters
    ----------
    url : str or path
        A dataset, layer or mag in WKW.
    layer : str, optional
        Only this layer.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.

    Returns
    -------
    tuple of str
        The files and links that were written.

    Raises
    ------
    ExistsError
        A ``zarr.json`` of other software exists; nothing is written.
    MissingError
        The dataset or layer does not exist, or no mag has voxels.
    UnsupportedError
        The mags of a layer are in several folders, remote, or outside the dataset; or the format is
        not WKW.

    Notes
    -----
    Chunks are whole files, so voxels that files store before the bounding box are visible too.
    Arrays can be written through zarr. Each chunk that is written replaces a whole WKW file without
    a lock, so only one process at a time may write a file. After a mag was replaced, removed or
    extended, write the view again.

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
    its_format = opening_format(url)
    why_not = why_no_documents(its_format.name)
    if why_not:
        raise UnsupportedError(
            f"{os.fspath(url)}: {its_format.options.title} gets no zarr.json: {why_not}; "
            "zarr_view() shows it as Zarr without a copy"
        )
    return write_view(plan_view(locate(url, allow_external=allow_external), layer))


def remove_zarr_view(
    url: str | os.PathLike[str], *, layer: str | None = None, allow_external: bool = False
) -> tuple[str, ...]:
    """Remove the files and links that :func:`write_zarr_view` wrote.

    Parameters
    ----------
    url : str or path
        The dataset, layer or mag.
    layer : str, optional
        Only this layer.
    allow_external : bool
        Allow removing where paths or links lead out of the dataset; refused by default.

    Returns
    -------
    tuple of str
        The files and links that were removed.

    Raises
    ------
    MissingError
        The dataset does not exist.
    UnsupportedError
        A mag is outside the dataset.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> dataset = wkwdask.create_dataset(f"{folder}/ds", voxel_size=(4, 4, 40))
    >>> report = wkwdask.to_wkw(np.ones((40, 30, 20), np.uint8), f"{folder}/ds/color/1")
    >>> written = wkwdask.write_zarr_view(f"{folder}/ds")
    >>> len(wkwdask.remove_zarr_view(f"{folder}/ds")) == len(written)
    True
    """
    return remove_view(locate(url, allow_external=allow_external), layer)


def n5_as_zarr(
    url: str | os.PathLike[str],
    *,
    form: Literal["n5_default", "offset"] = "n5_default",
    write: bool = False,
    remove: bool = False,
    allow_external: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return Zarr v3 metadata of N5 data, with which zarr-python opens the same files.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, with or without the prefix ``n5://``.
    form : {"n5_default", "offset"}
        Codecs that describe the blocks: ``n5_default``, which wkwdask registers; or the chain
        transpose, bytes, compressor and ``offset``, for datasets whose blocks are all complete and
        have the same mode, which is checked.
    write : bool
        Write each ``zarr.json`` beside its ``attributes.json`` (local only). Files of other
        software are never replaced.
    remove : bool
        Remove the files that ``write`` created.
    allow_external : bool
        Allow writing and removing where links lead out of the folder; refused by default.

    Returns
    -------
    dict
        Content of each ``zarr.json``, by its path in the folder: ``"zarr.json"``,
        ``"s0/zarr.json"``... Arrays have the axes of N5, x first. A group with levels is also an
        OME-NGFF 0.5 image if all axes are spatial.

    Raises
    ------
    ExistsError
        A ``zarr.json`` exists that was not created from N5 attributes.
    FormatError
        An ``attributes.json`` or the header of a block is broken.
    MissingError
        The dataset does not exist.
    UnsupportedError
        Zarr has no codec for a compression, the form cannot describe the storage of a dataset, or a
        link leads outside.
    ValueError
        The form is unknown, or both ``write`` and ``remove`` are given.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw")
    >>> documents = wkwdask.n5_as_zarr(f"{folder}/v.n5")
    >>> sorted(documents), documents["raw/zarr.json"]["codecs"][0]["name"]
    (['raw/zarr.json', 'zarr.json'], 'n5_default')
    """
    from wkwdask.formats.as_zarr.n5_view import remove_documents, write_documents, zarr_documents

    if write and remove:
        raise ValueError("write=True and remove=True exclude each other")
    documents = zarr_documents(url, form)
    if write:
        write_documents(url, documents, allow_external=allow_external)
    elif remove:
        remove_documents(url, documents, allow_external=allow_external)
    return documents


def n5_store(url: str | os.PathLike[str]) -> Any:
    """Return a read-only Zarr store of N5 data.

    It creates each ``zarr.json`` on demand. Nothing is written.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, local or remote, with or without the prefix ``n5://``.

    Returns
    -------
    zarr.abc.store.Store
        For ``zarr.open_group``, ``zarr.open_array``, ``xarray.open_zarr``...

    Raises
    ------
    ModuleNotFoundError
        zarr-python or a driver is not installed.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw")
    >>> import zarr  # doctest: +SKIP
    >>> zarr.open_array(wkwdask.n5_store(f"{folder}/v.n5/raw"), mode="r").shape  # doctest: +SKIP
    (100, 80, 60)
    """
    import_extra("zarr", "n5_store", "zarr")
    from wkwdask.formats.as_zarr.n5_store import open_n5_store

    return open_n5_store(url)
