"""Every verb on every format, through public functions and commands, compared with numpy."""

from __future__ import annotations

import os

import dask
import pytest
from support import toy_format
from support.inside import empty_memory
from verbs.all_verbs import VERBS, Bench
from verbs.forms import FORMS

import wkwdask
from wkwdask.formats import registry

GEOMETRIES = {"nightly": 300, "few": 1}.get(os.environ.get("HYPOTHESIS_PROFILE", "ci"), 3)

NOT_THERE_YET = {
    "compress": frozenset({"precomputed-sharded"}),  # whose chunks are compressed as the sharding says
    "upsample": frozenset({"precomputed", "precomputed-sharded", "n5"}),  # their mags count from the finest that is there
    "zarr_in_place": frozenset({"precomputed", "precomputed-sharded"}),
}
"""Formats that a verb does not take yet: it says so."""

_OF_WKW = frozenset({"wkw"})

EMPTY = {
    **dict.fromkeys((name for name in VERBS if name.endswith("_to_wkw")), _OF_WKW),  # the verb without this ending has it; copy makes WKW of WKW
    "convert_from_wkw": _OF_WKW,
    "convert_plan": _OF_WKW,
    "zarr_in_place": frozenset({"ngff-0.4", "ngff-0.5", "toy"}),  # two are Zarr, and Zarr has no codec for chunks of the third
}
"""Cells that are empty on purpose."""


IN_MEMORY = frozenset(str(form) for form in FORMS)
"""Formats that are read and written in memory."""

NEEDS_FILES = frozenset({"zarr_in_place"})
"""Verbs that need a path on a file system: zarr-python opens the files itself."""


@pytest.fixture(autouse=True)
def _with_toy(monkeypatch):
    monkeypatch.setattr(registry, "_added", [toy_format.FORMAT])


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def _cells(wanted):
    return [
        pytest.param(name, form, id=f"{name}-{form}") for name in VERBS for form in FORMS if form.name not in EMPTY.get(name, ()) and wanted(name, form.name)
    ]


def _needs(form):
    if form.needs is not None:
        pytest.importorskip(form.needs, reason=f"{form.needs} is not installed")


@pytest.mark.parametrize(("name", "form"), _cells(lambda name, form: form not in NOT_THERE_YET.get(name, ())))
def test_verb(name, form, tmp_path):
    _needs(form)
    for seed in range(GEOMETRIES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        VERBS[name](Bench(form, folder, seed))


@pytest.mark.parametrize(("name", "form"), _cells(lambda name, form: form in IN_MEMORY and form not in NOT_THERE_YET.get(name, ()) and name not in NEEDS_FILES))
def test_verb_in_memory(name, form, tmp_path):
    _needs(form)
    root = f"memory://{name}-{form}"
    VERBS[name](Bench(form, tmp_path, 0, root))
    empty_memory()


@pytest.mark.parametrize(("name", "form"), _cells(lambda name, form: form in NOT_THERE_YET.get(name, ())))
def test_not_there_yet(name, form, tmp_path):
    _needs(form)
    with pytest.raises((wkwdask.UnsupportedError, ValueError)):
        VERBS[name](Bench(form, tmp_path, 0))


def test_tables_name_verbs_and_formats():
    for table in (NOT_THERE_YET, EMPTY):
        assert set(table) <= set(VERBS)
        assert set().union(*table.values()) <= {form.name for form in FORMS}
