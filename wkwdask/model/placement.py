"""Names of levels where nothing can be renamed: a level is written under a name that contains its
job, and the document that lists it switches to that name.

People, settings and locks know the level by its plain name.
"""

from __future__ import annotations

import re

_JOB = re.compile(r"\.\d{8}T\d{6}-[0-9a-f]{8}$")
_ANY_JOB = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}(?![^/])")


def placed_name(name: str, job: str) -> str:
    """Return the name of a level, or the path of its folder, that a job writes.

    Examples
    --------
    >>> placed_name("8_8_8", "20261127T093000-0123abcd")
    '8_8_8.20261127T093000-0123abcd'
    >>> placed_name(_, "20261128T093000-4567abcd")
    '8_8_8.20261128T093000-4567abcd'
    >>> plain_name(_)
    '8_8_8'
    """
    return f"{plain_name(name)}.{job}"


def plain_name(name: str) -> str:
    """Return the name of a level, or the path of its folder, without the job that wrote it."""
    return _JOB.sub("", name)


def job_in(name: str) -> str:
    """Return the job that wrote a level of some name; empty for a plain name."""
    found = _JOB.search(name)
    return "" if found is None else found[0][1:]


def job_of_folder(path: str) -> str:
    """Return the job in whose folder, or in whose new level, a folder lies; empty for another one.

    Examples
    --------
    >>> job_of_folder("em/.wkwdask-job-20261127T093000-0123abcd/0-1/scratch")
    '20261127T093000-0123abcd'
    """
    found = _ANY_JOB.findall(path)
    return found[-1] if found else ""
