"""Every verb on images that other software writes, as in :mod:`verbs.test_matrix`, with the table
of what is not right yet."""

from __future__ import annotations

import dask
import pytest
from verbs.all_verbs import LIMITS, VERBS, Bench
from verbs.expected_failures import EXPECTED_FAILURES, marks
from verbs.foreign_forms import FOREIGN
from verbs.forms import needs
from verbs.stored_path import stored_path

from wkwdask.errors import FormatError, UnsupportedError

pytestmark = [
    pytest.mark.checks_more,
    # what zarr-python says of arrays that it alone reads
    pytest.mark.filterwarnings(
        "ignore:Numcodecs codecs are not in the Zarr version 3 specification:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:UserWarning"),
    # what webknossos and its packages warn of while they are imported
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:webknossos"),
    pytest.mark.filterwarnings("ignore::UserWarning:cluster_tools"),
]

SEED = 3

_ALL = frozenset(form.name for form in FOREIGN)
_TARGETS = frozenset({"save", "save_by_url", "resume", "write", "create", "convert_from_wkw"})
_ONLY_ZARR = frozenset(
    {
        "delta-3",
        "delta-3-zstd",
        "nested-shards",
        "transposed-shards",
        "big-endian-index",
        "fletcher32",
    }
)
_NEW_LEVELS = frozenset(
    {
        "pyramid",
        "pyramid_ladder",
        "pyramid_resume",
        "pyramid_box",
        "pyramid_update",
        "pyramid_plan",
        "verify_pyramid",
        "repair",
        "repair_by_method",
    }
)
_OF_SOURCES = frozenset(
    {
        "convert_to_wkw",
        "convert_plan",
        "apply_to_wkw",
        "components_to_wkw",
        "remap_to_wkw",
        "dust_to_wkw",
        "renumber_to_wkw",
    }
)
_OF_PLACES = frozenset(
    {
        "read",
        "open_array",
        "info",
        "xarray",
        "convert_to_wkw",
        "label_statistics",
        "write_region",
        "apply",
        "copy_box",
    }
)
_OF_REFUSED = frozenset({"read", "open_array", "convert_to_wkw", "copy", "write_region", "rechunk"})


def _forms(is_meant):
    return frozenset(form.name for form in FOREIGN if is_meant(form))


NOT_APPLICABLE = (
    (_TARGETS, _ALL, "reads no image of the form"),
    ({"levels"}, _forms(lambda form: not form.levels), "the image has one level"),
    (
        {"rechunk_shards"},
        _forms(lambda form: form.other_files is None),
        "each chunk is a file, or zarr-python alone reads the shards",
    ),
    (
        {"zarr_in_place"},
        _forms(lambda form: form.engine != "n5"),
        "is Zarr, or has raw chunks without a header",
    ),
    (
        {"histogram", "contrast"},
        _forms(lambda form: form.dtype not in LIMITS["histogram"]["types"]),
        "one bin per value",
    ),
    (
        {"xarray", "pyramid_ladder", "upsample"},
        _forms(lambda form: not form.states_voxel_size),
        "needs the voxel size",
    ),
    (
        VERBS.keys() - _OF_SOURCES,
        _forms(lambda form: form.is_source),
        "is the source of jobs alone",
    ),
    (VERBS.keys() - _OF_PLACES, {"paintera"}, "as other N5"),
    (VERBS.keys() - _OF_REFUSED, {"too-few-axes"}, "is refused at opening; info names the error"),
    ({"serve"}, _ONLY_ZARR, "writes a region first, which is refused"),
    (
        VERBS.keys() - _NEW_LEVELS,
        _forms(lambda form: form.name.endswith("-single")),
        "as with two levels",
    ),
    (
        {"pyramid_box", "pyramid_update"},
        _ONLY_ZARR,
        "writes a region first, which is refused",
    ),
    (_NEW_LEVELS | {"upsample"}, {"bool"}, "levels of bool are made by the mode alone"),
    (
        {
            "convert_levels_to_wkw",
            "convert_levels_to_precomputed-sharded",
            "convert_levels_to_n5",
            "convert_levels_to_ngff-0.5",
        },
        {"bool"},
        "levels of bool are made by the mode alone",
    ),
)
"""Cells without a test: verbs, forms, and the reason."""

REFUSED = (
    ({"write_region", "clear_region"}, _ONLY_ZARR),
    (_OF_REFUSED, {"too-few-axes"}),
)
"""Cells that end in an error and change nothing: verbs and forms."""


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def _is_in(table, name, form):
    return any(name in row[0] and form.name in row[1] for row in table)


def cells(*, refused=False):
    cells = []
    for form in FOREIGN:
        for name in VERBS:
            if _is_in(NOT_APPLICABLE, name, form) or _is_in(REFUSED, name, form) != refused:
                continue
            cells.append(
                pytest.param(
                    name, form, id=f"{name}-{form}", marks=[*needs(form, name), *marks(name, form)]
                )
            )
    return cells


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "form"), cells())
def test_verb(name, form, tmp_path):
    VERBS[name](Bench(form, tmp_path, SEED, **LIMITS.get(name, {})))


@pytest.mark.parametrize(("name", "form"), cells(refused=True))
def test_refused_cell_changes_nothing(name, form, tmp_path):
    bench = Bench(form, tmp_path, SEED, **LIMITS.get(name, {}))
    before = _contents(bench.image)
    with pytest.raises((UnsupportedError, FormatError)):
        VERBS[name](bench)
    assert _contents(bench.image) == before


def _contents(url):
    return {path: path.read_bytes() for path in stored_path(url).rglob("*") if path.is_file()}


def test_tables_name_cells():
    names = {form.name for form in FOREIGN}
    for table in (NOT_APPLICABLE, REFUSED):
        for row in table:
            assert set(row[0]) <= set(VERBS)
            assert set(row[1]) <= names
    known = {
        (cell.values[0], cell.values[1].name)
        for refused in (False, True)
        for cell in cells(refused=refused)
    }
    assert {cell for cell in EXPECTED_FAILURES if cell[1] in names} <= known
