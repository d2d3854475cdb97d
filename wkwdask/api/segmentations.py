"""Label connected components, map the ids of segmentations, and merge annotations into them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from wkwdask.api.options import StorageKeywords, storage_options
from wkwdask.formats.opening import options_of_target
from wkwdask.formats.registry import storage_records
from wkwdask.formats.webknossos.copies import DatasetCopies
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.geometry.mag import Mag, whole_number
from wkwdask.ids.find_components import ComponentsOptions, lay_out_components, open_labels
from wkwdask.ids.id_source import as_ids, mapping_path, write_mapping
from wkwdask.ids.label_statistics import make_label_survey
from wkwdask.ids.remap_layer import RemapOptions, lay_out_remap
from wkwdask.ids.survey import SurveyWork
from wkwdask.model.options import make_options
from wkwdask.model.summary import counted
from wkwdask.store.looks import looking
from wkwdask.store.paths import any_path
from wkwdask.verbs.rechunk import RechunkOptions
from wkwdask.verbs.sources import TargetRequest, file_digest
from wkwdask.verbs.webknossos.merge import MergeOptions, find_merge, lay_out_merge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.bounding_box import BoundingBox
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
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Merge volume annotations, as WEBKNOSSOS exports them, into a segmentation.

    A block that an annotation stores replaces the block of the base, including its zeros. If
    several annotations store a block, the last one wins. Encoded blocks of the base that no
    annotation touches are copied without decoding.

    Parameters
    ----------
    base : str or path
        A dataset, a layer or a mag; it is not changed.
    annotations : str, path or sequence of them
        Zips as exported by WEBKNOSSOS, the ``data_Volume.zip`` inside them, or folders with either
        unpacked. Mags with only a header are skipped.
    target : str or path
        Location of the result, of the same kind as the base: a dataset, a layer or a mag. One mag
        is written.
    layer : str, optional
        The layer of the base; may be omitted if there is only one, or only one segmentation.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag for which an annotation stores
        blocks.
    volume_layer : str, optional
        The volume layer of annotations with several, by its name or the name of its ``data*.zip``;
        by default the one that was created on the layer. The report lists the others.
    relabel : bool or int
        Make the new segments of each annotation unique. An id is new if it is larger than the
        largest id of the base, which is this number or, for True, the one in the JSON; pass a
        number if the JSON states one that is too small. New ids of the first annotation stay. Those
        of each further annotation are raised by the sum, over the annotations before it, of their
        largest new id minus the largest id of the base. Other ids and zero stay.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists. An interrupted merge is resumed, except with ``"restart"``, which
        starts over and replaces like ``"overwrite"``.
    verify : bool
        Read all voxels back and compare them before the mag is published.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the mag, by default those of the base.
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
        The layer, the mag or a volume annotation does not exist.
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
    >>> _ = wkwdask.write(
    ...     f"{folder}/seg/1", (0, 0, 0), np.ones((64, 64, 64), np.uint32), file_len=1
    ... )
    >>> _ = wkwdask.write(
    ...     f"{folder}/annotation/1", (32, 0, 0), np.full((32, 32, 32), 7, np.uint32), file_len=1
    ... )
    >>> _ = wkwdask.merge(f"{folder}/seg/1", f"{folder}/annotation", f"{folder}/merged/1")
    >>> int(wkwdask.read(f"{folder}/merged/1", ((40, 0, 0), (41, 1, 1))).max())
    7
    """
    from wkwdask.graphs.runners import num_workers, run_plan

    urls = [annotations] if isinstance(annotations, (str, os.PathLike)) else list(annotations)
    if not urls:
        raise ValueError("annotations is empty, expected at least one")
    inputs = find_merge(
        base,
        urls,
        target,
        MergeOptions(layer, None if mag is None else Mag.parse(mag), relabel, volume_layer),
    )
    rechunk_options = RechunkOptions(
        make_options(WkwOptions, **options), command="merge", allow_external=allow_external
    )
    with DatasetCopies().prepare(any_path(base), os.fspath(target)):
        staged = lay_out_merge(inputs, rechunk_options, existing, num_workers())
        report = run_plan(replace(staged, verify=verify), force_space=force_space)
    return replace(report, note="; ".join(filter(None, (report.note, inputs.note))))


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
    where: BoundingBox | Sequence[Sequence[int]] | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Label the connected components of a layer as a new segmentation.

    Each component gets one id across all files. Ids are 1 to the number of components, the same for
    any number of workers. Memory holds one brick per worker, and about 30 bytes for each component
    that extends beyond a brick. The mag is published when it is complete, with its
    ``largestSegmentId`` in the JSON. The same call resumes an interrupted one and keeps its
    finished work.

    Parameters
    ----------
    source : str or path
        A mag, a layer (its finest mag), or a source of :func:`convert`; one channel.
    target : str or path
        The mag to write, such as ``dataset/components/1``; the same mag as the source.
    threshold : number or tuple of 2 numbers, optional
        Minimum of the voxels to label, or their minimum and maximum (both inclusive). If 0 lies in
        this range, voxels that are not stored are labeled too. Without a threshold, the source
        holds labels: neighbors with the same label are joined, and 0 is background.
    connectivity : {6, 18, 26}
        Neighbors of a voxel: those that share a face (6), also an edge (18), also a corner (26, the
        default of cc3d).
    min_voxels : int
        Components with fewer voxels become 0 and get no id.
    layer : str, optional
        The layer, if the source is a dataset.
    mag : Mag, int or str, optional
        The mag, by default the finest.
    where : BoundingBox or pair of corners, optional
        Box to label: its lowest corner and the corner beyond its highest voxel, as absolute voxels
        of the mag along x, y, z. Everything else becomes zero and joins no components.
    dtype : dtype_like, optional
        Type of the ids; by default uint32, or uint64 for more than 2^32 - 1 components.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists. An interrupted job is resumed, except with ``"restart"``, which
        starts over and replaces like ``"overwrite"``.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the mag, by default those of the source. Raw blocks become LZ4HC. Files
        are sized to fit the box, at most as long as those of the source, or 32 blocks if that is
        not WKW.
        {options}

    Returns
    -------
    Report
        Its note states the number of components.

    Raises
    ------
    BoundsError
        ``where`` lies outside the source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A record or header is broken.
    IncompleteWriteError
        The source changed during the job.
    LockedError
        Another job is writing the mag.
    MissingError
        The source does not exist.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TypeError
        Labels or ids are not integers.
    UnsupportedError
        A path leads out of the dataset.
    ValueError
        An option is invalid, or ``dtype`` is too small for the number of components.

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

    components_options = ComponentsOptions(threshold, connectivity, min_voxels, where, dtype)
    labels = open_labels(source, layer, None if mag is None else Mag.parse(mag))
    request = _target_request(target, options, allow_external=allow_external)
    return run_plan(
        lay_out_components(labels, request, components_options, existing, num_workers()),
        force_space=force_space,
    )


def _target_request(
    target: str | PathLike[str], options: StorageKeywords, *, allow_external: bool
) -> TargetRequest:
    """Return the target of a segmentation and its storage options."""
    return TargetRequest(
        target,
        make_options(options_of_target(target), **options),
        "segmentation",
        allow_external,
    )


@storage_options(*storage_records())
@looking()
def remap(
    source: str | PathLike[str],
    target: str | PathLike[str],
    mapping: Any,
    *,
    default: Literal["keep", "zero"] = "keep",
    layer: str | None = None,
    mag: MagLike | None = None,
    where: BoundingBox | Sequence[Sequence[int]] | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Map the ids of a segmentation to other ids, to merge, rename or remove segments.

    The mapping becomes a table on disk that each process maps into memory; it may have up to a
    billion (10^9) entries. The mag is published when it is complete, with its ``largestSegmentId``
    in the JSON. The same call with the same mapping resumes an interrupted one and keeps its
    finished work.

    Parameters
    ----------
    source : str or path
        A mag, a layer (its finest mag), or a source of :func:`convert`; integers, one channel.
    target : str or path
        The mag to write, such as ``dataset/merged/1``; the same mag as the source, in another
        folder.
    mapping : dict, ndarray, tuple, Series, DataFrame, str or path
        In memory: ``{old: new}``, an array of shape (n, 2), a tuple of old and new ids, a Series
        indexed by old ids, a DataFrame of two columns, or an array of shape (n,) with the new ids
        of 0, 1, 2... Or a file:

        - ``.csv`` or ``.parquet`` with two columns, old and new ids; a CSV may have a header, which
          must not begin with a number;
        - ``.npy`` of shape (n, 2), or (n,) with the new ids of 0, 1, 2..., which is not copied;
        - ``.hdf5`` or ``.h5``: an agglomerate file of WEBKNOSSOS (its ``segment_to_agglomerate``);
        - ``.nml``: a merger-mode annotation. The segments of the source under the nodes of a tree
          all get the smallest of their ids; trees that share a segment count as one.
    default : {"keep", "zero"}
        New value of ids that are not in the mapping: unchanged, or 0. An array of shape (n,)
        contains all ids below n. 0 stays 0 unless the mapping contains it.
    layer : str, optional
        The layer, if the source is a dataset.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, by default the finest.
    where : BoundingBox or pair of corners, optional
        Box to map: its lowest corner and the corner beyond its highest voxel, as absolute voxels of
        the mag along x, y, z. Everything else becomes zero.
    dtype : dtype_like, optional
        Type of the new ids; by default as in the source.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists. An interrupted job is resumed, except with ``"restart"``, which
        starts over and replaces like ``"overwrite"``.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the mag, by default those of the source. Raw blocks become LZ4HC. Files
        are sized to fit the box, at most as long as those of the source, or 32 blocks if that is
        not WKW.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    BoundsError
        ``where`` lies outside the source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A file is not a valid mapping; the message names the line or row.
    IncompleteWriteError
        The source or the ``.npy`` changed during the job.
    LockedError
        Another job is writing the mag.
    MissingError
        The source or the file does not exist.
    ModuleNotFoundError
        Parquet and HDF5 need packages of ``pip install 'wkwdask[analysis]'``.
    ResumeError
        The interrupted job was started with other settings, another mapping or from other data.
    TypeError
        Ids are not integers.
    UnsupportedError
        A path leads out of the dataset, or the suffix of a mapping is unknown.
    ValueError
        An option is invalid, the mapping has two values for one id, or ``dtype`` cannot hold an id.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/seg/1",
    ...     (0, 0, 0),
    ...     np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64) % 9,
    ...     file_len=2,
    ... )
    >>> _ = wkwdask.remap(f"{folder}/seg/1", f"{folder}/merged/1", {7: 3, 8: 3, 5: 0})
    >>> np.unique(wkwdask.read(f"{folder}/merged/1")).tolist()
    [0, 1, 2, 3, 4, 6]
    """
    request = _target_request(target, options, allow_external=allow_external)
    return _run_remap(
        source,
        request,
        mapping,
        RemapOptions(default, where, dtype),
        existing,
        layer,
        mag,
        force_space=force_space,
    )


def _run_remap(
    source: str | PathLike[str],
    request: TargetRequest,
    mapping: Any,
    options: RemapOptions,
    existing: str,
    layer: str | None,
    mag: MagLike | None,
    *,
    force_space: bool,
) -> Report:
    from wkwdask.graphs.runners import num_workers, run_plan

    labels = open_labels(source, layer, None if mag is None else Mag.parse(mag))
    return run_plan(
        lay_out_remap(labels, request, mapping, options, existing, num_workers()),
        force_space=force_space,
    )


def remove_dust(
    source: str | PathLike[str],
    target: str | PathLike[str],
    min_voxels: int,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Remove small segments: set them to 0 in a new layer. All others keep their ids.

    The size of a segment is the number of its voxels in the whole layer, connected or not.
    :func:`connected_components` with ``min_voxels=`` removes small components.

    Parameters
    ----------
    source, target : str or path
        As for :func:`remap`.
    min_voxels : int
        Segments with fewer voxels of the mag are removed.
    layer, mag, dtype, existing
        As for :func:`remap`.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        As for :func:`remap`.

    Returns
    -------
    Report
        Its note states the number of removed segments.

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
    whole_number(min_voxels, "min_voxels", 0)
    name, ids, counts, states = _count_labels(source, layer, mag)
    small = as_ids(ids[counts < min_voxels], name)
    request = _target_request(target, options, allow_external=allow_external)
    report = _run_remap(
        source,
        request,
        (small, np.zeros_like(small)),
        RemapOptions(dtype=dtype, command="dust", counted=states),
        existing,
        layer,
        mag,
        force_space=force_space,
    )
    return _with_note(report, f"{len(small)} of {len(ids)} segments removed")


def renumber(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    mapping: str | PathLike[str] | None = None,
    layer: str | None = None,
    mag: MagLike | None = None,
    dtype: npt.DTypeLike | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Renumber the n segments of a layer to 1 to n in the order of their ids, as a new layer.

    Parameters
    ----------
    source, target : str or path
        As for :func:`remap`.
    mapping : str or path, optional
        File for the old and new ids, in a format that :func:`remap` reads: ``.csv``, ``.parquet``,
        or ``.npy`` of shape (n, 2).
    layer, mag
        As for :func:`remap`.
    dtype : dtype_like, optional
        Type of the new ids; by default as in the source.
    existing : {"error", "resume", "overwrite", "restart"}
        As for :func:`remap`.
    allow_external : bool
        Allow writing where links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        As for :func:`remap`.

    Returns
    -------
    Report
        Its note states the number of segments.

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
    >>> _ = wkwdask.renumber(
    ...     f"{folder}/seg/1", f"{folder}/small/1", dtype="uint8", mapping=f"{folder}/ids.csv"
    ... )
    >>> print(Path(f"{folder}/ids.csv").read_text())
    old,new
    500000,1
    7000000,2
    <BLANKLINE>
    """
    path = None if mapping is None else mapping_path(mapping)
    name, labels, _, states = _count_labels(source, layer, mag)
    ids = as_ids(labels, name)
    new = np.arange(1, len(ids) + 1, dtype=np.uint64)
    request = _target_request(target, options, allow_external=allow_external)
    report = _run_remap(
        source,
        request,
        (ids, new),
        RemapOptions(dtype=dtype, command="renumber", counted=states),
        existing,
        layer,
        mag,
        force_space=force_space,
    )
    if path is not None:
        write_mapping(path, ids, new)
    return _with_note(
        report,
        counted(len(ids), "segment") + (f", old and new ids in {path}" if path is not None else ""),
    )


def _count_labels(
    source: str | PathLike[str], layer: str | None, mag: MagLike | None
) -> tuple[str, npt.NDArray[Any], npt.NDArray[np.int64], int]:
    """Return the name of a layer, its labels, the voxels of each, and the digest of its files
    before they were counted."""
    from wkwdask.graphs.runners import run_work

    volume = open_labels(source, layer, None if mag is None else Mag.parse(mag)).volume
    states = file_digest(volume)
    rows = run_work(
        SurveyWork(
            make_label_survey(volume, None, volume.box, ignore_zero=True),
            f"labels of {volume.name}",
        )
    ).sorted()
    return volume.name, rows.labels, rows.counts, states


def _with_note(report: Report, note: str) -> Report:
    return replace(report, note="; ".join(filter(None, (note, report.note))))
