"""verify, info, rm and copy of a volume with meshes: faults are named with file, place and
expectation."""

from __future__ import annotations

import json
import shutil
import struct
import sys

import numpy as np
import pytest
from support.commands import run_here
from support.mesh_files import read_level

import wkwdask
from wkwdask.errors import CorruptError, ExistsError, MissingError, TruncatedError, UnsupportedError
from wkwdask.formats.precomputed import mesh_reader, mesh_writer
from wkwdask.formats.precomputed.mesh_reader import open_meshes, parse_manifest
from wkwdask.formats.precomputed.meshes import (
    LevelOfDetail,
    format_manifest,
    format_segment_properties,
)

SHAPE = (40, 30, 20)


def labels():
    voxels = np.zeros(SHAPE, np.uint32)
    voxels[3:35, 4:12, 4:16] = 1
    voxels[3:40, 15:25, 4:16] = 2
    voxels[5:8, 27, 5:7] = 3
    return voxels


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A volume with meshes."""
    pytest.importorskip("zmesh")
    folder = tmp_path_factory.mktemp("meshes") / "cells"
    url = f"precomputed://{folder}"
    wkwdask.save(labels(), url, voxel_size=(8, 6, 30), category="segmentation")
    wkwdask.meshes(url, cell=12, sharded=False)
    return folder


@pytest.fixture
def volume(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "cells")
    return tmp_path / "cells"


def cut(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])


def patched(path, offset, data):
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


def edited(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}))


DAMAGE = [
    (lambda m: (m / "2").unlink(), "mesh.fragment", "mesh/2: no file, expected a file of "),
    (lambda m: cut(m / "2", 500), "mesh.fragment", "mesh/2: ends at byte 500, expected fragments"),
    (lambda m: patched(m / "2", 0, b"DRACO"[::-1]), "mesh.fragment", "label 2, level 0, cell 0,"),
    (lambda m: (m / "2.index").unlink(), "mesh.orphan", "mesh/2: a file, expected with "),
    (
        lambda m: (m / "2").write_bytes((m / "2").read_bytes() + b"more"),
        "mesh.orphan",
        "as its manifest states",
    ),
    (lambda m: cut(m / "2.index", 20), "mesh.manifest", "20 bytes ends in its head"),
    (lambda m: cut(m / "2.index", 200), "mesh.manifest", "a manifest of 200 bytes, expected "),
    (
        lambda m: patched(m / "2.index", 24, struct.pack("<I", 900)),
        "mesh.manifest",
        "states 900 levels of detail, expected 1 to 64",
    ),
    (
        lambda m: patched(m / "2.index", 28, struct.pack("<f", 9)),
        "mesh.manifest",
        "lod_scales [9.0, 2.0, 4.0] decrease",
    ),
    (lambda m: patched(m / "2.index", 0, b"\0" * 4), "mesh.manifest", "expected finite numbers"),
    (lambda m: (m / "info").write_text("{"), "mesh.info", "mesh/info: byte 1: not valid JSON"),
    (
        lambda m: edited(m / "info", vertex_quantization_bits=12, transform=[1]),
        "mesh.info",
        "vertex_quantization_bits: expected 10 or 16, found 12; transform: expected 12 numbers",
    ),
    (
        lambda m: edited(m / "info", **{"@type": "neuroglancer_legacy_mesh"}),
        "mesh.unsupported",
        "meshes of type 'neuroglancer_legacy_mesh'",
    ),
    (lambda m: shutil.rmtree(m), "mesh.missing", "cells/info: names meshes in "),
    (lambda m: (m / "notes.txt").write_text(""), "name.stray", "mesh/notes.txt: not part of"),
]


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
@pytest.mark.parametrize(("damage", "kind", "text"), DAMAGE, ids=[text for _, _, text in DAMAGE])
def test_faults_are_named(volume, damage, kind, text):
    damage(volume / "mesh")
    report = wkwdask.verify(f"precomputed://{volume}")
    assert {fault.kind for fault in report.faults} == {kind}
    assert text in str(report)
    assert report.is_sound == (report.count("error") == 0)
    summary = wkwdask.info(f"precomputed://{volume}")
    assert len(summary.notes) == 1


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_sound_meshes(volume):
    report = wkwdask.verify(f"precomputed://{volume}")
    assert report.is_sound
    assert not report.faults
    meshes = report.mags[-1]
    assert (meshes.mag, meshes.folder, meshes.files) == ("mesh", str(volume / "mesh"), 6)
    files = [path for path in (volume / "mesh").iterdir() if path.name != "info"]
    assert meshes.nbytes == sum(path.stat().st_size for path in files)
    assert meshes.blocks > 20
    assert wkwdask.verify(f"precomputed://{volume}", mags="1").mags[-1].mag == "1"
    notes = wkwdask.info(f"precomputed://{volume}").to_json()["notes"]
    assert notes[0].startswith(f"meshes in {volume / 'mesh'}: 3 labels in 7 files, ")
    quick = run_here("verify", f"precomputed://{volume}", "--quick", "--json")
    assert [mag["blocks"] for mag in json.loads(quick.stdout)["mags"]] == [0, 0]


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_info_counts_the_labels_of_shards(volume, monkeypatch):
    url, folder = f"precomputed://{volume}", volume / "mesh"
    monkeypatch.setattr(mesh_writer, "_SHARD_LABELS", 1)
    wkwdask.meshes(url, cell=12, existing="overwrite")
    assert len([*folder.glob("*.shard")]) > 1

    def note():
        (found,) = wkwdask.info(url).notes
        return found.partition(", ")[0]

    num_files = len([*folder.iterdir()])
    assert note() == f"meshes in {folder}: 3 labels in {num_files} files"
    monkeypatch.setattr(mesh_reader, "_MOST_TABLES", 1)
    assert note() == f"meshes in {folder}: {num_files} files"
    monkeypatch.undo()
    path = next(folder.glob("*.shard"))
    cut(path, 9)
    assert note().startswith(f"meshes: {path}: ends at byte 9")


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_quick_compares_sizes(volume):
    cut(volume / "mesh" / "2", 500)
    faults = wkwdask.verify(f"precomputed://{volume}", quick=True).faults
    assert [fault.kind for fault in faults] == ["mesh.fragment"]


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_meshes_that_cannot_be_decoded_here_are_not_sound(volume, monkeypatch):
    monkeypatch.setitem(sys.modules, "DracoPy", None)
    report = wkwdask.verify(f"precomputed://{volume}")
    assert report.unchecked == (str(volume / "mesh"),)
    assert "not checked: " in report.verdict
    assert report.remedies()[0].startswith("remedy of mesh.unsupported: install what it names")


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_the_reader_agrees_with_the_description(volume):
    meshes = open_meshes(str(volume / "mesh"))
    assert meshes.labels() == [1, 2, 3]
    for label, lods in ((1, 3), (3, 1)):
        for lod in range(lods):
            vertices, faces = read_level(volume / "mesh", label, lod)
            found = meshes.triangles(label, lod)
            np.testing.assert_allclose(found.vertices, vertices)
            assert (found.faces == faces).all()
        finest = read_level(volume / "mesh", label, 0)[1]
        assert len(meshes.triangles(label).faces) == len(finest)
    with pytest.raises(MissingError, match="mesh: no mesh of label 4"):
        meshes.triangles(4)
    with pytest.raises(MissingError, match="info: no such file: no meshes here"):
        open_meshes(str(volume / "8_6_30"))


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_rm_removes_the_meshes_of_a_whole_volume(volume):
    planned = wkwdask.rm(f"precomputed://{volume}", dry_run=True)
    assert str(volume / "mesh") in planned.paths
    report = wkwdask.rm(f"precomputed://{volume}")
    assert (report.files, report.nbytes, report.remaining) == (planned.files, planned.nbytes, ())
    assert not volume.exists()


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
@pytest.mark.parametrize("foreign", ["notes.txt", "link"])
def test_rm_leaves_what_is_not_only_meshes(tmp_path, volume, foreign):
    if foreign == "link":
        (volume / "mesh").rename(tmp_path / "elsewhere")
        (volume / "mesh").symlink_to(tmp_path / "elsewhere")
    else:
        (volume / "mesh" / foreign).write_text("mine")
    report = wkwdask.rm(f"precomputed://{volume}")
    assert report.remaining == (str(volume / "mesh"),)
    assert (volume / "mesh" / "1.index").exists()


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_rm_of_a_mag_keeps_the_meshes(volume):
    wkwdask.build_pyramid(f"precomputed://{volume}", mags=["2"], method="mode")
    wkwdask.rm(f"precomputed://{volume}", mags="2")
    assert json.loads((volume / "info").read_bytes())["mesh"] == "mesh"
    assert wkwdask.verify(f"precomputed://{volume}").is_sound


def test_damaged_manifests_raise_errors_of_the_format():
    cells = np.array([[0, 0, 0], [1, 0, 0]])
    raw = format_manifest((256, 256, 256), [LevelOfDetail(cells, [100, 80])] * 2)
    assert parse_manifest(raw, "1.index").nbytes == 360
    for end in range(len(raw)):
        with pytest.raises((TruncatedError, CorruptError), match=r"1.index: byte 7: a manifest"):
            parse_manifest(raw[:end], "1.index", 7)


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/v", "s3://other/v"])
def test_remote_volumes_name_no_local_meshes(name):
    from wkwdask.formats.precomputed.info import parse_info
    from wkwdask.formats.precomputed.info_file import named_meshes

    document = {
        "@type": "neuroglancer_multiscale_volume",
        "type": "segmentation",
        "data_type": "uint32",
        "num_channels": 1,
        "scales": [],
    }
    local = parse_info(json.dumps({**document, "mesh": "/etc"}).encode(), "info")
    assert named_meshes(name, local) is None
    inside = parse_info(json.dumps({**document, "mesh": "mesh"}).encode(), "info")
    assert named_meshes(name, inside) == f"{name}/mesh"
    assert named_meshes(name, parse_info(json.dumps(document).encode(), "info")) is None


def test_other_kinds_of_meshes_are_named(tmp_path):
    (tmp_path / "info").write_text('{"@type": "neuroglancer_legacy_mesh"}')
    with pytest.raises(UnsupportedError, match="meshes of type 'neuroglancer_legacy_mesh'"):
        open_meshes(str(tmp_path))


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
@pytest.mark.parametrize("stated", ["properties", "names"])
def test_segment_properties_of_the_user_are_kept(tmp_path, stated):
    folder, url = tmp_path / "cells", f"precomputed://{tmp_path / 'cells'}"
    wkwdask.save(labels(), url, voxel_size=(8, 6, 30), category="segmentation")
    edited(folder / "info", segment_properties=stated)
    with pytest.raises(ExistsError, match=f"names the properties of segments in '{stated}'; ex"):
        wkwdask.meshes(url, cell=12, segment_properties=True)
    assert not (folder / "mesh").exists()
    wkwdask.meshes(url, cell=12)
    assert json.loads((folder / "info").read_bytes())["segment_properties"] == stated
    wkwdask.meshes(url, cell=12, segment_properties=True, existing="overwrite")
    assert json.loads((folder / "info").read_bytes())["segment_properties"] == "mesh/properties"


@pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
def test_segment_properties(tmp_path):
    folder, url = tmp_path / "cells", f"precomputed://{tmp_path / 'cells'}"
    wkwdask.save(labels(), url, voxel_size=(8, 6, 30), category="segmentation")
    wkwdask.meshes(url, cell=12, min_voxels=7, segment_properties=True)
    info = json.loads((folder / "info").read_bytes())
    assert (info["mesh"], info["segment_properties"]) == ("mesh", "mesh/properties")
    document = json.loads((folder / info["segment_properties"] / "info").read_bytes())
    assert document["@type"] == "neuroglancer_segment_properties"
    assert document["inline"]["ids"] == ["1", "2"]
    (sizes,) = document["inline"]["properties"]
    assert (sizes["id"], sizes["type"], sizes["data_type"]) == ("voxels", "number", "uint32")
    assert sizes["values"] == [int((labels() == label).sum()) for label in (1, 2)]
    assert wkwdask.verify(url).faults == ()
    # the new meshes have none
    wkwdask.meshes(url, cell=12, existing="overwrite")
    assert "segment_properties" not in json.loads((folder / "info").read_bytes())
    assert not (folder / "mesh" / "properties").exists()
    wkwdask.meshes(url, cell=12, existing="overwrite", segment_properties=True)
    assert wkwdask.rm(url).remaining == ()
    assert not folder.exists()


def test_many_voxels_are_stated_as_floats():
    raw = format_segment_properties(np.array([2**63 + 5], np.uint64), np.array([2**40]))
    inline = json.loads(raw)["inline"]
    assert inline["ids"] == [str(2**63 + 5)]
    assert inline["properties"][0]["data_type"] == "float32"


def test_new_voxels_leave_old_meshes(tmp_path):
    folder, url = tmp_path / "cells", f"precomputed://{tmp_path / 'cells'}"
    options = {"voxel_size": (8, 6, 30), "category": "segmentation"}
    wkwdask.save(labels(), url, **options)
    wkwdask.build_pyramid(url, mags=["2"], method="mode")
    edited(folder / "info", mesh="mesh")
    warned = pytest.warns(UserWarning, match=f"{folder}/mesh: the meshes are those of the old vox")
    with warned:
        wkwdask.save(labels() * 2, url, **options, existing="overwrite")
    with warned:
        wkwdask.save(labels()[:8], url, region=((0, 0, 0), (8, 30, 20)), mag=1)
    with warned:
        wkwdask.build_pyramid(url, update=True)
    assert json.loads((folder / "info").read_bytes())["mesh"] == "mesh"
    # these change no voxels of the finest mag
    wkwdask.build_pyramid(url, mags=["2"], method="mode", existing="overwrite")
    wkwdask.rechunk(url, chunk_shape=(32, 32, 32))
