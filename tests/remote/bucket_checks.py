"""What must hold of an image in a bucket after a fault: old or new is visible, and the same call
completes it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from remote.bucket_processes import image_in, new_image, run, start_image, visible
from support.proxy import After, Answer, Cut, Silence, Stale

import wkwdask
from wkwdask.errors import WkwDaskError
from wkwdask.store.objects import remote
from wkwdask.store.store import store_at

FAULTS = {
    "500": lambda: Answer(500),
    "503": lambda: Answer(503),
    "429": lambda: Answer(429),
    "done, 500": lambda: After(Answer(500)),
    "done, dropped": lambda: After(Cut()),
    "done, silence": lambda: After(Silence()),
    "done twice": lambda: After(),
    "short body": lambda: Cut(5),
    "stale": Stale,
    "409": lambda: Answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"),
}
"""Faults of one request, which the proxy injects."""


class Start(NamedTuple):
    """The image on which a job works, and what readers see before and after it."""

    name: str
    objects: dict[str, bytes]
    before: object
    after: object


def make_start(name, folder):
    """Make the image of a job, and run the job."""
    start_image(name, folder)
    store = store_at(folder)
    names = [
        f"{above}/{each}".removeprefix(f"{folder}/")
        for above, _, found in store.walk()
        for each in found
    ]
    objects = dict(zip(names, store.read_whole(names, 1 << 24), strict=True))
    before = visible(folder)
    run(name, folder)
    return Start(name, objects, before, visible(folder))


def problems_of(start, folder, when, *, is_cleaned=False):
    """Yield what is wrong with what a job has left; complete it, and clean up."""
    if is_cleaned:
        clean(folder)
    remote._recent.clear()
    seen = visible(folder)
    first, new = start.after
    # the levels of a new image appear one job after the other, each of them whole
    is_begun = seen[0] == first and (seen[1] or {}).items() <= (new or {}).items()
    if seen not in (start.before, start.after) and not is_begun:
        yield f"{when}: a mixture is visible"
    if is_cleaned and (left := records_in(folder)):
        yield f"{when}: clean has left {left}"
    with contextlib.suppress(WkwDaskError):  # of a removal that is complete
        run(start.name, folder)
    if visible(folder) != start.after:
        yield f"{when}: the same call does not complete it"
    clean(folder)
    if visible(folder) != start.after:
        yield f"{when}: clean removes what is listed"


def clean(folder):
    """Remove what dead jobs have left of both images."""
    for image in (image_in(folder), new_image(folder)):
        with contextlib.suppress(wkwdask.MissingError):
            wkwdask.clean(image, grace_seconds=0)


def records_in(folder):
    """List what jobs keep while they run; empty if there is finished work, which can be resumed."""
    found = [
        f"{above}/{name}".removeprefix(folder)
        for above, _, names in store_at(folder).walk()
        for name in names
        if ".wkwdask-job-" in f"{above}/{name}" or "-lock" in name
    ]
    return [] if any("/journal-" in path for path in found) else found
