"""Every verb on every format, through public functions and commands, compared with numpy."""

from __future__ import annotations

import contextlib
import os

import dask
import pytest
from support import toy_format
from support.bucket_faults import empty_bucket, unreliable_answers
from support.buckets import s3_bucket
from verbs.all_verbs import LIMITS, VERBS, Bench
from verbs.expected_failures import marks
from verbs.forms import FORMS, needs

import wkwdask
from wkwdask.formats import registry

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
# and one in memory
SEEDS = {"nightly": 300, "few": 1}.get(PROFILE, 2)
FIRST_SEEDS = 9
"""Cells begin with seeds 1 to 9 in turn, so that a verb has another geometry for each format; tests
in memory take seed 0, which is one voxel thick."""

_PRECOMPUTED = frozenset({"precomputed", "precomputed-sharded"})
UNSUPPORTED = {
    # raw chunks are cut off at the end of a volume, and have no header that states their shape
    "zarr_in_place": _PRECOMPUTED,
}
"""Formats that a verb refuses, and why."""

_OF_WKW = frozenset({"wkw"})

_LAYERS = frozenset(form.name for form in FORMS if form.name.startswith("layer-"))

_ARRAYS = frozenset({"zarr-2", "zarr-3"})
_OF_ARRAYS = frozenset(
    {
        "read",
        "open_array",
        "sample",
        "xarray",
        "info",
        "write_region",
        "clear_region",
        "rechunk",
        "rechunk_shards",
        "compress",
        "copy",
        "copy_box",
        "copy_moved_box",
        "rm",
        "convert_to_wkw",
        "convert_plan",
        "verify",
        "manifest",
        "diff",
        "label_statistics",
        "meshes",
        "histogram",
        "contrast",
        "apply",
        "components_to_wkw",
        "segment_to_wkw",
    }
)
"""Verbs for a single array, which has no levels. New images are OME-NGFF; the other jobs read an
array as these do."""

_OF_DOCUMENTS = frozenset(
    {
        "open_array",
        "xarray",
        "info",
        "save",
        "save_by_url",
        "write_region",
        "create",
        "apply",
        "pyramid",
        "upsample",
        "rechunk",
        "copy",
        "copy_box",
        "copy_moved_box",
        "rm",
        "convert_to_wkw",
        "convert_from_wkw",
        "verify",
        "repair",
        "components",
        "segment",
    }
)
"""Verbs for OME-NGFF 0.6. It has the arrays of 0.5 and other documents; the other verbs read and
write these arrays alone."""

EMPTY = {
    # the verb without this ending has it; copy makes WKW of WKW
    **dict.fromkeys((name for name in VERBS if name.endswith("_to_wkw")), _OF_WKW),
    # each chunk is a file
    "rechunk_shards": frozenset(form.name for form in FORMS if form.other_files is None),
    "levels": frozenset(form.name for form in FORMS if not form.levels),
    # another job has stored the voxels since
    "resume": frozenset({"layer-precomputed-switched"}),
    # a layer of another format than WKW is made by copy
    "convert_from_wkw": _OF_WKW | _LAYERS,
    "convert_levels_to_wkw": _OF_WKW,
    "convert_plan": _OF_WKW,
    # some are Zarr, and Zarr has no codec for chunks of the toy format
    "zarr_in_place": frozenset({"ngff-0.4", "ngff-0.5", "ngff-thirds", "toy"}) | _LAYERS,
}
_SOME = ((_OF_ARRAYS, _ARRAYS), (_OF_DOCUMENTS, frozenset({"ngff-0.6"})))
EMPTY = {
    name: EMPTY.get(name, frozenset()).union(
        *(forms for verbs, forms in _SOME if name not in verbs)
    )
    for name in VERBS
}
"""Cells without a test."""


NEEDS_FILES = frozenset(
    {"zarr_in_place", "serve", *(name for name in VERBS if name.startswith("convert_levels"))}
)
"""Verbs that need a path on a file system, since zarr-python opens the files itself; conversions
have tests in memory without levels."""


@pytest.fixture(autouse=True)
def _toy_format(monkeypatch):
    monkeypatch.setattr(registry, "_added", [toy_format.FORMAT])


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def cells(*, supported=True):
    cells = [(name, form) for name in VERBS for form in FORMS if form.name not in EMPTY[name]]
    return [
        pytest.param(
            name, form, id=f"{name}-{form}", marks=[*needs(form, name), *marks(name, form)]
        )
        for name, form in cells
        if (form.name not in UNSUPPORTED.get(name, ())) == supported
    ]


@pytest.mark.checks_more
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "form"), cells())
def test_verb(name, form, tmp_path):
    first = 1 + (list(VERBS).index(name) + FORMS.index(form)) % FIRST_SEEDS
    for seed in range(first, first + SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        VERBS[name](Bench(form, folder, seed, **LIMITS.get(name, {})))


SEED_IN_S3 = 51
"""Seed of a small image that begins near voxel 0: arrays that begin there have few chunks, each of
which is one request."""
IN_BUCKETS = frozenset(
    form.name
    for form in FORMS
    if form.name.startswith(("precomputed", "ngff", "wkw", "layer-", "n5"))
)
"""Forms that are written in buckets."""
REPLACING = frozenset({"save", "pyramid_box", "pyramid_update", "upsample", "compress", "rm"})
"""Verbs that replace, move or remove levels, which in buckets needs documents that name each level:
those of N5 do not."""


def _bucket_cells(*, supported):
    cells = [
        (name, form)
        for name in VERBS
        if name not in NEEDS_FILES
        for form in FORMS
        # the levels of a container are found by a listing, and the second half replaces one
        if (name, form.name) != ("rechunk", "n5")
    ]
    return [
        pytest.param(
            name, form, id=f"{name}-{form}", marks=[*needs(form, name), *marks(name, form)]
        )
        for name, form in cells
        if form.name not in EMPTY[name] | UNSUPPORTED.get(name, frozenset()) | {"toy"}
        and (form.name in IN_BUCKETS and not (form.name == "n5" and name in REPLACING)) == supported
    ]


def _bucket(name, form):
    return f"memory://{name}-{form}"


@pytest.mark.parametrize(("name", "form"), _bucket_cells(supported=True))
@pytest.mark.parametrize("is_reliable", [True, False], ids=["reliable", "unreliable"])
def test_verb_in_a_bucket(name, form, tmp_path, is_reliable):
    with empty_bucket(), contextlib.nullcontext() if is_reliable else unreliable_answers(seed=1):
        VERBS[name](Bench(form, tmp_path, 0, _bucket(name, form), **LIMITS.get(name, {})))


@pytest.fixture(scope="module")
def s3():
    with s3_bucket() as bucket, bucket.reached():
        yield bucket


def _bench_in_s3(bucket, name, form, folder):
    url = f"{bucket.url}/{name}-{form}"
    return Bench(form, folder, SEED_IN_S3, url, **LIMITS.get(name, {}))


@pytest.mark.one_in(5)
@pytest.mark.long
@pytest.mark.needs("obstore")
@pytest.mark.parametrize(("name", "form"), _bucket_cells(supported=True))
def test_verb_in_s3(name, form, tmp_path, s3):
    VERBS[name](_bench_in_s3(s3, name, form, tmp_path))


@pytest.mark.one_in(5)
@pytest.mark.long
@pytest.mark.needs("obstore")
@pytest.mark.parametrize(("name", "form"), _bucket_cells(supported=False))
def test_what_s3_does_not_hold_is_refused(name, form, tmp_path, s3):
    with pytest.raises(wkwdask.UnsupportedError, match=r"bucket|renamed"):
        VERBS[name](_bench_in_s3(s3, name, form, tmp_path))


@pytest.mark.parametrize(("name", "form"), _bucket_cells(supported=False))
def test_what_buckets_do_not_hold_is_refused(name, form, tmp_path):
    with empty_bucket(), pytest.raises(wkwdask.UnsupportedError, match=r"bucket|renamed"):
        VERBS[name](Bench(form, tmp_path, 0, _bucket(name, form), **LIMITS.get(name, {})))


@pytest.mark.parametrize(("name", "form"), cells(supported=False))
def test_unsupported_cell_is_refused(name, form, tmp_path):
    with pytest.raises((wkwdask.UnsupportedError, ValueError)):
        VERBS[name](Bench(form, tmp_path, 0, **LIMITS.get(name, {})))


def test_tables_name_verbs_and_formats():
    for table in (UNSUPPORTED, EMPTY):
        assert set(table) <= set(VERBS)
        assert set().union(*table.values()) <= {form.name for form in FORMS}
