"""Volume annotations."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from wkwdask.api.options import StorageKeywords, storage_options
from wkwdask.formats.registry import fallback
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.geometry.mag import Mag
from wkwdask.model.options import check
from wkwdask.verbs.rechunk import RechunkOptions
from wkwdask.verbs.webknossos.merge import MergeOptions, find_merge, lay_out_merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.api.options import MagLike
    from wkwdask.runs.report import Report


@storage_options(WkwOptions)
def merge(
    base: str | os.PathLike[str],
    annotations: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    volume_layer: str | None = None,
    relabel: bool | int = False,
    existing: str = "error",
    verify: bool = False,
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Merge volume annotations, as WEBKNOSSOS exports them, into a segmentation.

    A block that an annotation stores takes the place of the block, zeros included; everything else is that of the base. Where several annotations store a
    block, the last one counts. Stored blocks of the base that no annotation touches are copied as they are.

    Parameters
    ----------
    base : str or path
        A dataset, a layer or a mag; it stays as it is.
    annotations : str, path or sequence of them
        Zips as WEBKNOSSOS exports them, ``data_Volume.zip`` out of them, or folders with either unpacked. Mags that are but a header are passed over.
    target : str or path
        Where the result goes: a dataset for a dataset, a layer for a layer, a mag for a mag. One mag is made.
    layer : str, optional
        The layer of the base; may be omitted where there is one, or one segmentation.
    mag : Mag, str, int or sequence of 3 int, optional
        Which mag; by default that of the path, else the finest that an annotation holds blocks of.
    volume_layer : str, optional
        Which volume layer of annotations that have several, by its name or that of its ``data*.zip``; by default the one that was made on the layer. The
        report lists the others.
    relabel : bool or int
        Give each annotation ids of its own for its new segments. New is every id above the largest id of the base, as its JSON states it or as the number
        given here. New ids of the first annotation stay, those of each further one are raised by as much as all ids of the annotations before it take:
        by the largest new id of each less the largest of the base. Other ids, and zero, stay. Where the JSON states too small an id, a number has to be given.
    existing : {"error", "resume", "overwrite"}
        What to do where the mag already exists. An interrupted merge goes on in any case but ``"overwrite"``, which starts anew.
    verify : bool
        Read all voxels back and compare them before the mag appears.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.
    **options
        How the mag is stored; what is not given is as in the base.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``.
    FormatError
        A file, a zip or a block is broken.
    LockedError
        Another job writes the mag.
    MissingError
        There is no such layer or mag, or no volume annotation.
    ResumeError
        What was interrupted was started with other settings or from other data.
    UnsupportedError
        An annotation is stored in another way, or its ids do not fit into the type of the base.
    ValueError
        Several layers could be meant, no block is stored at all, or an option makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/seg/1", (0, 0, 0), np.ones((64, 64, 64), np.uint32), file_len=1)
    >>> _ = wkwdask.write(f"{folder}/annotation/1", (32, 0, 0), np.full((32, 32, 32), 7, np.uint32), file_len=1)
    >>> _ = wkwdask.merge(f"{folder}/seg/1", f"{folder}/annotation", f"{folder}/merged/1")
    >>> int(wkwdask.read(f"{folder}/merged/1", ((40, 0, 0), (41, 1, 1))).max())
    7
    """
    from wkwdask.graphs.runners import make, num_workers

    urls = [annotations] if isinstance(annotations, (str, os.PathLike)) else list(annotations)
    if not urls:
        raise ValueError("name at least one annotation")
    found = find_merge(base, urls, target, MergeOptions(layer, None if mag is None else Mag.parse(mag), relabel, volume_layer))
    fallback().prepare_copy(base, target)
    staged = lay_out_merge(found, RechunkOptions(check(WkwOptions, **options), command="merge", allow_external=allow_external), existing, num_workers())
    report = make(replace(staged, verify=verify))
    return replace(report, note="; ".join(filter(None, (report.note, found.note))))
