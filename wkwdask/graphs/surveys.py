"""Surveys run to their end: by threads or by a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.graphs.runners import run_job
from wkwdask.ids.label_statistics import make_label_survey
from wkwdask.ids.survey import SurveyJob
from wkwdask.runs.tolerant import NO_RESULT, Tolerance

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.ids.survey import Survey
    from wkwdask.model.volume import Volume

_MOST_FAILURES = 100


def run_survey(survey: Survey, title: str) -> Any:
    """Find something out about a volume.

    Parameters
    ----------
    survey : Survey
        What.
    title : str
        What the progress is called.

    Returns
    -------
    object
        What its findings give in the end.

    Raises
    ------
    TaskFailedError
        Some regions could not be read; the message lists them.
    """
    job = SurveyJob(survey)
    run_job(job, title, tolerance=Tolerance(_MOST_FAILURES, lists_always=True, ending=NO_RESULT))
    return job.findings.found()


def count_labels(volume: Volume, box: BoundingBox | None = None, *, ignore_zero: bool = True) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Count the voxels of each label of a volume.

    Parameters
    ----------
    volume : Volume
        The labels: integers, one channel.
    box : BoundingBox, optional
        What counts [voxels of the mag]; by default all.
    ignore_zero : bool
        Whether voxels with the label 0 do not count.

    Returns
    -------
    labels : ndarray, shape (n,)
        The labels that there are, in their order.
    counts : ndarray of int64, shape (n,)
        Voxels of each.
    """
    survey = make_label_survey(volume, None, volume.box if box is None else box, ignore_zero=ignore_zero)
    rows = run_survey(survey, f"labels of {volume.name}").sorted()
    return rows.labels, rows.counts
