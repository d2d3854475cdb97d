"""Your own function as a job."""

from __future__ import annotations

import operator
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import StorageKeywords, storage_options
from wkwdask.errors import TaskFailedError
from wkwdask.formats.opening import format_of_target
from wkwdask.formats.registry import storage_records
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import vec3
from wkwdask.model.options import check
from wkwdask.runs.job import FlatJob, is_final, user_trace
from wkwdask.verbs.apply import ApplyOptions, lay_out_apply, make_reduction, make_trial
from wkwdask.verbs.apply_job import ReduceWork, check_signature, function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.runs.job import Task


@storage_options(*storage_records())
def apply(
    function: Callable[..., Any],
    sources: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: str | PathLike[str] | None = None,
    *,
    halo: int | Sequence[int] = 0,
    mask: str | PathLike[str] | None = None,
    where: BoundingBox | str | Sequence[Any] | None = None,
    skip_empty: bool = False,
    chunks: int | Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = None,
    channels: int = 1,
    category: Literal["color", "segmentation"] | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    combine: Callable[[Any, Any], Any] = operator.add,
    token: str | None = None,
    retries: int = 2,
    most_failures: int = 100,
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Any:
    """Apply a function to volumes, brick by brick: the result becomes a mag, or is combined to one value.

    Each task reads what it needs itself, calls the function and writes what it gives. It runs on threads, or on the active dask Client; the result is the
    same. The mag appears when it is complete. What an interrupted call finished is kept: the same call goes on from there.

    Before anything is planned, the function is called once for a small box in the middle, and its result is not kept: mistakes in it show at once.

    Parameters
    ----------
    function : callable
        Gets one array per source and gives an array of the same voxels: shape (x, y, z), or (c, x, y, z) where a source, or the result, has several
        channels. Arrays hold a halo where one is asked for, and so does the result. A function with a parameter ``box`` also gets the box that it computes
        [voxels of the target's mag].
    sources : str, path or sequence of them
        Mags that are read; a layer stands for its finest mag. The first one gives the box. A coarser mag than the target's comes with its voxels repeated, a
        finer one with as many voxels as the target's span (zeros beyond its box). What :func:`convert` imports (sections, ``.npy``, HDF5, Zarr...) can be a
        source too: it is mag 1, and its first voxel is voxel 0.
    target : str or path, optional
        The mag that is made, such as ``dataset/layer/1``. Without one, what the function gives (anything that can be pickled) is combined to one value.
    halo : int or sequence of 3 int
        How far the function looks beyond what it computes, along x, y, z [voxels]. Where the first source ends, so do the arrays: the function treats that
        border as it does that of a whole array.
    mask : str or path, optional
        A mag of any resolution: voxels where it is zero become zero, and bricks without any other are not computed. Only with a target: without one, let the
        mask be one of the sources.
    where : BoundingBox, str or sequence, optional
        What to compute: x, y, z, width, height, depth [voxels of mag 1]. Everything else becomes zero.
    skip_empty : bool
        Bricks for which the first source (with the halo) is zero become zero and are not computed: for functions that make zeros of zeros.
    chunks : int or sequence of 3 int, optional
        What one call computes [voxels], powers of two; by default cubes such that all arrays take up to 32 MB.
    dtype : dtype_like, optional
        Type of one channel of the result; by default that of the first source. Results are only cast where nothing can be lost.
    channels : int
        Channels of the result.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more are a segmentation.
    existing : {"error", "resume", "overwrite"}
        What to do if the mag exists. An interrupted job is resumed, except with ``"overwrite"``, which discards it.
    combine : callable
        Without a target: makes one value of two, which come in the order of their bricks.
    token : str, optional
        A name of the function's version: a call with another one does not go on with an interrupted job. The function itself is compared by its name, and
        by the arguments that a ``functools.partial`` binds.
    retries : int
        How often the function is tried again for a brick for which it failed with an error that may pass, such as OSError, MemoryError or RuntimeError.
        TypeError, ValueError, NameError and the like depend on the code and the data alone: they are not tried again.
    most_failures : int
        With more failed tasks than these the job ends at once; else when all others are done.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        How the mag is stored; what is not given is as in the first source. Raw blocks become LZ4HC, and files suit the box, at most as long as those of the
        first source, or 32 blocks where that is no WKW.
        {options}

    Returns
    -------
    Report or object
        Without a target the combined value, None where nothing was computed.

    Raises
    ------
    BoundsError
        ``where`` lies outside of the first source.
    ExistsError
        The mag exists and ``existing="error"``.
    FormatError
        A record or header is broken.
    LockedError
        Another job is writing the mag.
    MissingError
        A source is not there.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TaskFailedError
        The function failed when it was tried: nothing is written. Or some tasks failed: the message lists them, and what the others made is kept for the
        next call. The message ends with the traceback of the first failure.
    TypeError
        The function cannot be called with one array per source, its result cannot be stored, or WKW has no voxel type for the dtype.
    UnsupportedError
        A path leads out of the dataset.
    ValueError
        An option is invalid, mags cannot be read together, or the result has another shape.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64), file_len=2)
    >>> report = wkwdask.apply(lambda ids: ids > 1000, f"{folder}/1", f"{folder}/mask/1", dtype="uint8")
    >>> int(wkwdask.read(f"{folder}/mask/1").sum()) == 64**3 - 1001
    True
    >>> int(wkwdask.apply(np.max, f"{folder}/1", combine=max)) == 64**3 - 1
    True
    """
    from dask.base import tokenize

    from wkwdask.graphs.runners import num_workers, run_plan, run_work

    urls = [sources] if isinstance(sources, (str, PathLike)) else list(sources)
    wanted = ApplyOptions(
        _vec3(halo, "halo"), mask, None if where is None else BoundingBox.parse(where), skip_empty, None if chunks is None else _vec3(chunks, "chunks"),
        dtype, channels, check(format_of_target(target).options, **options), category, token,
        tokenize(function.args, function.keywords) if isinstance(function, partial) else None, retries, most_failures, allow_external,
    )  # fmt: skip
    if target is None and (wanted.halo != (0, 0, 0) or mask is not None):
        raise ValueError("halo= and mask= go with a target: without one, voxels in a halo or outside a mask would count; a mask can be one of the sources")
    _try(make_trial(function, urls, target, wanted))
    if target is not None:
        return run_plan(lay_out_apply(function, urls, target, wanted, existing, num_workers()))
    application = make_reduction(function, urls, wanted, num_workers())
    return run_work(ReduceWork(application, combine, most_failures))


def _vec3(value: int | Sequence[int], name: str) -> tuple[int, int, int]:
    return (value, value, value) if isinstance(value, int) else vec3(value, name)


def _try(trial: Task) -> None:
    """Call a function once where the tasks of a job will call it; in a batch job, only its signature is checked."""
    from wkwdask.graphs.job_array import current_batch
    from wkwdask.graphs.runners import run_job

    name = function_name(trial.spec.application.function)
    check_signature(trial.spec.application.function, len(trial.spec.application.sources))
    if current_batch() is not None or trial.spec.application.plan.box.is_empty:
        return
    try:
        run_job(FlatJob(lambda: iter((trial,)), 1, lambda *_: None), f"trying {name}")
    except Exception as error:
        if not is_final(error):
            error.exit_code = 1  # type: ignore[attr-defined]  # no other task was done
            raise
        trace = user_trace(error)
        raise TaskFailedError(
            f"{name} failed in a trial, before anything was written: {type(error).__name__}: {error} ({error.__notes__[0]})" + (f"\n{trace}" if trace else "")
        ) from error
