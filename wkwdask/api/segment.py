"""Segment volumes of any size block by block with a user's function."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import (
    StorageKeywords,
    arguments_token,
    edges,
    function_calls,
    storage_options,
)
from wkwdask.errors import UnsupportedError
from wkwdask.formats.opening import options_of_target
from wkwdask.formats.registry import storage_records
from wkwdask.geometry.mag import whole_number
from wkwdask.ids.guards import Guards
from wkwdask.ids.segment import SegmentOptions, SegmentPlan, describe, lay_out_segment
from wkwdask.ids.table_file import table_path
from wkwdask.model.options import make_options
from wkwdask.store.looks import looking
from wkwdask.verbs.apply import ApplyOptions
from wkwdask.verbs.apply_job import check_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report


@storage_options(*storage_records())
@looking()
def segment(
    function: Callable[..., Any],
    sources: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: str | PathLike[str],
    *,
    halo: int | Sequence[int],
    chunks: int | Sequence[int] = 256,
    match: Literal["overlap", "touch"] = "overlap",
    min_overlap: float = 0.5,
    connectivity: Literal[6, 18, 26] = 26,
    stitch: str = "xyz",
    one_per_block: bool = False,
    max_voxels: int | None = None,
    min_voxels: int = 0,
    mask: str | PathLike[str] | None = None,
    where: BoundingBox | Sequence[Sequence[int]] | None = None,
    skip_empty: bool = True,
    dtype: npt.DTypeLike | None = None,
    category: Literal["color", "segmentation"] | None = None,
    table: str | PathLike[str] | None = None,
    refused: str | PathLike[str] | None = None,
    extra: str | PathLike[str] | None = None,
    setup: Callable[[], Any] | None = None,
    batch: int = 1,
    concurrency: int | None = None,
    resources: Mapping[str, float] | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    token: str | None = None,
    retries: int = 2,
    on_error: Literal["fail", "fill"] = "fail",
    most_failures: int = 100,
    dry_run: bool = False,
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report | SegmentPlan:
    """Segment volumes with a function, block by block; write a mag with one id per object.

    The function labels each block with a margin around it, in any numbers. Labels of neighbouring
    blocks that show the same object are joined, and every object gets one id across all blocks and
    files. Ids are 1 to the number of objects, in the order of blocks and of voxels; they do not
    depend on the number of workers or on the order of their results.

    The function is called once for each block, and its labels are kept in scratch files. So the
    result is consistent even if the function returns other labels a second time, as networks on
    GPUs do. The mag is published when it is complete. The same call resumes an interrupted one.

    Parameters
    ----------
    function : callable
        Function that receives one array per source, shape (x, y, z), or (c, x, y, z) for a source
        of several channels, and returns integer labels of the same size, shape (x, y, z); 0 is
        background. Arrays and labels include the halo. Parameters called ``box``, ``read_box`` and
        ``voxel_size`` receive the block, the same with its halo [voxels of the target's mag], and
        the edge lengths of such a voxel [nm].
    sources : str, path or sequence of them
        Mags to read, as in :func:`apply`. The first source determines the box.
    target : str or path
        The mag to write, such as ``dataset/cells/1``.
    halo : int or sequence of 3 int
        Margin that the function reads around its block along x, y, z [voxels]; about the diameter
        of an object. There is no margin beyond the box of the first source.
    chunks : int or sequence of 3 int
        Size of a block without its halo [voxels], any numbers. Blocks are counted from absolute
        voxel 0.
    match : {"overlap", "touch"}
        Rule by which labels of two blocks are joined. ``"overlap"`` compares the labels of both
        blocks on the two planes at their face, and joins two labels if their intersection over
        union exceeds ``min_overlap``. ``"touch"`` joins labels that touch across the face, which is
        right for connected components.
    min_overlap : float
        Limit for ``"overlap"``, from 0.5 up to but not including 1: above a half, a label has at
        most one partner at each face.
    connectivity : {6, 18, 26}
        Neighbors of a voxel for ``"touch"``: those that share a face (6), also an edge (18), also a
        corner (26).
    stitch : str
        Axes along which blocks are joined. With ``"xy"``, every section is segmented for itself.
    one_per_block : bool
        Do not join labels if the object would have two labels of one block. The best pairs are
        joined first: those of the highest intersection over union, or with ``"touch"``, of the most
        voxels that face each other; then in the order of blocks and voxels.
    max_voxels : int, optional
        Do not join labels if the object would have more voxels, in the same order. A single label
        may be larger.
    min_voxels : int
        Objects with fewer voxels become 0 and get no id.
    mask : str or path, optional
        A mag of any resolution. Labels where it is zero become zero before they are joined, and
        blocks without other voxels are not computed.
    where : BoundingBox or pair of corners, optional
        Box to segment: its lowest corner and the corner beyond its highest voxel, as absolute
        voxels of the mag of the result along x, y, z. Everything else becomes zero.
    skip_empty : bool
        Do not compute blocks for which the first source (with the halo) is zero.
    dtype : dtype_like, optional
        Type of the ids; by default uint32, or uint64 for more than 2^32 - 1 objects.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default a segmentation.
    table : str or path, optional
        File for a table of the objects, ``.csv`` or ``.parquet``: voxels, box and centroid of each,
        with the columns of :func:`label_statistics`.
    refused : str or path, optional
        File for a table of the pairs that ``one_per_block`` or ``max_voxels`` refused, ``.csv`` or
        ``.parquet``: the ids of both objects (0 for one that ``min_voxels`` drops), the score by
        which pairs are ordered, and the guard.
    extra : str or path, optional
        Mag for a second array, such as probabilities. The function then returns a pair: the labels,
        and an array of the same box, shape (x, y, z) or (c, x, y, z). It is stored without the
        halo, in its own type and number of channels, which must be the same for all blocks; it is
        zero where the mask is, and in blocks that are not computed. It is stored like the first
        source, and published before the ids; if no block is computed, it is not written.
        ``existing`` applies to both mags. Job arrays do not write it.
    setup : callable, optional
        Function without arguments that is called once in each process, for example to load a
        network. Its result is the first argument of ``function``; it never leaves the process, and
        is dropped at the end. An error of it ends the job at once, and names the host.
    batch : int
        Number of blocks that one call receives. With more than one, every argument of the function
        is a list with an item per block (``voxel_size`` too), and it returns a list of results. The
        last call of a task may receive fewer.
    concurrency : int, optional
        Number of calls at the same time in one process; by default any number, or 1 with ``setup``.
        Other blocks are read and written meanwhile.
    resources : dict, optional
        Resources that a worker of a dask cluster needs to call the function, such as ``{"GPU":
        1}``; see ``dask worker --resources``. Without a cluster they mean nothing.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists. An interrupted job is resumed. ``"overwrite"`` and ``"restart"``
        replace the mag and discard an interrupted job, since its function may have changed.
    token : str, optional
        Version of the function; a call with another token does not resume an interrupted job. The
        function itself is compared by its name and by the arguments bound by ``functools.partial``.
    retries : int
        Number of retries for a block after an error that may be temporary, as in :func:`apply`.
    on_error : {"fail", "fill"}
        Action if the function fails: end with an error that lists the blocks, after all others are
        done; or leave these blocks empty, and name them in the report.
    most_failures : int
        Number of failed tasks above which the job stops at once; up to it, all other tasks are
        completed first.
    dry_run : bool
        Return what would be done, and write nothing.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the mag, by default those of the first source. Raw blocks become LZ4HC.
        Files are sized to fit the box, at most as long as those of the first source, or 32 blocks
        if that is not WKW.
        {options}

    Returns
    -------
    Report or SegmentPlan
        The note of the report states the number of objects, their sizes, how many are cut by the
        box, how many pairs of labels were joined, and the time in the function.

    Raises
    ------
    BoundsError
        ``where`` lies outside the first source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A record or header is broken.
    IncompleteWriteError
        A source changed during the job.
    LockedError
        Another job is writing the mag.
    MissingError
        A source does not exist.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TaskFailedError
        The function failed in some blocks: the message lists them, and the results of the others
        are kept for the next call. The message ends with the traceback of the first failure.
    TypeError
        The function cannot be called with one array per source, or its labels are not integers.
    UnsupportedError
        A path leads out of the dataset, or a job array has a second target.
    ValueError
        An option is invalid, labels have another shape or are negative, or ``dtype`` is too small
        for the number of objects.

    Notes
    -----
    Blocks are compared with their six neighbours at faces. Objects that meet only across an edge or
    corner of blocks stay separate with ``"overlap"``. Joins around a loop of blocks can give two
    labels of one block the same id; the report counts them.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> from scipy import ndimage
    >>> folder = tempfile.mkdtemp()
    >>> voxels = np.zeros((64, 64, 64), np.uint8)
    >>> voxels[5:60, 10:20, 10:20] = 200
    >>> voxels[30:40, 40:50, 40:50] = 200
    >>> _ = wkwdask.write(f"{folder}/color/1", (0, 0, 0), voxels, file_len=2)
    >>> def bright(em):
    ...     return ndimage.label(em > 100)[0]
    >>> report = wkwdask.segment(
    ...     bright, f"{folder}/color/1", f"{folder}/cells/1", halo=8, chunks=32
    ... )
    >>> report.note.partition(";")[0]
    '2 objects of 1,000 to 5,500 voxels (median 3,250), 0 cut by the box, 2 pairs of labels joined'
    """
    from wkwdask.graphs.job_array import current_batch
    from wkwdask.graphs.runners import num_workers, run_plan, set_up_for

    if extra is not None and current_batch() is not None:
        raise UnsupportedError(
            "a job array writes one mag, and extra= is a second one; submit the job with --cluster "
            "slurm-allocation"
        )
    urls = [sources] if isinstance(sources, (str, PathLike)) else list(sources)
    applied = ApplyOptions(
        edges(halo, "halo", 0),
        mask,
        where,
        skip_empty,
        edges(chunks, "chunks", 1),
        dtype,
        1,
        make_options(options_of_target(target), **options),
        category,
        token,
        arguments_token(function),
        whole_number(retries, "retries", 0),
        whole_number(most_failures, "most_failures", 0),
        allow_external,
        function_calls(setup, concurrency),
        whole_number(batch, "batch", 1),
        resources,
    )
    segment_options = SegmentOptions(
        applied,
        match,
        min_overlap,
        connectivity,
        stitch,
        min_voxels,
        on_error,
        None if table is None else table_path(table),
        extra,
        Guards(one_per_block, max_voxels),
        None if refused is None else table_path(refused),
    )
    check_signature(function, len(urls), has_setup=setup is not None)
    plan = lay_out_segment(function, urls, target, segment_options, existing, num_workers())
    if dry_run:
        return describe(plan)
    with set_up_for(applied.calls):
        return run_plan(plan, force_space=force_space)
