"""What a conversion would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.api.conversion import convert
from wkwdask.verbs.conversion_plan import ConversionPlan, estimate_conversion

if TYPE_CHECKING:
    import os

    from wkwdask.api.conversion import Paths


def plan_convert(source: Paths, target: str | os.PathLike[str], **options: Any) -> ConversionPlan:
    """Tell what :func:`convert` would do with the same arguments, without writing anything: what ``wkwdask convert --dry-run`` prints.

    Parameters
    ----------
    source, target : str or path
        As for :func:`convert`.
    **options
        As for :func:`convert`.

    Returns
    -------
    ConversionPlan
        For each mag that is made: tasks, files, bytes, memory and time, by a sample of the voxels; its ``str()`` is for people.

    Raises
    ------
    BoundsError, ExistsError, FormatError, LockedError, MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`convert`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/stack.npy", np.ones((10, 20, 30), np.uint8))
    >>> plan = wkwdask.plan_convert(f"{folder}/stack.npy", f"{folder}/ds", voxel_size=(4, 4, 35))
    >>> plan.files, plan.mags[0].size
    (1, (30, 20, 10))
    """
    from wkwdask.graphs.planning import planning
    from wkwdask.graphs.runners import num_workers

    with planning() as planned:
        convert(source, target, **options)
    return estimate_conversion(planned.jobs, planned.exports, planned.pyramids, num_workers())
