"""Segmentations made of volumes, their ids changed, and annotations merged into them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from wkwdask.api.options import StorageKeywords, storage_options
from wkwdask.formats.opening import format_of_target
from wkwdask.formats.registry import default_format, storage_records
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.ids.find_components import ComponentsOptions, lay_out_components, open_labels
from wkwdask.ids.id_source import mapping_path, write_mapping
from wkwdask.ids.label_statistics import make_label_survey
from wkwdask.ids.remap_layer import RemapOptions, lay_out_remap
from wkwdask.ids.survey import SurveyWork
from wkwdask.model.options import check
from wkwdask.verbs.rechunk import RechunkOptions
from wkwdask.verbs.sources import TargetRequest
from wkwdask.verbs.webknossos.merge import MergeOptions, find_merge, lay_out_merge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy.typing as npt

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
        The layer of the base; may be omitted if there is only one, or only one segmentation.
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
        What to do if the mag exists. An interrupted merge is resumed, except with ``"overwrite"``, which discards it.
    verify : bool
        Read all voxels back and compare them before the mag appears.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        How the mag is stored; what is not given is as in the base.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A file, a zip or a block is broken.
    LockedError
        Another job is writing the mag.
    MissingError
        There is no such layer or mag, or no volume annotation.
    ResumeError
        The interrupted job was started with other settings or from other data.
    UnsupportedError
        An annotation is stored in another way, or its ids do not fit into the type of the base.
    ValueError
        The choice of layer is ambiguous, no block is stored at all, or an option is invalid.

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
    from wkwdask.graphs.runners import num_workers, run_plan

    urls = [annotations] if isinstance(annotations, (str, os.PathLike)) else list(annotations)
    if not urls:
        raise ValueError("name at least one annotation")
    found = find_merge(base, urls, target, MergeOptions(layer, None if mag is None else Mag.parse(mag), relabel, volume_layer))
    default_format().prepare_copy(base, target)
    staged = lay_out_merge(found, RechunkOptions(check(WkwOptions, **options), command="merge", allow_external=allow_external), existing, num_workers())
    report = run_plan(replace(staged, verify=verify))
    return replace(report, note="; ".join(filter(None, (report.note, found.note))))


@storage_options(*storage_records())
def connected_components(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    threshold: float | tuple[float, float] | None = None,
    connectivity: Literal[6, 18, 26] = 26,
    min_voxels: int = 0,
    layer: str | None = None,
    mag: MagLike | None = None,
    where: BoundingBox | str | Sequence[Any] | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Label the connected components of a layer, across the borders of its files, as a new segmentation.

    Each component gets one id wherever it goes. Ids are 1 to the number of components, the same for any number of workers. What is held in memory is a
    brick for each worker, and some 30 bytes for each component of a brick that goes on beyond it. The mag appears when it is complete, and the JSON says its
    ``largestSegmentId``. What an interrupted call finished is kept: the same call goes on from there.

    Parameters
    ----------
    source : str or path
        A mag, a layer (its finest mag), or what :func:`convert` imports; one channel.
    target : str or path
        The mag that is made, such as ``dataset/components/1``: the same mag as the source.
    threshold : number or tuple of 2 numbers, optional
        Voxels count that are at least this number, or that lie between the two (both included); where 0 counts, all that is not stored counts too. Without
        it, the source holds labels: neighbours are joined that have the same label, and 0 is background.
    connectivity : {6, 18, 26}
        Voxels are neighbours that share a face (6), a face or an edge (18), a face, an edge or a corner (26, as cc3d has it by default).
    min_voxels : int
        Components of fewer voxels become 0 and get no id.
    layer : str, optional
        The layer, where the source is a dataset.
    mag : Mag, int or str, optional
        The mag, by default the finest.
    where : BoundingBox, str or sequence, optional
        What is labelled: x, y, z, width, height, depth [voxels of mag 1]. Everything else becomes zero, and joins nothing.
    dtype : dtype_like, optional
        Type of the ids; by default uint32, or uint64 where there are more than 2^32 - 1 components.
    existing : {"error", "resume", "overwrite"}
        What to do if the mag exists. An interrupted job is resumed, except with ``"overwrite"``, which discards it.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    **options
        How the mag is stored; what is not given is as in the source. Raw blocks become LZ4HC, and files suit the box, at most as long as those of the
        source, or 32 blocks where that is no WKW.
        {options}

    Returns
    -------
    Report
        Its note says how many components there are.

    Raises
    ------
    BoundsError
        ``where`` lies outside of the source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A record or header is broken.
    IncompleteWriteError
        The source was changed meanwhile.
    LockedError
        Another job is writing the mag.
    MissingError
        The source is not there.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TypeError
        Labels or ids are not integers.
    UnsupportedError
        A path leads out of the dataset.
    ValueError
        An option is invalid, or there are more components than ``dtype`` can tell apart.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> voxels = np.zeros((64, 64, 64), np.uint8)
    >>> voxels[:, 3, 3] = 200
    >>> voxels[40:, 20:, 20:] = 180
    >>> _ = wkwdask.write(f"{folder}/color/1", (0, 0, 0), voxels, file_len=1)
    >>> wkwdask.connected_components(f"{folder}/color/1", f"{folder}/cells/1", threshold=100).note
    '2 components'
    >>> np.unique(wkwdask.read(f"{folder}/cells/1"), return_counts=True)[1].tolist()
    [215616, 64, 46464]
    """
    from wkwdask.graphs.runners import num_workers, run_plan

    searched = ComponentsOptions(threshold, connectivity, min_voxels, None if where is None else BoundingBox.parse(where), dtype)
    read = open_labels(source, layer, None if mag is None else Mag.parse(mag))
    return run_plan(lay_out_components(read, _wanted(target, options, allow_external=allow_external), searched, existing, num_workers()))


def _wanted(target: str | PathLike[str], options: StorageKeywords, *, allow_external: bool) -> TargetRequest:
    """Say where a segmentation goes, and how it is stored."""
    return TargetRequest(target, check(format_of_target(target).options, **options), "segmentation", allow_external)


@storage_options(*storage_records())
def remap(
    source: str | PathLike[str],
    target: str | PathLike[str],
    mapping: Any,
    *,
    default: Literal["keep", "zero"] = "keep",
    layer: str | None = None,
    mag: MagLike | None = None,
    where: BoundingBox | str | Sequence[Any] | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Give the ids of a segmentation other ids, as a new layer: merge, rename or remove segments.

    The mapping becomes a table on disk that each process maps into memory, so that it may have up to a thousand million entries. The mag appears when it is
    complete, and the JSON says its ``largestSegmentId``. What an interrupted call finished is kept: the same call goes on from there, but not with another
    mapping.

    Parameters
    ----------
    source : str or path
        A mag, a layer (its finest mag), or what :func:`convert` imports; integers, one channel.
    target : str or path
        The mag that is made, such as ``dataset/merged/1``: the same mag as the source, in another place.
    mapping : dict, ndarray, tuple, Series, DataFrame, str or path
        In memory: ``{id: id}``, an array of shape (n, 2), a tuple of ids and what they become, a Series by ids, a DataFrame of two columns, or an array of
        shape (n,) with an entry for each id from 0 on. Or a file:

        - ``.csv`` or ``.parquet`` with two columns, ids and what they become; a CSV with or without a header, which does not begin with a
          number;
        - ``.npy`` of shape (n, 2), or (n,) with an entry for each id from 0 on, which is used where it is;
        - ``.hdf5`` or ``.h5``: an agglomerate file of WEBKNOSSOS (its ``segment_to_agglomerate``);
        - ``.nml``: a merger-mode annotation. The segments under the nodes of one tree become the smallest of their ids; trees that share a segment are one.
          The segments are those of the source.
    default : {"keep", "zero"}
        What becomes of ids that the mapping does not name: they stay, or become 0. An array with an entry for each id names all ids below its length. 0 stays
        0 unless the mapping names it.
    layer : str, optional
        The layer, where the source is a dataset.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, by default the finest.
    where : BoundingBox, str or sequence, optional
        What is mapped: x, y, z, width, height, depth [voxels of mag 1]. Everything else becomes zero.
    dtype : dtype_like, optional
        Type of the new ids; by default as in the source.
    existing : {"error", "resume", "overwrite"}
        What to do if the mag exists. An interrupted job is resumed, except with ``"overwrite"``, which discards it.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    **options
        How the mag is stored; what is not given is as in the source. Raw blocks become LZ4HC, and files suit the box, at most as long as those of the
        source, or 32 blocks where that is no WKW.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    BoundsError
        ``where`` lies outside of the source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A file is no mapping; the message names the line or row.
    IncompleteWriteError
        The source or the ``.npy`` was changed meanwhile.
    LockedError
        Another job is writing the mag.
    MissingError
        The source or the file is not there.
    ModuleNotFoundError
        Parquet and HDF5 need packages of ``pip install 'wkwdask[analysis]'``.
    ResumeError
        What was interrupted was started with other settings, another mapping or from other data.
    TypeError
        Ids are not integers.
    UnsupportedError
        A path leads out of the dataset, or a file has another suffix.
    ValueError
        An option is invalid, the mapping names one id twice with different values, or ``dtype`` cannot hold an id.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/seg/1", (0, 0, 0), np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64) % 9, file_len=2)
    >>> _ = wkwdask.remap(f"{folder}/seg/1", f"{folder}/merged/1", {7: 3, 8: 3, 5: 0})
    >>> np.unique(wkwdask.read(f"{folder}/merged/1")).tolist()
    [0, 1, 2, 3, 4, 6]
    """
    area = None if where is None else BoundingBox.parse(where)
    wanted = _wanted(target, options, allow_external=allow_external)
    return _remapped(source, wanted, mapping, RemapOptions(default, area, dtype), existing, layer, mag)


def _remapped(
    source: str | PathLike[str], wanted: TargetRequest, mapping: Any, options: RemapOptions, existing: str, layer: str | None, mag: MagLike | None
) -> Report:
    from wkwdask.graphs.runners import num_workers, run_plan

    read = open_labels(source, layer, None if mag is None else Mag.parse(mag))
    return run_plan(lay_out_remap(read, wanted, mapping, options, existing, num_workers()))


def remove_dust(
    source: str | PathLike[str],
    target: str | PathLike[str],
    min_voxels: int,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Remove the segments of few voxels, as a new layer: they become 0, all others keep their ids.

    What counts are all voxels with an id in the layer, connected or not; :func:`connected_components` with ``min_voxels=`` looks at each component.

    Parameters
    ----------
    source, target : str or path
        As for :func:`remap`.
    min_voxels : int
        Segments of fewer voxels of the mag are removed.
    layer, mag, dtype, existing
        As for :func:`remap`.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    **options
        As for :func:`remap`.

    Returns
    -------
    Report
        Its note says how many were removed.

    Raises
    ------
    ValueError
        An option is invalid, or ids are negative; otherwise as for :func:`remap`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> labels = np.zeros((64, 64, 64), np.uint32)
    >>> labels[0, 0, :10], labels[9, 9, :40] = 5, 7
    >>> _ = wkwdask.write(f"{folder}/seg/1", (0, 0, 0), labels, file_len=2)
    >>> wkwdask.remove_dust(f"{folder}/seg/1", f"{folder}/clean/1", 20).note
    '1 of 2 segments removed'
    """
    if min_voxels < 0:
        raise ValueError(f"min_voxels must not be negative, got {min_voxels}")
    ids, counts = _counted(source, layer, mag)
    small = ids[counts < min_voxels]
    wanted = _wanted(target, options, allow_external=allow_external)
    report = _remapped(source, wanted, (small, np.zeros_like(small)), RemapOptions(dtype=dtype, command="dust"), existing, layer, mag)
    return _noted(report, f"{len(small)} of {len(ids)} segments removed")


def renumber(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    mapping: str | PathLike[str] | None = None,
    layer: str | None = None,
    mag: MagLike | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Give the n segments of a layer the ids 1 to n, in the order of their old ones, as a new layer.

    Parameters
    ----------
    source, target : str or path
        As for :func:`remap`.
    mapping : str or path, optional
        A file that keeps the old and the new ids, in the form that :func:`remap` reads: ``.csv``, ``.parquet``, or ``.npy`` of shape (n, 2).
    layer, mag
        As for :func:`remap`.
    dtype : dtype_like, optional
        Type of the new ids; by default as in the source.
    existing : {"error", "resume", "overwrite"}
        As for :func:`remap`.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    **options
        As for :func:`remap`.

    Returns
    -------
    Report
        Its note says how many segments there are.

    Raises
    ------
    ValueError
        An option is invalid, or ids are negative; otherwise as for :func:`remap`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> labels = np.full((64, 64, 64), 500_000, np.uint32)
    >>> labels[:10] = 7_000_000
    >>> _ = wkwdask.write(f"{folder}/seg/1", (0, 0, 0), labels, file_len=2)
    >>> _ = wkwdask.renumber(f"{folder}/seg/1", f"{folder}/small/1", dtype="uint8", mapping=f"{folder}/ids.csv")
    >>> print(Path(f"{folder}/ids.csv").read_text())
    old,new
    500000,1
    7000000,2
    <BLANKLINE>
    """
    path = None if mapping is None else mapping_path(mapping)
    ids, _ = _counted(source, layer, mag)
    new = np.arange(1, len(ids) + 1, dtype=np.uint64)
    wanted = _wanted(target, options, allow_external=allow_external)
    report = _remapped(source, wanted, (ids, new), RemapOptions(dtype=dtype, command="renumber"), existing, layer, mag)
    if path is not None:
        write_mapping(path, ids, new)
    return _noted(report, f"{len(ids)} segments" + (f", old and new ids in {path}" if path is not None else ""))


def _counted(source: str | PathLike[str], layer: str | None, mag: MagLike | None) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    from wkwdask.graphs.runners import run_work

    volume = open_labels(source, layer, None if mag is None else Mag.parse(mag)).volume
    rows = run_work(SurveyWork(make_label_survey(volume, None, volume.box, ignore_zero=True), f"labels of {volume.name}")).sorted()
    return rows.labels, rows.counts


def _noted(report: Report, note: str) -> Report:
    return replace(report, note="; ".join(filter(None, (note, report.note))))
