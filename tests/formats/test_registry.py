"""The list of formats: who recognises what, and formats of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats import registry
from wkwdask.formats.format import ArrayFormat

WORKING = EntryPoint("working", f"{__name__}:WorkingFormat", registry.GROUP)
BROKEN = EntryPoint("broken", "no_such_package:FORMAT", registry.GROUP)


@pytest.fixture
def fresh_registry(monkeypatch):
    """The formats are listed again, before the test and after it."""
    _forget()
    monkeypatch.setattr(registry, "_added", [])
    yield monkeypatch
    _forget()


def _forget():
    registry._installed.cache_clear()
    registry._others.cache_clear()


class _Working(ArrayFormat):
    name = "working"

    def recognise(self, path):
        return path.endswith(".working")

    def find(self, url):
        raise MissingError(f"{url}: nothing is here")


def test_the_order():
    assert [one.name for one in registry.formats()][:4] == [
        "webknossos",
        "precomputed",
        "n5",
        "zarr",
    ]
    assert registry.default_format().name == "webknossos"
    assert registry.format_named("n5").name == "n5"
    with pytest.raises(
        UnsupportedError, match="no format 'tape'; there are webknossos, precomputed, n5, zarr"
    ):
        registry.format_named("tape")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("n5://em", "n5"),
        ("zarr3://em", "zarr"),
        ("gs://bucket/em|neuroglancer-precomputed:", "precomputed"),
        ("https://host/em.n5", None),
        ("", None),
        (3, None),
        ("no-such-folder", None),
    ],
)
def test_names(url, name):
    found = registry.format_of(url)
    assert (None if found is None else found.name) == name


def test_location():
    assert registry.location_of("precomputed://https://host/em/") == "https://host/em"
    assert registry.location_of("n5:///data/em") == "/data/em"
    assert registry.location_of("/data/em") == "/data/em"


def test_a_format_of_another_package(fresh_registry, tmp_path):
    fresh_registry.setattr(EntryPoint, "load", _load_working(EntryPoint.load))
    fresh_registry.setattr(registry, "entry_points", lambda group: [WORKING])
    found = registry.format_of(tmp_path / "em.working")
    assert found is not None
    assert found.name == "working"


def test_a_broken_format_is_named_and_left_out(fresh_registry):
    fresh_registry.setattr(registry, "entry_points", lambda group: [BROKEN])
    with pytest.warns(
        RuntimeWarning,
        match="format broken of no_such_package:FORMAT is skipped: ModuleNotFoundError",
    ):
        names = [one.name for one in registry.formats()]
    assert names == ["webknossos", "precomputed", "n5", "zarr"]


def test_no_two_formats_of_one_name(fresh_registry):
    registry.register(_Working())
    with pytest.raises(ValueError, match="a format working is already registered"):
        registry.register(_Working())


def _load_working(load):
    return lambda entry: _Working() if entry.name == "working" else load(entry)
