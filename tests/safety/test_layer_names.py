"""A ``datasource-properties.json`` from elsewhere whose layers have names and paths that lead out
of the dataset, or that no file system takes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.commands import run_here

import wkwdask

OPTIONS = {"block_len": 8, "file_len": 2}
FILE = "datasource-properties.json"
NAMES = ["../victim/seg", "x/../../victim/seg", "/etc", ".", "..", "a\0b", "\ud800x"]
VERBS = {
    "open": lambda folder, name: wkwdask.open(folder, layer=name),
    "rename": lambda folder, name: wkwdask.open_dataset(folder).rename_layer(name, "new"),
    "rename to": lambda folder, name: wkwdask.open_dataset(folder).rename_layer("seg", name),
    "add": lambda folder, name: wkwdask.open_dataset(folder).add_layer(
        name, "color", "uint8", (0, 0, 0, 8, 8, 8)
    ),
    "add from disk": lambda folder, name: wkwdask.open_dataset(folder).add_layer_from_disk(name),
    "add mags": lambda folder, name: wkwdask.open_dataset(folder).add_mags_from_disk(name),
    "remove files": lambda folder, name: wkwdask.open_dataset(folder).remove_layer(
        name, delete_files=True
    ),
    "remove mag": lambda folder, name: wkwdask.open_dataset(folder).remove_mag(
        name, 1, delete_files=True
    ),
    "rm": lambda folder, name: wkwdask.rm(folder, layer=name),
    "pyramid": lambda folder, name: wkwdask.build_pyramid(folder, name),
    "upsample": lambda folder, name: wkwdask.upsample(folder, name),
    "compress": lambda folder, name: wkwdask.compress(folder, layer=name),
    "copy": lambda folder, name: wkwdask.copy(folder, folder.parent / "copy"),
    "rechunk": lambda folder, name: wkwdask.rechunk(folder, folder.parent / "copy", file_len=1),
    "merge": lambda folder, name: wkwdask.merge(
        folder, folder / "none.zip", folder.parent / "copy", layer=name
    ),
}


def make(folder):
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.to_wkw(
        np.arange(1, 4097, dtype=np.uint32).reshape(16, 16, 16), folder / "seg" / "1", **OPTIONS
    )
    return folder


def edit(folder, change):
    document = json.loads((folder / FILE).read_text())
    change(document["dataLayers"][0])
    (folder / FILE).write_text(json.dumps(document))


def contents(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_name_that_leads_elsewhere_is_refused_by_every_verb(tmp_path, verb):
    make(tmp_path / "victim")
    folder = make(tmp_path / "ds")
    original, before = (folder / FILE).read_text(), contents(tmp_path / "victim")
    for name in NAMES:
        for pathless in (True, False):

            def change(layer, name=name, pathless=pathless):
                layer["name"] = name
                for mag in layer["mags"] if pathless else ():
                    del mag["path"]

            (folder / FILE).write_text(original)
            edit(folder, change)
            seen = contents(folder)
            with pytest.raises(
                (wkwdask.WkwDaskError, ValueError),
                match=r"expected a name that a folder|of letters|no layer|no path|already",
            ) as caught:
                VERBS[verb](folder, name)
            assert not isinstance(caught.value, UnicodeError)
            assert "null byte" not in str(caught.value)
            assert contents(folder) == seen
            assert contents(tmp_path / "victim") == before
            assert not (tmp_path / "copy").exists()


def test_all_that_is_listed_says_what_is_wrong(tmp_path):
    for name in NAMES:
        folder = make(tmp_path / f"ds{NAMES.index(name)}")
        edit(folder, lambda layer, name=name: layer.update(name=name))
        for command in (["info", folder], ["verify", folder], ["repair", folder, "--dry-run"]):
            ended = run_here(*command)
            assert ended.returncode in (0, 1, 3), ended.stderr
            assert (
                "expected a name that a folder in the dataset can have"
                in ended.stdout + ended.stderr
            )
        (layer,) = wkwdask.open_dataset(folder)
        assert "expected a name that a folder in the dataset can have" in layer.problem
        if layer.name == name:  # else it is called by its place, and repair takes it off
            assert not wkwdask.open_dataset(folder).remove_layer(name).layers


@pytest.mark.parametrize("path", ["a\0b", "./seg/\ud8001"])
def test_paths_that_no_file_system_takes(tmp_path, path):
    folder = make(tmp_path / "ds")
    original = (folder / FILE).read_text()
    edit(folder, lambda layer: layer["mags"][0].update(path=path))
    with pytest.raises(wkwdask.CorruptError, match=r"mags\[0\]\.path: expected a path"):
        wkwdask.read(folder, layer="seg")
    (folder / FILE).write_text(original)
    edit(
        folder,
        lambda layer: layer.update(
            attachments={"meshes": [{"name": "m", "path": path, "dataFormat": "zarr3"}]}
        ),
    )
    other = wkwdask.create_dataset(tmp_path / "other", (4, 4, 4))
    with pytest.raises(wkwdask.CorruptError, match=r"attachments\.meshes: expected a path"):
        other.add_layer_as_ref(folder / "seg")
    for function in (wkwdask.open_dataset, wkwdask.open, wkwdask.build_pyramid):
        with pytest.raises(
            ValueError, match="not a valid path: it contains a NUL byte or a lone surrogate"
        ):
            function(f"{folder}/{path}")


def test_names_that_other_software_allows_are_kept(tmp_path):
    for name in ("my layer (1)", "Zellkörper", "..a", "a..b", "\U0001f9e0"):
        folder = make(tmp_path / name)
        edit(folder, lambda layer, name=name: layer.update(name=name))
        assert wkwdask.read(folder, layer=name).shape == (1, 16, 16, 16)
        assert wkwdask.open_dataset(folder).rename_layer(name, "seg")["seg"].read().max() == 4096
