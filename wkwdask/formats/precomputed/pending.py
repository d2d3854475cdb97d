"""Scales between the two steps of their publishing: their folder is the new one already, and ``info`` still describes the old one.

That lasts for a moment, or, after a job that was killed right there, until another job ends what it began. What is read meanwhile would be zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import ReplacedError
from wkwdask.formats.precomputed.info import FILE_NAME
from wkwdask.formats.precomputed.info_edits import with_scales
from wkwdask.formats.precomputed.metadata_edit import InfoEdit
from wkwdask.formats.publication import read_publication
from wkwdask.formats.record_paths import RecordPaths, job_folders
from wkwdask.store import files
from wkwdask.store.provenance import read_provenance

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import VolumeInfo


def check_published(volume: str, folder: str, info: VolumeInfo) -> None:
    """Make sure that ``info`` describes what is in the folder of a scale."""
    real = files.realpath(folder)
    for root, _ in job_folders(files.realpath(volume)):
        publication = read_publication(RecordPaths(root))
        if publication is None or not isinstance(publication.edit, InfoEdit) or real not in (scale for _, scale in publication.mags):
            continue
        is_there = read_provenance(real).get("publication") == publication.mark
        is_gone = not files.lexists(real)  # between two renames, where there is no swapping
        if is_gone or (is_there and with_scales(info.document, publication.edit.scales) != info.document):
            what = f"is being replaced, and {volume}/{FILE_NAME} describes the old one still"
            raise ReplacedError(f"{folder}: {what}; open it in a moment, or make the call again that was killed while it did so (wkwdask status names it)")
