"""Apply a user's function to volumes, block by block."""

from __future__ import annotations

import operator
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import (
    StorageKeywords,
    arguments_token,
    edges,
    function_calls,
    storage_options,
)
from wkwdask.errors import TaskFailedError
from wkwdask.formats.opening import options_of_target
from wkwdask.formats.registry import storage_records
from wkwdask.geometry.mag import whole_number
from wkwdask.model.options import make_options
from wkwdask.runs.job import FlatJob, is_final, user_trace
from wkwdask.store.looks import looking
from wkwdask.verbs.apply import ApplyOptions, lay_out_apply, make_reduction, make_trial
from wkwdask.verbs.apply_job import ReduceWork, check_signature, function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.job import Task


@storage_options(*storage_records())
@looking()
def apply(
    function: Callable[..., Any],
    sources: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: str | PathLike[str] | None = None,
    *,
    halo: int | Sequence[int] = 0,
    mask: str | PathLike[str] | None = None,
    where: BoundingBox | Sequence[Sequence[int]] | None = None,
    skip_empty: bool = False,
    chunks: int | Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = None,
    channels: int = 1,
    category: Literal["color", "segmentation"] | None = None,
    setup: Callable[[], Any] | None = None,
    batch: int = 1,
    concurrency: int | None = None,
    resources: Mapping[str, float] | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    combine: Callable[[Any, Any], Any] = operator.add,
    token: str | None = None,
    retries: int = 2,
    most_failures: int = 100,
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Any:
    """Apply a function to volumes, brick by brick; write a mag, or combine results to one value.

    Each task reads its input, calls the function and writes the result. Tasks run on threads, or on
    the active dask Client, with the same result. The mag is published when it is complete. The same
    call resumes an interrupted one and keeps its finished work.

    The function is first tried on a small box in the middle of the volume, and its result is
    discarded: mistakes show before the job starts.

    Parameters
    ----------
    function : callable
        Function that receives one array per source and returns an array of the same size: shape (x,
        y, z), or (c, x, y, z) if a source or the result has several channels. With ``halo``, arrays
        and result include the halo. Parameters called ``box``, ``read_box`` and ``voxel_size``
        receive the box to compute, the same with its halo [voxels of the target's mag], and the
        edge lengths of such a voxel [nm].
    sources : str, path or sequence of them
        Mags to read; a layer stands for its finest mag. The first source determines the box. Voxels
        of a coarser mag than the target's are repeated; a finer mag is passed at its own
        resolution, with zeros beyond its box. Sources of :func:`convert` (sections, ``.npy``, HDF5,
        Zarr...) are accepted too: they are mag 1 and begin at voxel 0, or where an
        HDF5 file of CREMI states.
    target : str or path, optional
        The mag to write, such as ``dataset/layer/1``. Without it, the return values of the function
        (any picklable object) are combined to one value.
    halo : int or sequence of 3 int
        Margin that the function reads around its box along x, y, z [voxels]. There is no margin
        beyond the box of the first source: the function sees the border of the array there.
    mask : str or path, optional
        A mag of any resolution. Voxels where it is zero become zero, and bricks without other
        voxels are not computed. Needs a target; without one, pass the mask as a source.
    where : BoundingBox or pair of corners, optional
        Box to compute: its lowest corner and the corner beyond its highest voxel, as absolute
        voxels of the mag of the result along x, y, z. Everything else becomes zero.
    skip_empty : bool
        Do not compute bricks for which the first source (with the halo) is zero; they become zero.
        For functions that return zeros for zeros.
    chunks : int or sequence of 3 int, optional
        Size of the box that one call computes [voxels]: whole chunks of the target. By
        default cubes for which all arrays together take up to 32 MB.
    dtype : dtype_like, optional
        Type of one channel of the result; by default that of the first source. Results are cast
        only if no value can change.
    channels : int
        Number of channels of the result.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more
        are a segmentation.
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
    combine : callable
        Function that combines two values to one if there is no target; values come in the order of
        their bricks.
    token : str, optional
        Version of the function; a call with another token does not resume an interrupted job. The
        function itself is compared by its name and by the arguments bound by ``functools.partial``.
    retries : int
        Number of retries for a brick after an error that may be temporary, such as OSError,
        MemoryError or RuntimeError. Errors that depend only on code and data, such as TypeError,
        ValueError and NameError, are not retried.
    most_failures : int
        Number of failed tasks above which the job stops at once; up to it, all other tasks are
        completed first.
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
    Report or object
        Without a target, the combined value; None if no brick was computed.

    Raises
    ------
    BoundsError
        ``where`` lies outside the first source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A record or header is broken.
    LockedError
        Another job is writing the mag.
    MissingError
        A source does not exist.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TaskFailedError
        The function failed in its trial, and nothing was written. Or some tasks failed: the message
        lists them, and the results of the others are kept for the next call. The message ends with
        the traceback of the first failure.
    TypeError
        The function cannot be called with one array per source, its result cannot be stored, or WKW
        has no voxel type for the dtype.
    UnsupportedError
        A path leads out of the dataset.
    ValueError
        An option is invalid, the mags cannot be read together, or the result has another shape.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1",
    ...     (0, 0, 0),
    ...     np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64),
    ...     file_len=2,
    ... )
    >>> report = wkwdask.apply(
    ...     lambda ids: ids > 1000, f"{folder}/1", f"{folder}/mask/1", dtype="uint8"
    ... )
    >>> int(wkwdask.read(f"{folder}/mask/1").sum()) == 64**3 - 1001
    True
    >>> int(wkwdask.apply(np.max, f"{folder}/1", combine=max)) == 64**3 - 1
    True
    """
    from wkwdask.graphs.runners import num_workers, run_plan, run_work, set_up_for

    urls = [sources] if isinstance(sources, (str, PathLike)) else list(sources)
    apply_options = ApplyOptions(
        edges(halo, "halo", 0),
        mask,
        where,
        skip_empty,
        None if chunks is None else edges(chunks, "chunks", 1),
        dtype,
        whole_number(channels, "channels", 1),
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
    if target is None and (apply_options.halo != (0, 0, 0) or mask is not None):
        raise ValueError(
            "halo= and mask= need a target: without one, voxels in a halo or outside a mask would "
            "count; pass the mask as one of the sources"
        )
    if target is None:
        of_a_mag = {
            "batch=": batch != 1,
            "category=": category is not None,
            "channels=": channels != 1,
            "dtype=": dtype is not None,
            f'existing="{existing}"': existing != "error",
            "token=": token is not None,
            **{f"{name}=": value is not None for name, value in options.items()},
        }
        if unused := [name for name, is_given in of_a_mag.items() if is_given]:
            raise ValueError(f"of no use without a target: {', '.join(unused)}")
    with set_up_for(apply_options.calls):
        _try(make_trial(function, urls, target, apply_options), resources)
        if target is not None:
            return run_plan(
                lay_out_apply(function, urls, target, apply_options, existing, num_workers()),
                force_space=force_space,
            )
        reduction = make_reduction(function, urls, apply_options, num_workers())
        return run_work(ReduceWork(reduction, combine, most_failures, resources))


def _try(trial: Task, resources: Mapping[str, float] | None) -> None:
    """Call a function once, on a worker that will run the tasks. In a batch job, only check its
    signature."""
    from wkwdask.graphs.job_array import current_batch
    from wkwdask.graphs.runners import run_job

    application = trial.spec.application
    name, has_setup = function_name(application.function), application.calls.setup is not None
    check_signature(application.function, len(application.sources), has_setup=has_setup)
    if current_batch() is not None or application.plan.box.is_empty:
        return
    job = FlatJob(lambda: iter((trial,)), 1, lambda *_: None)
    try:
        run_job(job, f"trying {name}", resources=resources)
    except Exception as error:
        if not is_final(error):
            error.exit_code = 1  # type: ignore[attr-defined]  # no other task was done
            raise
        trace = user_trace(error)
        raise TaskFailedError(
            f"{name} failed in a trial, before anything was written: {type(error).__name__}: "
            f"{error} ({error.__notes__[0]})" + (f"\n{trace}" if trace else "")
        ) from error
