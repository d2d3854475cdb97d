"""Updates of pyramids in all formats but WKW: only files above changed ones are rebuilt."""

from __future__ import annotations

import numpy as np
import pytest
from support import toy_format
from verbs.cases import Case, largest_of_windows
from verbs.forms import IMAGES, needs
from verbs.stored_path import stored_path

import wkwdask
from wkwdask.formats import registry

SIZE, OFFSET = (38, 24, 20), (5, 2, 1)


@pytest.fixture(autouse=True)
def _toy_format(monkeypatch):
    monkeypatch.setattr(registry, "_added", [toy_format.FORMAT])


@pytest.fixture(
    params=[pytest.param(form, marks=needs(form)) for form in IMAGES if form.name != "wkw"], ids=str
)
def form(request):
    return request.param


@pytest.fixture
def built(form, tmp_path):
    """Build an image with two coarser levels; return its URL, that of its finest level, and its
    voxels."""
    case = Case(np.random.default_rng(1).integers(1, 200, (1, *SIZE), np.uint8), OFFSET)
    url = form.url(tmp_path, "image")
    form.save(case.array, url, case.offset)
    wkwdask.build_pyramid(url, mags=["2-2-1", "4-4-2"], method="max")
    return url, url + ("/s0" if form.name == "n5" else ""), case


def _expect(url, case):
    half = largest_of_windows(case, (2, 2, 1))
    for mag, expected in (("2-2-1", half), ("4-4-2", largest_of_windows(half, (2, 2, 2)))):
        np.testing.assert_array_equal(wkwdask.open(url, mag=mag).compute(), expected.array)


def _update(url, **options):
    return wkwdask.build_pyramid(url, mags=["2-2-1", "4-4-2"], update=True, **options)


def test_unchanged_image_rebuilds_nothing(built):
    url, _, case = built
    assert _update(url).note == "nothing to do: no finer file has changed"
    assert wkwdask.build_pyramid(url, update="content").note.endswith("rebuilt, 0 of them changed")
    assert _update(url).note == "nothing to do: no finer file has changed"
    _expect(url, case)


def test_changed_part_is_rebuilt(built):
    url, finest, case = built
    patch = np.full((1, 3, 3, 3), 250, np.uint8)
    low = (40, 20, 17)
    wkwdask.write(finest, None, patch, region=(low, tuple(n + 3 for n in low)))
    x, y, z = (slice(a - o, a - o + 3) for a, o in zip(low, OFFSET, strict=True))
    case.array[:, x, y, z] = 250
    assert "rebuilt" in _update(url).note
    _expect(url, case)
    assert _update(url).note == "nothing to do: no finer file has changed"


def test_missing_or_replaced_coarser_file_is_rebuilt(built, form):
    url, _, case = built
    folder = stored_path(url) / {"n5": "s1"}.get(
        form.name, "8_8_8" if form.engine == "precomputed" else "2-2-1"
    )
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".json")
    )
    files[0].unlink()
    assert "rebuilt" in _update(url).note
    assert files[0].exists()
    files[-1].write_bytes(files[-1].read_bytes())
    assert "rebuilt" in _update(url).note
    _expect(url, case)


def test_box_is_rebuilt(built):
    url, finest, case = built
    wkwdask.write(
        finest, None, np.full((1, 4, 4, 4), 251, np.uint8), region=((10, 10, 10), (14, 14, 14))
    )
    x, y, z = (slice(10 - o, 14 - o) for o in OFFSET)
    case.array[:, x, y, z] = 251
    wkwdask.build_pyramid(url, bounding_box=(10, 10, 10, 4, 4, 4))
    _expect(url, case)
