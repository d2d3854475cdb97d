"""Documents and links that lead out of a volume: nothing outside is written, deleted, set aside or
served, unless the call allows it."""

import contextlib
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
    wkwdask.to_wkw(
        VOXELS,
        f"{folder}/color/1",
        block_len=8,
        file_len=1,
        voxel_size=(8, 8, 8),
        category="segmentation",
    )
    wkwdask.build_pyramid(folder, mags=["2", "4"], method="mean")


def _other(prefix, **options):
    def make(folder):
        wkwdask.save(
            VOXELS,
            f"{prefix}{folder}{'/s0' if prefix == 'n5://' else ''}",
            voxel_size=(8, 8, 8),
            chunk_shape=(8, 8, 8),
            **options,
        )
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
LEVELS = {
    "wkw": "color/2",
    "precomputed": "16_16_16",
    "precomputed-shards": "16_16_16",
    "ngff-0.4": "2",
    "ngff-0.5": "2",
    "n5": "s1",
}
DOCUMENTS = {
    "wkw": "datasource-properties.json",
    "precomputed": "info",
    "precomputed-shards": "info",
    "ngff-0.4": ".zattrs",
    "ngff-0.5": "zarr.json",
    "n5": "attributes.json",
}


def _entries(kind, document):
    if kind == "wkw":
        return document["dataLayers"][0]["mags"], "path"
    if kind.startswith("precomputed"):
        return document["scales"], "key"
    inner = document["attributes"]["ome"] if kind == "ngff-0.5" else document
    return inner["multiscales"][0]["datasets"], "path"


def edit(kind, folder, change):
    """Change the list of levels in the document of a volume; ``change`` gets the entries and the
    field with their names."""
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
    file = max(
        (
            path
            for path in other.rglob("*")
            if path.is_file() and path.name[0] != "." and path.suffix != ".json"
        ),
        key=lambda path: path.stat().st_size,
    )
    file.write_bytes(file.read_bytes()[:-3])
    return kind, way, tmp_path / "A", tmp_path / "B"


def contents(folder):
    """All files and links below a folder, hidden ones too, with bytes and times."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        state = (
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None
        )
        found[str(path.relative_to(folder))] = (state, path.lstat().st_mtime_ns)
    return found


def place(kind, url):
    """The place of level 2 as the target of an array."""
    return f"{url}/{LEVELS[kind]}" if kind in ("wkw", "n5") else url


def chosen(kind, mag=2):
    return {} if kind in ("wkw", "n5") else {"mag": mag}


def _target(verb, *arguments):
    """A verb that computes level 2 from that of another volume."""
    return lambda kind, url, source, **more: verb(
        *arguments, f"{source}/wkw/color/2", place(kind, url), existing="overwrite", **more
    )


SOURCES = ("{}/wkw/color/2", "n5://{}/n5/s1")
HALVED = VOXELS[::2, ::2, ::2]
VERBS = {
    "pyramid": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, mags=["2"], existing="overwrite", method="mean", **more
    ),
    "pyramid of two": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, mags=["2", "4"], existing="overwrite", method="nearest", **more
    ),
    "update": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, mags=["2"], update="content", method="mean", **more
    ),
    "update of all": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, update="content", **more
    ),
    "upsample": lambda kind, url, source, **more: wkwdask.upsample(
        url, source="4", mags=["2"], existing="overwrite", **more
    ),
    "rm": lambda kind, url, source, **more: wkwdask.rm(url, mags=["2"], **more),
    "rm whole": lambda kind, url, source, **more: wkwdask.rm(url, **more),
    "rechunk": lambda kind, url, source, **more: wkwdask.rechunk(
        url,
        mags=["2"],
        **({"file_len": 4} if kind == "wkw" else {"chunk_shape": (4, 4, 4)}),
        **more,
    ),
    "compress": lambda kind, url, source, **more: wkwdask.compress(
        url, mags=["2"], compression="lz4" if kind == "wkw" else "gzip", **more
    ),
    "region": lambda kind, url, source, **more: wkwdask.save(
        VOXELS[:8, :8, :8],
        place(kind, url) if kind == "wkw" else url,
        region=HALF,
        **({} if kind == "wkw" else {"mag": 2}),
        **more,
    ),
    "save": lambda kind, url, source, **more: wkwdask.save(
        HALVED,
        place(kind, url),
        existing="overwrite",
        **({"mag": 2} if kind == "n5" else chosen(kind)),
        **more,
    ),
    "apply": _target(wkwdask.apply, np.invert),
    "components": _target(wkwdask.connected_components),
    "dust": lambda kind, url, source, **more: wkwdask.remove_dust(
        f"{source}/wkw/color/2", place(kind, url), 2, existing="overwrite", **more
    ),
    "remap": lambda kind, url, source, **more: wkwdask.remap(
        f"{source}/wkw/color/2", place(kind, url), {1: 2}, existing="overwrite", **more
    ),
    "renumber": _target(wkwdask.renumber),
    "convert": lambda kind, url, source, **more: wkwdask.convert(
        SOURCES[kind == "wkw"].format(source), place(kind, url), existing="overwrite", **more
    ),
    "repair": lambda kind, url, source, **more: wkwdask.repair(url, **more),
    "quarantine": lambda kind, url, source, **more: wkwdask.repair(url, quarantine=True, **more),
    "salvage": lambda kind, url, source, **more: wkwdask.repair(
        url, salvage=True, quarantine=True, **more
    ),
    "rebuild": lambda kind, url, source, **more: wkwdask.repair(
        url, rebuild_differing=True, method="mean", **more
    ),
}
CELLS = [(kind, way) for kind in WRITERS for way in ("relative", "absolute", "link")]
NEW = {
    "pyramid",
    "pyramid of two",
    "upsample",
    "save",
    "apply",
    "components",
    "dust",
    "remap",
    "renumber",
    "convert",
}


def tried(verb, kind, url, source, *, verbs=VERBS, **more):
    """Return what a verb reports, or its error."""
    try:
        return str(verbs[verb](kind, url, source, **more))
    except (WkwDaskError, ValueError) as error:
        return str(error)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("volumes", CELLS, indirect=True, ids="-".join)
def test_nothing_outside_changes(volumes, originals, verb):
    """The error names the document, the name in it and where it leads."""
    kind, way, outside, volume = volumes
    before = contents(outside)
    result = tried(verb, kind, f"{WRITERS[kind][0]}{volume}", originals)
    assert contents(outside) == before
    if kind == "n5" and way != "link" and verb in NEW:
        # N5 numbers levels: no name in the document makes it another folder
        assert result.startswith(f"{volume}/s1")
    elif kind == "wkw" and way != "link" and verb == "region":
        assert "no such folder" in result  # a mag is named by its folder
    else:
        stated = {
            "relative": f"../A/{LEVELS[kind]}",
            "absolute": f"{outside}/{LEVELS[kind]}",
            "link": LEVELS[kind].rpartition("/")[2],
        }[way]
        for text in (f"{volume}/{DOCUMENTS[kind]}", stated, f"{outside}/{LEVELS[kind]}"):
            assert text in result


READABLE = [
    (kind, way)
    for kind, way in CELLS
    if way == "link" or kind == "wkw" or (kind.startswith("precomputed") and way == "relative")
]
ALLOWED = {
    "pyramid": True,
    "update": True,
    "rm": False,
    "region": True,
    "quarantine": True,
    "rechunk": True,
}


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
    if kind.startswith("precomputed") and (way, verb) == ("link", "rechunk"):
        # `info` of the volume outside would describe other files
        assert "is a symbolic link" in result
        assert contents(outside) == before
        return
    assert contents(outside) != before, result
    assert (outside / LEVELS[kind]).exists() is ALLOWED[verb], result
    if verb in ("pyramid", "update"):
        expected = wkwdask.read(f"{WRITERS[kind][0]}{originals}/{kind}", mag="2")
        np.testing.assert_array_equal(wkwdask.read(url, mag="2"), expected)
        np.testing.assert_array_equal(
            wkwdask.read(f"{WRITERS[kind][0]}{outside}", mag="2"), expected
        )
    assert not [
        *volume.rglob(".wkwdask-job*"),
        *outside.rglob(".wkwdask-job*"),
        *outside.rglob("*-lock"),
    ]


@pytest.mark.parametrize(
    "volumes", [cell for cell in CELLS if cell[1] == "link"], indirect=True, ids="-".join
)
def test_an_interrupted_removal_outside_is_completed(volumes, monkeypatch):
    """The same call finds the job beside the level to which the link leads."""
    kind, _, outside, volume = volumes
    url = f"{WRITERS[kind][0]}{volume}"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("wkwdask.verbs.remove.RemovalWork._delete", killed)
        with pytest.raises(KeyboardInterrupt):
            wkwdask.rm(url, mags=["2"], allow_external=True)
    assert list(outside.rglob(".wkwdask-job*"))
    wkwdask.rm(url, mags=["2"], allow_external=True)
    assert not [
        *outside.rglob(".wkwdask-job*"),
        *volume.rglob(".wkwdask-job*"),
        *outside.rglob("*-lock"),
    ]
    assert not (outside / LEVELS[kind]).exists()
    assert not os.path.lexists(volume / LEVELS[kind])
    assert wkwdask.verify(url).is_sound


@pytest.mark.parametrize("kind", WRITERS)
def test_mags_are_removed_through_a_root_that_is_a_link(originals, tmp_path, kind):
    shutil.copytree(originals / kind, tmp_path / "A")
    (tmp_path / "link").symlink_to(tmp_path / "A")
    wkwdask.rm(f"{WRITERS[kind][0]}{tmp_path}/link", mags=["2"], allow_external=True)
    assert not (tmp_path / "A" / LEVELS[kind]).exists()
    assert (tmp_path / "link").is_symlink()
    assert wkwdask.verify(f"{WRITERS[kind][0]}{tmp_path}/A").is_sound


@pytest.mark.parametrize("volumes", READABLE, indirect=True, ids="-".join)
def test_levels_outside_are_read(volumes, originals):
    kind, _, outside, volume = volumes
    shutil.rmtree(outside)
    shutil.copytree(originals / kind, outside)
    url = f"{WRITERS[kind][0]}{volume}"
    np.testing.assert_array_equal(
        wkwdask.read(url, mag="2"), wkwdask.read(f"{WRITERS[kind][0]}{outside}", mag="2")
    )
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
    assert contents(tmp_path / "A") != before, result
    assert "lies outside" not in result
    if verb == "rm":
        assert not (tmp_path / "A" / LEVELS[kind]).exists()
        assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("kind", WRITERS)
def test_rm_of_a_whole_image_does_not_follow_a_link(originals, tmp_path, kind):
    shutil.copytree(originals / kind, tmp_path / "A")
    (tmp_path / "link").symlink_to(tmp_path / "A")
    before = contents(tmp_path / "A")
    assert "is a symbolic link; remove the link itself, or its target" in tried(
        "rm whole", kind, f"{WRITERS[kind][0]}{tmp_path}/link", originals
    )
    assert contents(tmp_path / "A") == before


@pytest.mark.parametrize("choice", [{"layer": "color"}, {"mags": ["2"]}], ids=["layer", "mags"])
def test_rm_of_a_part_of_a_linked_dataset(originals, tmp_path, choice):
    shutil.copytree(originals / "wkw", tmp_path / "A")
    (tmp_path / "link").symlink_to("A")
    wkwdask.rm(tmp_path / "link", **choice)
    assert not (tmp_path / "A/color/2").exists()
    assert (tmp_path / "A/color/1").exists() is ("mags" in choice)
    assert wkwdask.verify(tmp_path / "A").is_sound


@pytest.mark.parametrize("is_in_dataset", [False, True])
def test_rm_of_mags_of_a_layer_by_a_link_outside_of_any_dataset(originals, tmp_path, is_in_dataset):
    shutil.copytree(originals / "wkw", tmp_path / "A")
    if not is_in_dataset:
        (tmp_path / "A/datasource-properties.json").unlink()
    (tmp_path / "link").symlink_to("A/color")
    wkwdask.rm(tmp_path / "link", mags=["2"])
    assert not (tmp_path / "A/color/2").exists()
    assert (tmp_path / "A/color/1").exists()
    assert (tmp_path / "link").is_symlink()
    assert wkwdask.verify(
        tmp_path / "A" if is_in_dataset else tmp_path / "A/color"
    ).is_sound  # no document lists the removed mag
    with pytest.raises(
        wkwdask.UnsupportedError, match="is a symbolic link; remove the link itself, or its target"
    ):
        wkwdask.rm(tmp_path / "link")
    assert (tmp_path / "A/color/1").exists()


def test_rm_refuses_a_mag_or_a_layer_that_is_a_link(originals, tmp_path):
    shutil.copytree(originals / "wkw", tmp_path / "A")
    shutil.copytree(originals / "wkw", tmp_path / "B")
    shutil.rmtree(tmp_path / "B/color")
    (tmp_path / "B/color").symlink_to("../A/color")
    (tmp_path / "mag").symlink_to("A/color/2")
    before = contents(tmp_path / "A")
    for path, text in (("B/color", "lies outside the dataset"), ("mag", "is a symbolic link")):
        with pytest.raises(wkwdask.UnsupportedError, match=text):
            wkwdask.rm(tmp_path / path, mags=["2"])
    assert contents(tmp_path / "A") == before


# ------------------------------------------------------------------------------------------------
# documents that are links

LEVEL_DOCUMENTS = {
    "wkw": "header.wkw",
    "ngff-0.4": ".zarray",
    "ngff-0.5": "zarr.json",
    "n5": "attributes.json",
}
OF_IMAGES = {
    **VERBS,
    "convert": lambda kind, url, source, **more: (
        wkwdask.convert(f"{source}/wkw/color/1", url, existing="overwrite", **more)
        if kind == "n5"
        else VERBS["convert"](kind, url, source, **more)
    ),
}
"""Verbs that reach the documents: N5 refuses a level that is inside another one before it looks at
them."""
LINKED = [*((kind, "image") for kind in WRITERS), *((kind, "level") for kind in LEVEL_DOCUMENTS)]


def test_all_documents_are_known():
    from wkwdask.formats.registry import formats
    from wkwdask.formats.roots import DOCUMENTS

    own = [each for each in formats() if type(each).__module__.startswith("wkwdask.")]
    assert {
        name
        for each in own
        for name in (*each.documents, *each.container.image_files, each.level_folders.record)
        if name
    } == set(DOCUMENTS)


def _link(document, target):
    document.unlink()
    document.symlink_to(os.path.relpath(target, document.parent))


@pytest.fixture
def linked(request, originals, tmp_path):
    """Two volumes: a document of B is a link to that of A, and one file of B is damaged unless the
    test says otherwise."""
    kind, which = request.param
    for name in "AB":
        shutil.copytree(originals / kind, tmp_path / name)
    name = DOCUMENTS[kind] if which == "image" else f"{LEVELS[kind]}/{LEVEL_DOCUMENTS[kind]}"
    _link(tmp_path / "B" / name, tmp_path / "A" / name)
    return kind, name, tmp_path / "A", tmp_path / "B"


def _damage(volume, kind):
    files = (
        path
        for path in (volume / LEVELS[kind]).rglob("*")
        if path.is_file() and path.name[0] != "." and path.name not in LEVEL_DOCUMENTS.values()
    )
    file = max(files, key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("linked", LINKED, indirect=True, ids="-".join)
def test_nothing_changes_through_a_linked_document(linked, originals, verb):
    """The error names the link and where it leads."""
    kind, name, outside, volume = linked
    if (kind, verb, name) == ("n5", "convert", "s1/attributes.json"):
        pytest.skip("writes s0, and s1 stays unchanged")
    _damage(volume, kind)
    before = contents(outside), contents(volume)
    result = tried(verb, kind, f"{WRITERS[kind][0]}{volume}", originals, verbs=OF_IMAGES)
    assert (contents(outside), contents(volume)) == before
    for text in (f"{volume}/{name}: this link leads out of the", f"to {outside}/{name}"):
        assert text in result


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("linked", LINKED, indirect=True, ids="-".join)
def test_a_linked_document_becomes_an_own_one_if_that_is_allowed(linked, originals, verb):
    """Nothing that the other volume states becomes false; what was not damaged stays sound."""
    kind, _, outside, volume = linked
    if verb in ("repair", "quarantine", "salvage", "rebuild"):
        _damage(volume, kind)
    url, before, before_own = f"{WRITERS[kind][0]}{volume}", contents(outside), contents(volume)
    result = tried(verb, kind, url, originals, verbs=OF_IMAGES, allow_external=True)
    assert contents(outside) == before, result
    assert (
        contents(volume) != before_own or verb == "repair" or result.startswith("nothing to do")
    ), result
    assert "leads out of" not in result
    assert wkwdask.verify(f"{WRITERS[kind][0]}{outside}").is_sound
    if verb == "rm whole":
        assert not volume.exists()
    elif verb not in ("repair", "quarantine", "salvage"):
        assert wkwdask.verify(url).is_sound
    if volume.exists():
        np.testing.assert_array_equal(wkwdask.read(url, mag="1").squeeze(), VOXELS)
    assert not [*volume.rglob(".wkwdask-job*"), *outside.rglob("*-lock"), *volume.rglob("*-lock")]


@pytest.mark.parametrize("linked", LINKED, indirect=True, ids="-".join)
def test_linked_documents_are_read(linked):
    kind, _, _, volume = linked
    url = f"{WRITERS[kind][0]}{volume}"
    assert wkwdask.verify(url).is_sound
    np.testing.assert_array_equal(wkwdask.read(url, mag="1").squeeze(), VOXELS)


@pytest.mark.parametrize("way", ["a link to a link", "through a folder", "dangling", "absolute"])
@pytest.mark.parametrize("kind", WRITERS)
def test_ways_of_a_link(originals, tmp_path, kind, way):
    for name in "AB":
        shutil.copytree(originals / kind, tmp_path / name)
    outside, document = tmp_path / "A", tmp_path / "B" / DOCUMENTS[kind]
    document.unlink()
    if way == "a link to a link":
        (tmp_path / "B" / "other").symlink_to(f"../A/{DOCUMENTS[kind]}")
    elif way == "through a folder":
        (tmp_path / "B" / "folder").symlink_to("../A")
    target = {
        "a link to a link": "other",
        "through a folder": f"folder/{DOCUMENTS[kind]}",
        "dangling": "../A/missing",
        "absolute": outside / DOCUMENTS[kind],
    }[way]
    document.symlink_to(target)
    before = contents(outside), contents(tmp_path / "B")
    for verb in ("pyramid", "rm", "rm whole", "region", "save", "update", "rechunk", "quarantine"):
        result = tried(verb, kind, f"{WRITERS[kind][0]}{tmp_path}/B", originals)
        assert (contents(outside), contents(tmp_path / "B")) == before, (verb, result)
        assert "Error" not in result


@pytest.mark.parametrize("kind", WRITERS)
def test_a_new_image_does_not_begin_behind_a_link(originals, tmp_path, kind):
    (tmp_path / "A").mkdir()
    (tmp_path / "B").mkdir()
    (tmp_path / "B" / DOCUMENTS[kind]).symlink_to("../A/new")
    url = f"{WRITERS[kind][0]}{tmp_path}/B{'/color/1' if kind == 'wkw' else '/s0' if kind == 'n5' else ''}"  # noqa: E501
    options = {"voxel_size": (8, 8, 8), **({} if kind == "n5" else {"category": "segmentation"})}
    leads_out = f"B/{DOCUMENTS[kind]}: this link leads out of the .*, to {tmp_path}/A/new"
    refused = {"ngff-0.5": "a symbolic link to a missing file", "n5": leads_out}
    with pytest.raises(WkwDaskError, match=refused.get(kind, leads_out)):
        wkwdask.save(VOXELS, url, **options)
    assert not list((tmp_path / "A").iterdir())
    if kind in refused:
        return
    wkwdask.save(VOXELS, url, **options, allow_external=True)
    assert not list((tmp_path / "A").iterdir())
    np.testing.assert_array_equal(wkwdask.read(url).squeeze(), VOXELS)


@pytest.mark.parametrize("root_is_link", [False, True], ids=["folder", "link"])
@pytest.mark.parametrize(
    "verb", ["pyramid", "upsample", "rm", "region", "update", "rechunk", "quarantine"]
)
@pytest.mark.parametrize("kind", WRITERS)
def test_links_inside_of_the_root_are_kept(originals, tmp_path, kind, verb, root_is_link):
    """Versioned metadata: the link stays, and the version that it names is changed."""
    volume, _ = _copied(originals, kind, tmp_path / "B")
    (volume / ".versions").mkdir()
    for name in filter(
        None,
        (
            DOCUMENTS[kind],
            f"{LEVELS[kind]}/{LEVEL_DOCUMENTS[kind]}" if kind in LEVEL_DOCUMENTS else None,
        ),
    ):
        version = volume / ".versions" / name.replace("/", "-")
        (volume / name).rename(version)
        (volume / name).symlink_to(os.path.relpath(version, (volume / name).parent))
    (tmp_path / "link").symlink_to("B")
    if verb == "quarantine":
        _damage(volume, kind)
    url, before = (
        f"{WRITERS[kind][0]}{tmp_path}/{'link' if root_is_link else 'B'}",
        contents(volume),
    )
    result = tried(verb, kind, url, originals)
    assert contents(volume) != before, result
    assert "lead" not in result
    assert (volume / DOCUMENTS[kind]).is_symlink()
    assert ("16_16_16" in (volume / DOCUMENTS[kind]).read_text()) is (
        verb != "rm"
    ) or not kind.startswith("precomputed")
    assert wkwdask.verify(url).is_sound


def test_an_edit_of_a_level_does_not_change_the_document_of_another(originals, tmp_path):
    """A linked document of a level becomes a document of its folder, unless the link stays in the
    folder of the level."""
    volume, url = _copied(originals, "n5", tmp_path / "B")
    wkwdask.rm(url, mags=["1"])
    shutil.copyfile(volume / "s1" / "attributes.json", volume / "shared.json")
    _link(volume / "s1" / "attributes.json", volume / "shared.json")
    before = (volume / "shared.json").read_bytes()
    wkwdask.save(VOXELS, f"{url}/s0", voxel_size=(8, 8, 8), chunk_shape=(8, 8, 8))
    assert (volume / "shared.json").read_bytes() == before
    assert wkwdask.verify(url).is_sound


@pytest.mark.parametrize(
    "edit_dataset",
    [
        lambda folder: wkwdask.open_dataset(folder).set_view_configuration({"zoom": 2}),
        lambda folder: wkwdask.open_dataset(folder).rename_layer("color", "em"),
        lambda folder: wkwdask.create_dataset(folder, (8, 8, 8), existing="keep"),
        lambda folder: wkwdask.contrast(f"{folder}/color", write=True),
    ],
    ids=["view", "rename", "create", "statistics"],
)
def test_edits_of_a_dataset_stay_inside(originals, tmp_path, edit_dataset):
    outside, _ = _copied(originals, "wkw", tmp_path / "A")
    dataset, _ = _copied(originals, "wkw", tmp_path / "B")
    _link(dataset / DOCUMENTS["wkw"], outside / DOCUMENTS["wkw"])
    before = contents(outside), contents(dataset)
    with pytest.raises(
        wkwdask.UnsupportedError,
        match=(
            f"this link leads out of the dataset .*, to {outside}/{DOCUMENTS['wkw']}.*replace the "
            "link with a copy"
        ),
    ):
        edit_dataset(dataset)
    assert (contents(outside), contents(dataset)) == before


@pytest.mark.parametrize("verb", ["pyramid", "update", "region", "rm", "rechunk", "quarantine"])
@pytest.mark.parametrize("kind", WRITERS)
def test_records_that_are_links_are_not_written_through(originals, tmp_path, kind, verb):
    """A record of files or of a job, a lock and its guard, the folder of a killed job."""
    volume, url = _copied(originals, kind, tmp_path / "B")
    outside = tmp_path / "A"
    outside.mkdir()
    level, above = volume / LEVELS[kind], (volume / LEVELS[kind]).parent
    for path in level.rglob(".wkwdask*"):
        shutil.copyfile(path, outside / f"level{path.name}")
        _link(path, outside / f"level{path.name}")
    for name in (f".{level.name}.wkwdask-lock", ".wkwdask-guard", ".wkwdask-job-0123456789abcdef"):
        (outside / name).mkdir() if "job" in name else (outside / name).write_text("{}")
        (above / name).symlink_to(outside / name)
    if verb == "quarantine":
        _damage(volume, kind)
    before = contents(outside)
    result = tried(verb, kind, url, originals)
    assert contents(outside) == before, result


def test_outputs_that_are_links_are_not_written_through(originals, tmp_path):
    """A zip, a table, a manifest."""
    (tmp_path / "A").mkdir()
    for name in ("em.ozx", "table.csv", "manifest"):
        (tmp_path / "A" / name).write_text("of somebody else")
    before = contents(tmp_path / "A")
    (tmp_path / "em.ozx").symlink_to("A/em.ozx")
    (tmp_path / "table.csv").symlink_to("A/table.csv")
    volume, url = _copied(originals, "precomputed", tmp_path / "B")
    (volume / "wkwdask-manifest.txt").symlink_to("../A/manifest")
    for existing in ("error", "overwrite"):
        with contextlib.suppress(WkwDaskError, ValueError):
            wkwdask.convert(url, tmp_path / "em.ozx", existing=existing)
        assert contents(tmp_path / "A") == before
    wkwdask.label_statistics(url, output=tmp_path / "table.csv")
    wkwdask.write_manifest(volume)
    assert contents(tmp_path / "A") == before


# ------------------------------------------------------------------------------------------------
# links above the image

ABOVE = {
    "the folder of labels": ("labels", "labels/seg"),
    "labels": ("labels/seg", "labels/seg"),
    "a group in the middle": ("c.n5/setup0", "c.n5/setup0/timepoint0"),
    "the group": ("c.n5/setup0/timepoint0", "c.n5/setup0/timepoint0"),
    "the document of a setup": ("c.n5/setup0/attributes.json", "c.n5/setup0/timepoint0"),
}
"""Link in the volume, and the image."""
NESTED = {
    **{
        f"ngff-{ngff}-{link}": (f"ngff-{ngff}", link)
        for ngff in ("0.4", "0.5")
        for link in ("the folder of labels", "labels")
    },
    **{
        f"n5-{link}": ("n5", link)
        for link in ("a group in the middle", "the group", "the document of a setup")
    },
}
OF_NESTED = {
    **OF_IMAGES,
    "coarser": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, mags=["8"], method="mean", **more
    ),
    "in between": lambda kind, url, source, **more: wkwdask.build_pyramid(
        url, mags=["2-2-1"], method="mean", **more
    ),
    "rm finest": lambda kind, url, source, **more: wkwdask.rm(url, mags=["1"], **more),
    "rm coarsest": lambda kind, url, source, **more: wkwdask.rm(url, mags=["4"], **more),
    "rm level": lambda kind, url, source, **more: wkwdask.rm(f"{url}/{LEVELS[kind]}", **more),
    "new": lambda kind, url, source, **more: (
        wkwdask.save(VOXELS[::8, ::8, ::8], f"{url}/s3", mag=8, **more)
        if kind == "n5"
        else wkwdask.convert(f"{source}/wkw/color/1", f"{url.rpartition('/')[0]}/new", **more)
    ),
}


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    """Labels of an OME-Zarr image, and a time point of BigDataViewer."""
    folder = tmp_path_factory.mktemp("nested")
    for ngff in ("0.4", "0.5"):
        shape = {"voxel_size": (8, 8, 8), "chunk_shape": (8, 8, 8), "ngff": ngff}
        wkwdask.save(
            VOXELS.astype(np.uint8), f"zarr://{folder}/ngff-{ngff}", category="color", **shape
        )
        wkwdask.save(
            VOXELS, f"zarr://{folder}/ngff-{ngff}/labels/seg", category="segmentation", **shape
        )
        wkwdask.build_pyramid(f"zarr://{folder}/ngff-{ngff}/labels/seg", mags=["2", "4"])
    setup = folder / "n5" / "c.n5" / "setup0"
    setup.mkdir(parents=True)
    (setup / "attributes.json").write_text(
        json.dumps(
            {
                "n5": "2.5.1",
                "downsamplingFactors": [[1, 1, 1], [2, 2, 2], [4, 4, 4]],
                "dataType": "uint32",
            }
        )
    )
    _other("n5://")(setup / "timepoint0")
    return folder


@pytest.fixture
def linked_above(request, nested, tmp_path):
    """Two volumes: a folder or document of B, above an image or the image itself, is a link to that
    of A."""
    kind, link = NESTED[request.param]
    for name in "AB":
        shutil.copytree(nested / kind, tmp_path / name)
    name, image = ABOVE[link]
    path = tmp_path / "B" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(os.path.relpath(tmp_path / "A" / name, path.parent))
    return kind, name, tmp_path / "A", tmp_path / "B", f"{WRITERS[kind][0]}{tmp_path}/B/{image}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", OF_NESTED)
@pytest.mark.parametrize("linked_above", NESTED, indirect=True)
def test_nothing_changes_behind_a_link_above_the_image(linked_above, originals, verb):
    kind, name, outside, volume, url = linked_above
    before = contents(outside), contents(volume)
    result = tried(verb, kind, url, originals, verbs=OF_NESTED)
    assert contents(outside) == before[0], result
    if verb == "new" and name == "labels/seg":
        # the folder of labels is an own one
        assert wkwdask.verify(url.replace("/seg", "/new")).is_sound
    elif verb in ("repair", "quarantine", "salvage", "rebuild"):
        assert contents(volume) == before[1], result  # no fault
    else:
        assert contents(volume) == before[1], result
        found = (
            "is a symbolic link; remove the link itself",
            f"lies outside the volume {volume}",
            "this link leads out of the volume",
        )
        assert any(text in result for text in found), result


@pytest.mark.parametrize("verb", ["quarantine", "salvage", "rebuild"])
@pytest.mark.parametrize("linked_above", NESTED, indirect=True)
def test_nothing_is_repaired_behind_a_link_above_the_image(linked_above, originals, verb):
    kind, _, outside, volume, url = linked_above
    _damage(Path(url.partition("://")[2]), kind)
    before = contents(outside), contents(volume)
    result = tried(verb, kind, url, originals)
    assert (contents(outside), contents(volume)) == before
    assert f"{outside}/" in result
    assert "allow_external" in result


@pytest.mark.parametrize(
    "verb",
    [
        "pyramid",
        "update of all",
        "region",
        "rechunk",
        "coarser",
        "in between",
        *(each for each in OF_NESTED if "rm" in each),
        "new",
    ],
)
@pytest.mark.parametrize("linked_above", NESTED, indirect=True)
def test_what_is_allowed_behind_a_link_above_the_image_happens_there(linked_above, originals, verb):
    """The lists of both volumes stay true; a time point that leads out of its setup has two lists,
    and is refused."""
    kind, name, outside, volume, url = linked_above
    before = contents(outside), contents(volume)
    result = tried(verb, kind, url, originals, verbs=OF_NESTED, allow_external=True)
    if (name.endswith("timepoint0") and verb not in ("update of all", "region")) or (
        name == "labels/seg" and verb == "rm whole"
    ):
        assert "name that folder directly" in result or "remove the link and its name" in result
        assert (contents(outside), contents(volume)) == before
        return
    assert verb == "update of all" or (contents(outside), contents(volume)) != before, result
    if verb == "rm whole":
        assert not os.path.exists(url.partition("://")[2])
        if kind != "n5":
            assert (
                "seg"
                not in (
                    outside / "labels" / {"ngff-0.4": ".zattrs", "ngff-0.5": "zarr.json"}[kind]
                ).read_text()
            )
        return
    for folder in (volume, outside):
        assert wkwdask.verify(f"{WRITERS[kind][0]}{folder}/{url.partition('/B/')[2]}").is_sound
    assert not [
        *volume.rglob(".wkwdask-job*"),
        *outside.rglob(".wkwdask-job*"),
        *outside.rglob("*-lock"),
    ]


@pytest.mark.parametrize("kind", ["ngff-0.4", "ngff-0.5"])
def test_labels_without_levels_are_not_listed(nested, originals, tmp_path, kind):
    shutil.copytree(nested / kind, tmp_path / "A")
    listed = tmp_path / "A" / "labels" / {"ngff-0.4": ".zattrs", "ngff-0.5": "zarr.json"}[kind]
    wkwdask.convert(f"{originals}/wkw/color/1", f"zarr://{tmp_path}/A/labels/other")
    wkwdask.rm(f"zarr://{tmp_path}/A/labels/seg", mags=["4"])
    assert '"seg"' in listed.read_text()
    wkwdask.rm(f"zarr://{tmp_path}/A/labels/seg")
    assert '"seg"' not in listed.read_text()
    assert '"other"' in listed.read_text()
    assert wkwdask.verify(f"zarr://{tmp_path}/A/labels/other").is_sound


@pytest.mark.parametrize("linked_above", NESTED, indirect=True)
def test_images_behind_a_link_above_them_are_read(linked_above):
    *_, url = linked_above
    np.testing.assert_array_equal(wkwdask.read(url, mag="1").squeeze(), VOXELS)
    assert wkwdask.verify(url).is_sound


@pytest.mark.parametrize("verb", ["pyramid", "region", "rechunk", "coarser", "rm coarsest"])
@pytest.mark.parametrize("kind", ["ngff-0.4", "ngff-0.5", "n5"])
def test_the_container_may_be_a_link(nested, originals, tmp_path, kind, verb):
    shutil.copytree(nested / kind, tmp_path / "A")
    (tmp_path / "link").symlink_to("A")
    image = "c.n5/setup0/timepoint0" if kind == "n5" else "labels/seg"
    before = contents(tmp_path / "A")
    result = tried(
        verb, kind, f"{WRITERS[kind][0]}{tmp_path}/link/{image}", originals, verbs=OF_NESTED
    )
    assert contents(tmp_path / "A") != before, result
    assert wkwdask.verify(f"{WRITERS[kind][0]}{tmp_path}/A/{image}").is_sound


@pytest.mark.parametrize(
    "linked_above",
    [name for name in NESTED if name.startswith("n5") and "document" not in name],
    indirect=True,
)
def test_documents_of_a_view_stay_inside_of_the_container(linked_above):
    *_, outside, _, url = linked_above
    before = contents(outside)
    with pytest.raises(wkwdask.UnsupportedError, match="lies outside the volume"):
        wkwdask.n5_as_zarr(url, write=True)
    assert contents(outside) == before


# ------------------------------------------------------------------------------------------------
# other ways


def _copied(originals, kind, folder):
    shutil.copytree(originals / kind, folder)
    return folder, f"{WRITERS[kind][0]}{folder}"


OWN_LEVELS = [("precomputed", "16_16_16"), ("ngff-0.4", "2"), ("ngff-0.5", "2")]


BELOW, SAME = ("{}/inner", "{}/9"), ("./{}", "{}/../{}", "{}//")


@pytest.mark.parametrize(
    ("kind", "name", "inner"),
    [
        *((kind, name, inner) for kind, name in OWN_LEVELS for inner in (*BELOW, *SAME)),
        # an N5 dataset states its own mag, so two names of one folder are one level
        *(("n5", "s1", inner) for inner in BELOW),
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
        kept = {
            path: state
            for path, state in before.items()
            if state[0] is not None and (volume / path).is_relative_to(place)
        }
        assert {path: after.get(path) for path in kept} == kept, result
        assert any(
            text in result
            for text in (
                "the level",
                "use the folder of scale",
                "contains other files",
                "is already there",
                "already",
            )
        ), result


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


@pytest.mark.parametrize(
    ("kind", "inner"), [("wkw", "z0"), ("ngff-0.4", "0"), ("n5", "0"), ("n5", "0/0")]
)
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
@pytest.mark.parametrize(
    "verb", ["pyramid", "update", "region", "quarantine", "rechunk", "rm whole"]
)
def test_an_image_behind_a_link_in_a_container(originals, tmp_path, kind, verb):
    shutil.copytree(originals / kind, tmp_path / "A")
    (tmp_path / "C.n5").mkdir()
    (tmp_path / "C.n5" / "link").symlink_to(tmp_path / "A")
    document = {"n5": "attributes.json"}.get(kind, ".zgroup")
    (tmp_path / "C.n5" / document).write_text(
        '{"n5": "4.0.0"}' if kind == "n5" else '{"zarr_format": 2}'
    )
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
    with pytest.raises(
        wkwdask.UnsupportedError, match=f"B/s1/zarr.json: lies outside .* at {tmp_path}/A/s1"
    ):
        wkwdask.n5_as_zarr(url, write=True)
    assert contents(tmp_path / "A") == before
    wkwdask.n5_as_zarr(url, write=True, allow_external=True)
    assert (tmp_path / "A" / "s1" / "zarr.json").exists()
    with pytest.raises(wkwdask.UnsupportedError, match="lies outside"):
        wkwdask.n5_as_zarr(url, remove=True)
    dataset, _ = _copied(originals, "wkw", tmp_path / "ds")
    _copied(originals, "wkw", tmp_path / "other")
    edit(
        "wkw",
        dataset,
        lambda entries, field: [
            entry.update({field: f"../other/color/{2**n}"}) for n, entry in enumerate(entries)
        ],
    )
    before = contents(tmp_path / "other")
    with pytest.raises(
        wkwdask.UnsupportedError, match=r"datasource-properties.json names it '\.\./other/color/1'"
    ):
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
        with pytest.raises(
            wkwdask.UnsupportedError,
            match=rf"B/info names it '{key}'\), and is not served; allow_external=True",
        ):
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
        ("/v", "8_8_8", "/v/8_8_8"),
        ("/v", "./a//b/", "/v/a/b"),
        ("/v", "a/../../x", "/x"),
        ("/v", "../v/a", "/v/a"),
        ("/v", "", "/v"),
        ("/v", ".", "/v"),
        ("/v", "/abs/../x", "/x"),
        ("/v", "file:///x/y", "/x/y"),
        ("/v", "gs://b/x", "gs://b/x"),
        ("/v", "..\\x", "/v/..\\x"),
        ("/v", "%2e%2e/x", "/v/%2e%2e/x"),
        ("/v", "~/x", "/v/~/x"),
        ("/v", "../../../../x", "/x"),
        ("https://host/v", "../x", "https://host/x"),
        ("https://host/v", "../../../x", "https://host/x"),
        ("s3://bucket/v", "../../x", "s3://bucket/x"),
        ("/a.zip|zip:/v", "../../../x", "/a.zip|zip:/x"),
    ],
)
def test_names_become_paths(folder, name, expected):
    from wkwdask.store.paths import stated_path

    assert stated_path(folder, name) == expected


def test_a_quarantine_that_is_a_link_is_not_used(originals, tmp_path):
    volume, url = _copied(originals, "precomputed", tmp_path / "B")
    (tmp_path / "A").mkdir()
    (volume / ".wkwdask-quarantine").symlink_to(tmp_path / "A")
    file = next(path for path in sorted((volume / "8_8_8").iterdir()) if path.name[0] != ".")
    file.write_bytes(b"x")
    with pytest.raises(
        wkwdask.UnsupportedError, match=f"at {tmp_path}/A/8_8_8/.*, and nothing is set aside there"
    ):
        wkwdask.repair(url, quarantine=True)
    assert not list((tmp_path / "A").iterdir())
    assert file.read_bytes() == b"x"


@pytest.mark.parametrize(
    ("before", "after"),
    [("../A/s1", "s1"), ("s1", "../A/new"), ("/A", "s1"), ("..", "s1"), ("s1", "")],
)
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
    with pytest.raises(
        wkwdask.UnsupportedError, match=f"em/labels: lies outside .* at {tmp_path}/A"
    ):
        wkwdask.write_zarr_view(dataset)
    assert not list((tmp_path / "A").iterdir())
