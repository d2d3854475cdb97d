"""Documents and links that lead out of a volume: nothing outside is written, deleted, set aside or served, unless the call allows it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import WkwDaskError

pytestmark = pytest.mark.needs("zarr")  # writes two of the formats

VOXELS = np.random.default_rng(5).integers(1, 200, (24, 20, 16)).astype(np.uint32)
WHOLE = (0, 0, 0, 24, 20, 16)
HALF = ((0, 0, 0), (8, 8, 8))


def _wkw(folder):
    wkwdask.to_wkw(VOXELS, f"{folder}/color/1", block_len=8, file_len=1, voxel_size=(8, 8, 8), category="segmentation")
    wkwdask.build_pyramid(folder, mags=["2", "4"], method="mean")


def _other(prefix, **options):
    def make(folder):
        wkwdask.save(VOXELS, f"{prefix}{folder}{'/s0' if prefix == 'n5://' else ''}", voxel_size=(8, 8, 8), chunk_shape=(8, 8, 8), **options)
        wkwdask.build_pyramid(f"{prefix}{folder}", mags=["2", "4"], method="mean")

    return make


WRITERS = {
    "wkw": ("", _wkw),
    "precomputed": ("precomputed://", _other("precomputed://")),
    "precomputed-shards": ("precomputed://", _other("precomputed://", shard_shape=True)),
    "ngff-0.4": ("zarr://", _other("zarr://", ngff="0.4")),
    "ngff-0.5": ("zarr://", _other("zarr://", ngff="0.5", shard_shape=(16, 16, 16))),
    "n5": ("n5://", _other("n5://")),
}
LEVELS = {"wkw": "color/2", "precomputed": "16_16_16", "precomputed-shards": "16_16_16", "ngff-0.4": "2", "ngff-0.5": "2", "n5": "s1"}
DOCUMENTS = {
    "wkw": "datasource-properties.json", "precomputed": "info", "precomputed-shards": "info", "ngff-0.4": ".zattrs", "ngff-0.5": "zarr.json",
    "n5": "attributes.json",
}  # fmt: skip


def _entries(kind, document):
    if kind == "wkw":
        return document["dataLayers"][0]["mags"], "path"
    if kind.startswith("precomputed"):
        return document["scales"], "key"
    inner = document["attributes"]["ome"] if kind == "ngff-0.5" else document
    return inner["multiscales"][0]["datasets"], "path"


def edit(kind, folder, change):
    """Change the list of levels in the document of a volume; ``change`` gets the entries and the field with their names."""
    path = folder / DOCUMENTS[kind]
    document = json.loads(path.read_text())
    change(*_entries(kind, document))
    path.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    for kind, (_, make) in WRITERS.items():
        make(folder / kind)
    return folder


@pytest.fixture
def volumes(request, originals, tmp_path):
    """Two volumes: level 2 of B leads to that of A, and one file of it is damaged."""
    kind, way = request.param
    for name in "AB":
        shutil.copytree(originals / kind, tmp_path / name)
    own, other = tmp_path / "B" / LEVELS[kind], tmp_path / "A" / LEVELS[kind]
    shutil.rmtree(own)
    stated = {"relative": f"../A/{LEVELS[kind]}", "absolute": str(other), "link": None}[way]
    if stated is None:
        own.symlink_to(other)
    else:
        edit(kind, tmp_path / "B", lambda entries, field: entries[1].update({field: stated}))
    file = max((path for path in other.rglob("*") if path.is_file() and path.name[0] != "." and path.suffix != ".json"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-3])
    return kind, way, tmp_path / "A", tmp_path / "B"


def contents(folder):
    """All files and links below a folder, hidden ones too, with bytes and times."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        state = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (state, path.lstat().st_mtime_ns)
    return found


def place(kind, url):
    """The place of level 2 as the target of an array."""
    return f"{url}/{LEVELS[kind]}" if kind in ("wkw", "n5") else url


def chosen(kind, mag=2):
    return {} if kind in ("wkw", "n5") else {"mag": mag}


def _target(verb, *arguments):
    """A verb that computes level 2 from that of another volume."""
    return lambda kind, url, source, **more: verb(*arguments, f"{source}/wkw/color/2", place(kind, url), existing="overwrite", **more)


SOURCES = ("{}/wkw/color/2", "n5://{}/n5/s1")
HALVED = VOXELS[::2, ::2, ::2]
VERBS = {
    "pyramid": lambda kind, url, source, **more: wkwdask.build_pyramid(url, mags=["2"], existing="overwrite", method="mean", **more),
    "pyramid of two": lambda kind, url, source, **more: wkwdask.build_pyramid(url, mags=["2", "4"], existing="overwrite", method="nearest", **more),
    "update": lambda kind, url, source, **more: wkwdask.build_pyramid(url, mags=["2"], update="content", method="mean", **more),
    "update of all": lambda kind, url, source, **more: wkwdask.build_pyramid(url, update="content", **more),
    "upsample": lambda kind, url, source, **more: wkwdask.upsample(url, source="4", mags=["2"], existing="overwrite", **more),
    "rm": lambda kind, url, source, **more: wkwdask.rm(url, mags=["2"], **more),
    "rm whole": lambda kind, url, source, **more: wkwdask.rm(url, **more),
    "rechunk": lambda kind, url, source, **more: wkwdask.rechunk(url, mags=["2"], **({"file_len": 4} if kind == "wkw" else {"chunk_shape": (4, 4, 4)}), **more),
    "compress": lambda kind, url, source, **more: wkwdask.compress(url, mags=["2"], compression="lz4" if kind == "wkw" else "gzip", **more),
    "region": lambda kind, url, source, **more: wkwdask.save(
        VOXELS[:8, :8, :8], place(kind, url) if kind == "wkw" else url, region=HALF, **({} if kind == "wkw" else {"mag": 2}), **more
    ),
    "save": lambda kind, url, source, **more: wkwdask.save(
        HALVED, place(kind, url), existing="overwrite", **({"mag": 2} if kind == "n5" else chosen(kind)), **more
    ),
    "apply": _target(wkwdask.apply, np.invert),
    "components": _target(wkwdask.connected_components),
    "dust": lambda kind, url, source, **more: wkwdask.remove_dust(f"{source}/wkw/color/2", place(kind, url), 2, existing="overwrite", **more),
    "remap": lambda kind, url, source, **more: wkwdask.remap(f"{source}/wkw/color/2", place(kind, url), {1: 2}, existing="overwrite", **more),
    "renumber": _target(wkwdask.renumber),
    "convert": lambda kind, url, source, **more: wkwdask.convert(SOURCES[kind == "wkw"].format(source), place(kind, url), existing="overwrite", **more),
    "repair": lambda kind, url, source, **more: wkwdask.repair(url, **more),
    "quarantine": lambda kind, url, source, **more: wkwdask.repair(url, quarantine=True, **more),
    "salvage": lambda kind, url, source, **more: wkwdask.repair(url, salvage=True, quarantine=True, **more),
    "rebuild": lambda kind, url, source, **more: wkwdask.repair(url, rebuild_differing=True, method="mean", **more),
}
CELLS = [(kind, way) for kind in WRITERS for way in ("relative", "absolute", "link")]
NEW = {"pyramid", "pyramid of two", "upsample", "save", "apply", "components", "dust", "remap", "renumber", "convert"}


def tried(verb, kind, url, source, **more):
    """Return what a verb reports, or its error."""
    try:
        return str(VERBS[verb](kind, url, source, **more))
    except (WkwDaskError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("volumes", CELLS, indirect=True, ids="-".join)
def test_nothing_outside_changes(volumes, originals, verb):
    """The error names the document, the name in it and where it leads."""
    kind, way, outside, volume = volumes
    before = contents(outside)
    result = tried(verb, kind, f"{WRITERS[kind][0]}{volume}", originals)
    assert contents(outside) == before
    if kind == "n5" and way != "link" and verb in NEW:
        assert result.startswith(f"{volume}/s1")  # N5 numbers levels: no name in the document makes it another folder
    elif kind == "wkw" and way != "link" and verb == "region":
        assert "no such folder" in result  # a mag is named by its folder
    else:
        stated = {"relative": f"../A/{LEVELS[kind]}", "absolute": f"{outside}/{LEVELS[kind]}", "link": LEVELS[kind].rpartition("/")[2]}[way]
        for text in (f"{volume}/{DOCUMENTS[kind]}", stated, f"{outside}/{LEVELS[kind]}"):
            assert text in result


READABLE = [(kind, way) for kind, way in CELLS if way == "link" or kind == "wkw" or (kind.startswith("precomputed") and way == "relative")]
ALLOWED = {"pyramid": True, "update": True, "rm": False, "region": True, "quarantine": True, "rechunk": True}


@pytest.mark.parametrize("verb", ALLOWED)
@pytest.mark.parametrize("volumes", READABLE, indirect=True, ids="-".join)
def test_what_is_allowed_happens_there(volumes, originals, verb):
    kind, way, outside, volume = volumes
    if kind == "wkw" and way != "link" and verb == "region":
        pytest.skip("a mag is named by its folder")
    if verb != "quarantine":
        shutil.rmtree(outside)
        shutil.copytree(originals / kind, outside)
    url, before = f"{WRITERS[kind][0]}{volume}", contents(outside)
    result = tried(verb, kind, url, originals, allow_external=True)
    assert contents(outside) != before, result
    assert (outside / LEVELS[kind]).exists() is ALLOWED[verb], result
    if verb in ("pyramid", "update"):
        expected = wkwdask.read(f"{WRITERS[kind][0]}{originals}/{kind}", mag="2")
        np.testing.assert_array_equal(wkwdask.read(url, mag="2"), expected)
        np.testing.assert_array_equal(wkwdask.read(f"{WRITERS[kind][0]}{outside}", mag="2"), expected)
    assert not [*volume.rglob(".wkwdask-job*"), *outside.rglob(".wkwdask-job*"), *outside.rglob("*-lock")]


@pytest.mark.parametrize("volumes", READABLE, indirect=True, ids="-".join)
def test_levels_outside_are_read(volumes, originals):
    kind, _, outside, volume = volumes
    shutil.rmtree(outside)
    shutil.copytree(originals / kind, outside)
    url = f"{WRITERS[kind][0]}{volume}"
    np.testing.assert_array_equal(wkwdask.read(url, mag="2"), wkwdask.read(f"{WRITERS[kind][0]}{outside}", mag="2"))
    assert wkwdask.verify(url).is_sound


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("verb", ["pyramid", "update", "region", "rm", "quarantine", "rechunk"])
def test_the_root_may_be_a_link(originals, tmp_path, kind, verb):
    shutil.copytree(originals / kind, tmp_path / "A")
    (tmp_path / "link").symlink_to(tmp_path / "A")
    before = contents(tmp_path / "A")
    if verb == "quarantine":
        (tmp_path / "A" / LEVELS[kind] / ".wkwdask-files.npy").write_bytes(b"")
    result = tried(verb, kind, f"{WRITERS[kind][0]}{tmp_path}/link", originals)
    if verb == "rm":
        assert "is a symbolic link; remove the link itself, or its target" in result
        assert contents(tmp_path / "A") == before
    else:
        assert contents(tmp_path / "A") != before, result
        assert "lies outside" not in result


# ------------------------------------------------------------------------------------------------ other ways


def _copied(originals, kind, folder):
    shutil.copytree(originals / kind, folder)
    return folder, f"{WRITERS[kind][0]}{folder}"


OWN_LEVELS = [("precomputed", "16_16_16"), ("ngff-0.4", "2"), ("ngff-0.5", "2")]


BELOW, SAME = ("{}/inner", "{}/9"), ("./{}", "{}/../{}", "{}//")


@pytest.mark.parametrize(
    ("kind", "name", "inner"),
    [
        *((kind, name, inner) for kind, name in OWN_LEVELS for inner in (*BELOW, *SAME)),
        *(("n5", "s1", inner) for inner in BELOW),  # an N5 dataset states its own mag, so two names of one folder are one level
    ],
)
def test_a_level_is_not_removed_or_replaced_with_another(originals, tmp_path, kind, name, inner):
    """The last level lies in the folder of level 2, or in a folder below it."""
    volume, url = _copied(originals, kind, tmp_path / "B")
    inner = inner.format(name, name)
    last = {"precomputed": "32_32_32", "n5": "s2"}.get(kind, "4")
    place = Path(os.path.normpath(volume / inner))
    if place != volume / name:
        (volume / last).rename(place)
    edit(kind, volume, lambda entries, field: entries[2].update({field: inner}))
    before = contents(volume)
    for verb in ("rm", "pyramid", "rechunk"):
        result = tried(verb, kind, url, originals)
        after = contents(volume)
        kept = {path: state for path, state in before.items() if state[0] is not None and (volume / path).is_relative_to(place)}
        assert {path: after.get(path) for path in kept} == kept, result
        assert any(text in result for text in ("the level", "use the folder of scale", "contains other files", "is already there", "already")), result


@pytest.mark.parametrize("key", ["", ".", "./", "16_16_16/..", "../B"])
@pytest.mark.parametrize("kind", ["precomputed", "ngff-0.4", "ngff-0.5", "n5"])
def test_the_folder_of_the_volume_is_no_level_to_remove_or_replace(originals, tmp_path, kind, key):
    volume, url = _copied(originals, kind, tmp_path / "B")
    edit(kind, volume, lambda entries, field: entries[1].update({field: key}))
    own = {"precomputed": "16_16_16", "n5": "s1"}.get(kind, "2")
    before = contents(volume)
    for verb in ("rm", "rm whole", "compress", "pyramid", "quarantine"):
        if kind == "n5" and verb == "pyramid":
            continue  # N5 numbers levels
        tried(verb, kind, url, originals)
        after = contents(volume)
        assert {path: state for path, state in after.items() if not path.startswith(own)} == {
            path: state for path, state in before.items() if not path.startswith(own)
        }, verb


def test_a_redirect_is_followed_by_readers_alone(originals, tmp_path):
    outside, _ = _copied(originals, "precomputed", tmp_path / "A")
    (tmp_path / "B").mkdir()
    for redirect in ("../A", str(outside), f"precomputed://{outside}"):
        (tmp_path / "B" / "info").write_text(json.dumps({"redirect": redirect}))
        url, before = f"precomputed://{tmp_path}/B", contents(outside)
        np.testing.assert_array_equal(wkwdask.read(url)[0], VOXELS)
        for verb in ("pyramid", "update", "rm", "rm whole", "rechunk", "region", "quarantine"):
            result = tried(verb, "precomputed", url, originals)
            assert verb == "quarantine" or f"{outside}" in result or "../A" in result
            assert contents(outside) == before


@pytest.mark.parametrize(("kind", "inner"), [("wkw", "z0"), ("ngff-0.4", "0"), ("n5", "0"), ("n5", "0/0")])
@pytest.mark.parametrize("verb", ["update", "region", "quarantine", "salvage"])
def test_folders_of_a_level_that_are_links(originals, tmp_path, kind, inner, verb):
    volume, url = _copied(originals, kind, tmp_path / "B")
    own = volume / LEVELS[kind] / inner
    own.rename(tmp_path / "A")
    own.symlink_to(tmp_path / "A")
    file = next(path for path in sorted((tmp_path / "A").rglob("*")) if path.is_file())
    if verb in ("quarantine", "salvage"):
        file.write_bytes(file.read_bytes()[:-3])
    before = contents(tmp_path / "A")
    result = tried(verb, kind, url, originals)
    assert contents(tmp_path / "A") == before
    assert f"at {tmp_path}/A" in result
    assert "allow_external" in result


@pytest.mark.parametrize("kind", ["ngff-0.4", "n5"])
@pytest.mark.parametrize("verb", ["pyramid", "update", "region", "quarantine", "rechunk", "rm whole"])
def test_an_image_behind_a_link_in_a_container(originals, tmp_path, kind, verb):
    shutil.copytree(originals / kind, tmp_path / "A")
    (tmp_path / "C.n5").mkdir()
    (tmp_path / "C.n5" / "link").symlink_to(tmp_path / "A")
    document = {"n5": "attributes.json"}.get(kind, ".zgroup")
    (tmp_path / "C.n5" / document).write_text('{"n5": "4.0.0"}' if kind == "n5" else '{"zarr_format": 2}')
    before = contents(tmp_path / "A")
    result = tried(verb, kind, f"{WRITERS[kind][0]}{tmp_path}/C.n5", originals)
    assert contents(tmp_path / "A") == before
    assert verb == "quarantine" or "link" in result


def test_documents_of_a_view_stay_inside(originals, tmp_path):
    """Zarr documents beside N5 and WKW."""
    shutil.copytree(originals / "n5", tmp_path / "A")
    volume, url = _copied(originals, "n5", tmp_path / "B")
    shutil.rmtree(volume / "s1")
    (volume / "s1").symlink_to(tmp_path / "A" / "s1")
    before = contents(tmp_path / "A")
    with pytest.raises(wkwdask.UnsupportedError, match=f"B/s1/zarr.json: lies outside .* at {tmp_path}/A/s1"):
        wkwdask.n5_as_zarr(url, write=True)
    assert contents(tmp_path / "A") == before
    wkwdask.n5_as_zarr(url, write=True, allow_external=True)
    assert (tmp_path / "A" / "s1" / "zarr.json").exists()
    with pytest.raises(wkwdask.UnsupportedError, match="lies outside"):
        wkwdask.n5_as_zarr(url, remove=True)
    dataset, _ = _copied(originals, "wkw", tmp_path / "ds")
    _copied(originals, "wkw", tmp_path / "other")
    edit("wkw", dataset, lambda entries, field: [entry.update({field: f"../other/color/{2**n}"}) for n, entry in enumerate(entries)])
    before = contents(tmp_path / "other")
    with pytest.raises(wkwdask.UnsupportedError, match=r"datasource-properties.json names it '\.\./other/color/1'"):
        wkwdask.write_zarr_view(dataset)
    assert contents(tmp_path / "other") == before
    wkwdask.write_zarr_view(dataset, allow_external=True)
    with pytest.raises(wkwdask.UnsupportedError, match="lies outside"):
        wkwdask.remove_zarr_view(dataset)
    assert (tmp_path / "other" / "color" / "1" / "zarr.json").exists()


@pytest.mark.parametrize("key", ["../..", "../A/16_16_16", "../../../../../../../.."])
def test_names_outside_are_not_served(originals, tmp_path, key):
    from wkwdask.viewer.layers import layers_of

    _copied(originals, "precomputed", tmp_path / "A")
    volume, url = _copied(originals, "precomputed", tmp_path / "B")
    edit("precomputed", volume, lambda entries, field: entries[1].update({field: key}))
    (tmp_path / "secret").write_text("secret")
    (volume / "link").symlink_to(tmp_path / "secret")
    for serve in (wkwdask.zarr_view, lambda url: layers_of(url, (), None)):
        with pytest.raises(wkwdask.UnsupportedError, match=rf"B/info names it '{key}'\), and is not served; allow_external=True"):
            serve(url)
    (layer,) = layers_of(url, (), None, allow_external=True)
    assert layer.is_decoded
    for name in ("link", "secret", "../secret", "A/info", "info"):
        assert layer.source.open(name) is None


def test_links_of_levels_are_decoded_for_viewers(originals, tmp_path):
    """The files beside the level are not served."""
    from wkwdask.viewer.layers import layers_of

    outside, _ = _copied(originals, "precomputed", tmp_path / "A")
    volume, url = _copied(originals, "precomputed", tmp_path / "B")
    assert not layers_of(url, (), None)[0].is_decoded
    shutil.rmtree(volume / "16_16_16")
    (volume / "16_16_16").symlink_to(outside)
    (outside / "secret").write_text("secret")
    (layer,) = layers_of(url, (), None)
    assert layer.source.open("16_16_16/secret") is None


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("/v", "8_8_8", "/v/8_8_8"), ("/v", "./a//b/", "/v/a/b"), ("/v", "a/../../x", "/x"), ("/v", "../v/a", "/v/a"), ("/v", "", "/v"), ("/v", ".", "/v"),
        ("/v", "/abs/../x", "/x"), ("/v", "file:///x/y", "/x/y"), ("/v", "gs://b/x", "gs://b/x"), ("/v", "..\\x", "/v/..\\x"),
        ("/v", "%2e%2e/x", "/v/%2e%2e/x"),
        ("/v", "~/x", "/v/~/x"), ("/v", "../../../../x", "/x"), ("https://host/v", "../x", "https://host/x"), ("https://host/v", "../../../x", "https://host/x"),
        ("memory://v", "../x", "memory://x"), ("memory://v", "../../x", "memory://x"), ("/a.zip|zip:/v", "../../../x", "/a.zip|zip:/x"),
    ],
)  # fmt: skip
def test_names_become_paths(folder, name, expected):
    from wkwdask.store.paths import stated_path

    assert stated_path(folder, name) == expected


def test_a_quarantine_that_is_a_link_is_not_used(originals, tmp_path):
    volume, url = _copied(originals, "precomputed", tmp_path / "B")
    (tmp_path / "A").mkdir()
    (volume / ".wkwdask-quarantine").symlink_to(tmp_path / "A")
    file = next(path for path in sorted((volume / "8_8_8").iterdir()) if path.name[0] != ".")
    file.write_bytes(b"x")
    with pytest.raises(wkwdask.UnsupportedError, match=f"at {tmp_path}/A/8_8_8/.*, and nothing is set aside there"):
        wkwdask.repair(url, quarantine=True)
    assert not list((tmp_path / "A").iterdir())
    assert file.read_bytes() == b"x"


@pytest.mark.parametrize(("before", "after"), [("../A/s1", "s1"), ("s1", "../A/new"), ("/A", "s1"), ("..", "s1"), ("s1", "")])
def test_a_record_does_not_rename_levels_outside(before, after):
    from wkwdask.formats.n5.edit import LevelGeometry, N5Edit
    from wkwdask.geometry.mag import Mag

    geometry = LevelGeometry(Mag.parse(2), (0, 0, 0), None)
    edit_record = N5Edit("/C", "/C", (("s0", geometry),), ((before, after, geometry),)).to_json()
    with pytest.raises(ValueError, match="expected the name of a level"):
        N5Edit.from_json(json.loads(json.dumps(edit_record)))


def test_labels_of_a_view_stay_inside(originals, tmp_path):
    dataset, _ = _copied(originals, "wkw", tmp_path / "ds")
    wkwdask.to_wkw(VOXELS.astype(np.uint8), dataset / "em" / "1", block_len=8, file_len=1)
    (tmp_path / "A").mkdir()
    (dataset / "em" / "labels").symlink_to(tmp_path / "A")
    with pytest.raises(wkwdask.UnsupportedError, match=f"em/labels: lies outside .* at {tmp_path}/A"):
        wkwdask.write_zarr_view(dataset)
    assert not list((tmp_path / "A").iterdir())
