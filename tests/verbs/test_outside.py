"""Images whose documents or links name arrays of another image: no verb changes the other one."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import dask
import pytest
from verbs.all_verbs import LIMITS, VERBS, Bench
from verbs.expected_failures import EXPECTED_FAILURES, marks
from verbs.foreign_forms import FOREIGN
from verbs.forms import needs
from verbs.stored_path import stored_path

import wkwdask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from verbs.forms import Form

pytestmark = pytest.mark.checks_more

CHANGING = (
    "write_region",
    "clear_region",
    "pyramid",
    "pyramid_box",
    "pyramid_update",
    "upsample",
    "rechunk",
    "compress",
    "rm",
    "repair",
    "repair_by_method",
    "rm_mags",
    "repair_outside",
    "quarantine",
)
"""Verbs that change an image in its place, and those of this module."""


@dataclass(frozen=True)
class Outside:
    """A way to name the levels of another image."""

    name: str
    form: Form
    lead: Callable[[Path, Path], None]
    """Make an image whose levels are those of another one: ``lead(other, image)``."""

    def __str__(self) -> str:
        return self.name


def _rewritten(name: str, *keys: str) -> Callable[[Path, Path], None]:
    """Return the function that copies a document and puts the path of the other folder before its
    keys."""

    def lead(other: Path, image: Path) -> None:
        image.mkdir()
        text = (other / name).read_text()
        for key in keys:
            text = text.replace(f'"{key}"', f'"../{other.name}/{key}"')
        assert "../" in text
        (image / name).write_text(text)

    return lead


def _n5_levels(other: Path, image: Path) -> None:
    image.mkdir()
    levels = [
        {
            "path": f"../{other.name}/s{n}",
            "transform": {"axes": ["z", "y", "x"], "scale": [8.0 * n, 4.0 * n, 4.0 * n]},
        }
        for n in (1, 2)
    ]
    (image / "attributes.json").write_text(
        json.dumps({"multiscales": [{"name": "image", "datasets": levels}]})
    )


def _linked(other: Path, image: Path) -> None:
    """Copy the documents of the image, and link its levels."""
    image.mkdir()
    for path in other.iterdir():
        if path.is_dir():
            (image / path.name).symlink_to(path)
        else:
            (image / path.name).write_bytes(path.read_bytes())


_FORMS = {form.name: form for form in FOREIGN}
WAYS = (
    Outside("scale-key", _FORMS["rounded-down-scales"], _rewritten("info", "4_4_8", "32_32_32")),
    Outside("linked-scale", _FORMS["rounded-down-scales"], _linked),
    Outside("dataset-path", _FORMS["rounded-down"], _rewritten("zarr.json", "0", "1")),
    Outside("linked-array", _FORMS["rounded-down"], _linked),
    Outside("n5-path", _FORMS["n5-viewer"], _n5_levels),
    Outside("linked-n5", _FORMS["n5-viewer"], _linked),
)


class OutsideBench(Bench):
    """Bench whose image has the levels of another one."""

    def __init__(self, way: Outside, folder: Path, **limits: object) -> None:
        super().__init__(way.form, folder, 3, **limits)
        self.way = way
        self.other = stored_path(self.form.url(self.root, "other"))
        self.form.save(self.case.array, self.form.url(self.root, "other"), self.case.offset)

    @cached_property
    def image(self) -> str:
        url = self.form.url(self.root, "image")
        self.way.lead(self.other, stored_path(url))
        return url


def _rm_mags(bench):
    wkwdask.rm(bench.image, mags=["8-8-4"])


def _damage(bench):
    path = max(
        (path for path in bench.other.rglob("*") if path.is_file() and path.suffix != ".json"),
        key=lambda path: (len(path.parts), str(path)),
    )
    path.write_bytes(path.read_bytes()[:-3])


def _repair_outside(bench):
    wkwdask.repair(bench.image, method="max", older_than=0, rebuild_differing=True)


def _quarantine(bench):
    wkwdask.repair(bench.image, quarantine=True, older_than=0)


_OWN = {"rm_mags": _rm_mags, "repair_outside": _repair_outside, "quarantine": _quarantine}


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, id=f"{name}-{way}", marks=[*needs(way.form), *marks(name, way)])
        for way in WAYS
        for name in CHANGING
    ],
)
def test_the_other_image_is_unchanged(name, way, tmp_path):
    bench = OutsideBench(way, tmp_path, **LIMITS.get(name, {}))
    if name in ("repair_outside", "quarantine"):
        _damage(bench)
    before = {path: path.read_bytes() for path in bench.other.rglob("*") if path.is_file()}
    with contextlib.suppress(Exception):  # most are refused
        {**VERBS, **_OWN}[name](bench)
    assert {path: path.read_bytes() for path in bench.other.rglob("*") if path.is_file()} == before


def test_the_table_of_failures_names_cells():
    ways = {way.name for way in WAYS}
    assert {name for name, form in EXPECTED_FAILURES if form in ways} <= set(CHANGING)
