"""Updates after rounds of changes by other software: each equals a rebuild, as the reference
library reads it.

Files are written by wkw where it is installed, else by this package, and moved over the old ones.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, without_flushing
from faults.trees import JSON_NAME, contents, differences, leftovers, make_dataset, states
from support.locks import put_lock, this_process

import wkwdask
from wkwdask.errors import LockedError, MissingError, ResumeError

try:
    import wkw
except ImportError:
    wkw = None

BLOCK_LEN, FILE_LEN = 8, 2
EDGE = BLOCK_LEN * FILE_LEN  # of a file [voxels]
COMPLETED = "nothing to do"


@pytest.fixture(autouse=True, scope="module")
def _serial():
    with without_flushing(), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(params=["wkw", "wkwdask"])
def program(request):
    """The software that writes files and reads the result."""
    if request.param == "wkw" and wkw is None:
        pytest.skip("the oracle wkw 1.1.24 is not installed")
    return {"wkw": Wkw, "wkwdask": Ours}[request.param]


class Wkw:
    """The reference library."""

    @staticmethod
    def write(folder, voxels):
        header = wkw.Header(
            voxels.dtype.type,
            num_channels=len(voxels),
            block_len=BLOCK_LEN,
            file_len=FILE_LEN,
            block_type=wkw.Header.BLOCK_TYPE_LZ4,
        )
        with wkw.Dataset.create(str(folder), header) as dataset:
            dataset.write((0, 0, 0), np.asfortranarray(voxels))

    @staticmethod
    def read(folder, box):
        with wkw.Dataset.open(str(folder)) as dataset:
            return dataset.read(box.topleft, box.size)


class Ours:
    """This package."""

    @staticmethod
    def write(folder, voxels):
        wkwdask.write(
            folder, (0, 0, 0), voxels, block_len=BLOCK_LEN, file_len=FILE_LEN, compression="lz4"
        )

    @staticmethod
    def read(folder, box):
        return wkwdask.read(folder, box)


@dataclass(frozen=True)
class Layer:
    """One pyramid that is kept up to date."""

    name: str
    dtype: str
    channels: int
    offset: tuple[int, int, int]
    shape: tuple[int, int, int]
    mags: tuple[str, ...]
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self):
        return self.name

    def voxels(self, random, shape):
        """Blobs and noise."""
        coarse = random.integers(
            0, 250, [self.channels, *(-(-n // 2) for n in shape)], dtype=self.dtype
        )
        array = coarse.repeat(2, 1).repeat(2, 2).repeat(2, 3)[:, : shape[0], : shape[1], : shape[2]]
        return array * (random.random(array.shape) < 0.8)

    def make(self, folder):
        """Write the finest mag, with holes, and build the others."""
        random = np.random.default_rng(50)
        make_dataset(folder, (8, 8, 8))
        array = self.voxels(random, self.shape)
        array[:, 40:80, 10:50] = 0
        wkwdask.to_wkw(
            array,
            folder / self.name / "1",
            offset=self.offset,
            block_len=BLOCK_LEN,
            file_len=FILE_LEN,
            compression="lz4",
        )
        self.build(folder)
        return folder

    def build(self, folder, **options):
        """Build all mags."""
        return wkwdask.build_pyramid(
            folder, self.name, mags=self.mags, **{**dict(self.options), **options}
        )

    def update(self, folder, **options):
        """Update all mags."""
        return wkwdask.build_pyramid(folder, self.name, **{"update": True, **options})

    def box(self, folder, mag):
        """Return the box of a mag."""
        return wkwdask.open_dataset(folder)[self.name][mag].box

    def files(self, folder):
        """Places of files of the finest mag along each axis, those inside the box."""
        box = self.box(folder, "1")
        return [
            range(low // EDGE, -(-high // EDGE))
            for low, high in zip(box.topleft, box.bottomright, strict=True)
        ]

    def path(self, folder, mag, index):
        """Name a file."""
        return folder / self.name / mag / "z{2}/y{1}/x{0}.wkw".format(*index)


COLOR = Layer("color", "uint8", 1, (5, 0, 9), (120, 75, 60), ("2", "4", "8"))
LABELS = Layer(
    "labels",
    "uint32",
    1,
    (0, 17, 3),
    (90, 60, 70),
    ("2-2-1", "4-4-2", "16-16-8"),
    (("ignore_zero", True),),
)
CHANNELS = Layer(
    "channels", "uint16", 3, (33, 2, 0), (70, 50, 40), ("2", "4-8-4"), (("method", "mean"),)
)
LAYERS = {layer.name: layer for layer in (COLOR, LABELS, CHANNELS)}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return {name: layer.make(folder / name) for name, layer in LAYERS.items()}


@pytest.fixture(params=list(LAYERS))
def layer(request):
    return LAYERS[request.param]


@pytest.fixture
def dataset(originals, layer, tmp_path):
    return copied(originals[layer.name], tmp_path / "ds")


@pytest.fixture
def color(originals, tmp_path):
    return copied(originals["color"], tmp_path / "ds")


def copied(original, folder):
    """Copy a dataset with all times, so that its pyramid is up to date."""
    shutil.copytree(original, folder, copy_function=shutil.copy2)
    return folder


def check_rebuilt(layer, folder, *, program=Ours):
    """Build the mags of the same finest mag elsewhere, and compare files and voxels."""
    fresh = folder.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(folder / layer.name / "1", fresh / layer.name / "1")
    document = json.loads((folder / JSON_NAME).read_text())
    for entry in document["dataLayers"]:
        entry["mags"] = [mag for mag in entry["mags"] if mag["path"].endswith("/1")]
    (fresh / JSON_NAME).write_text(json.dumps(document))
    layer.build(fresh)
    found, expected = contents(folder), contents(fresh)
    for name in found.keys() - expected.keys():
        assert not touches_box(layer, fresh, name), f"{name} would not be rebuilt"
        del found[name]  # of a box that was larger once: no reader that knows the box looks at it
    assert {name for name in found if name != JSON_NAME} == {
        name for name in expected if name != JSON_NAME
    }
    for mag in layer.mags:
        box = layer.box(fresh, mag)
        np.testing.assert_array_equal(
            program.read(folder / layer.name / mag, box),
            program.read(fresh / layer.name / mag, box),
        )
    assert differences(found, expected) == []
    assert leftovers(folder) == []


def touches_box(layer, folder, name):
    """Return whether a file holds voxels of its mag's box."""
    *_, mag, z, y, x = name.removesuffix(".wkw").split("/")
    box = layer.box(folder, mag)
    index = [int(part[1:]) for part in (x, y, z)]
    return all(
        low // EDGE <= i < -(-high // EDGE)
        for i, low, high in zip(index, box.topleft, box.bottomright, strict=True)
    )


def above(layer, index):
    """Name the files that a file of the finest mag goes into."""
    found = set()
    for mag in layer.mags:
        factors = wkwdask.Mag.parse(mag).factors
        x, y, z = (i // f for i, f in zip(index, factors, strict=True))
        found.add(f"{layer.name}/{mag}/z{z}/y{y}/x{x}.wkw")
    return found


def changed(before, after):
    """Name the files that came, went or were replaced."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def coarser(layer, files):
    """Select the files of the pyramid's mags."""
    return {name for name in files if not name.startswith(f"{layer.name}/1/")}


class Editor:
    """Another program that changes files of the finest mag."""

    def __init__(self, layer, folder, program, seed):
        self.layer, self.folder, self.program = layer, folder, program
        self.random = np.random.default_rng(seed)
        self.scratch = folder.parent / "scratch"

    def any_index(self):
        return tuple(int(self.random.choice(axis)) for axis in self.layer.files(self.folder))

    def put(self, index, voxels):
        """Write or replace a file."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.program.write(self.scratch / "1", voxels)
        path = self.layer.path(self.folder, "1", index)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = self.scratch / "1" / "z0" / "y0" / "x0.wkw"
        if source.exists():
            os.replace(source, path)
        else:  # this package stores no file of zeros
            path.unlink(missing_ok=True)

    def edit(self):
        """Change one file, and return its index."""
        index = self.any_index()
        path = self.layer.path(self.folder, "1", index)
        cube = (EDGE,) * 3
        what = self.random.choice(
            ["replace", "some", "zeros", "remove", "touch"], p=[0.4, 0.2, 0.1, 0.2, 0.1]
        )
        if what == "replace":
            self.put(index, self.layer.voxels(self.random, cube))
        elif what == "some":  # one voxel, which may change nothing above
            voxels = (
                self.stored(index)
                if path.exists()
                else np.zeros((self.layer.channels, *cube), self.layer.dtype)
            )
            voxels[:, 3, 4, 5] += 1
            self.put(index, voxels)
        elif what == "zeros":
            self.put(index, np.zeros((self.layer.channels, *cube), self.layer.dtype))
        elif what == "remove":
            path.unlink(missing_ok=True)
        elif path.exists():
            os.utime(path)
        return index

    def stored(self, index):
        """All voxels of a file, also outside the box."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        target = self.scratch / "1" / "z0" / "y0" / "x0.wkw"
        target.parent.mkdir(parents=True)
        shutil.copy(self.layer.path(self.folder, "1", index), target)
        shutil.copy(self.folder / self.layer.name / "1" / "header.wkw", self.scratch / "1")
        return np.array(wkwdask.read(self.scratch / "1", ((0, 0, 0), (EDGE,) * 3)))


# ----------------------------------------------------------------------------- many changes


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 2 + KILLS // 5))
def test_an_update_equals_a_rebuild_after_each_round_of_changes(layer, dataset, program, seed):
    """It writes only files above a change."""
    editor = Editor(layer, dataset, program, seed)
    for _ in range(3):
        edited = {editor.edit() for _ in range(editor.random.integers(1, 9))}
        before = states(dataset)
        layer.update(dataset)
        touched = coarser(layer, changed(before, states(dataset)))
        assert touched <= set().union(*(above(layer, index) for index in edited))
        assert changed(before, states(dataset)) == touched, "the source was written"
        check_rebuilt(layer, dataset, program=program)
        again = states(dataset), records(dataset)
        assert COMPLETED in layer.update(dataset).note
        assert (states(dataset), records(dataset)) == again


def records(dataset):
    """Read the records of all mags."""
    return {str(path): path.read_bytes() for path in dataset.rglob(".wkwdask*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 3 + KILLS // 5))
def test_partial_updates_are_completed_by_a_full_one(color, seed):
    editor = Editor(COLOR, color, Ours, seed)
    edited = set()
    for _ in range(4):
        edited |= {editor.edit() for _ in range(6)}
        topleft = [
            int(editor.random.integers(low * EDGE, high * EDGE))
            for low, high in ((0, 7), (0, 4), (1, 4))
        ]
        before = states(color)
        COLOR.update(
            color, update=False, bounding_box=(*topleft, *editor.random.integers(1, 40, 3).tolist())
        )
        assert coarser(COLOR, changed(before, states(color))) <= set().union(
            *(above(COLOR, index) for index in edited)
        )
        if editor.random.random() < 0.7:
            COLOR.update(color)
            check_rebuilt(COLOR, color)
            edited = set()
    COLOR.update(color)
    check_rebuilt(COLOR, color)
    assert COMPLETED in COLOR.update(color).note


def test_threads_update_like_a_single_one(color):
    editor = Editor(COLOR, color, Ours, 5)
    for _ in range(12):
        editor.edit()
    with dask.config.set(scheduler="threads", num_workers=2):
        COLOR.update(color)
    check_rebuilt(COLOR, color)
    assert COMPLETED in COLOR.update(color).note


# ----------------------------------------------------------------------------- removed and touched
# files


def test_files_of_zeros_are_removed_and_return_with_their_source(color):
    low = [axis.start for axis in COLOR.files(color)]
    corner = tuple(2 * (i // 2 + 1) for i in low)
    below = [
        (corner[0] + x, corner[1] + y, corner[2] + z)
        for x in (0, 1)
        for y in (0, 1)
        for z in (0, 1)
    ]
    kept = {
        index: COLOR.path(color, "1", index).read_bytes()
        for index in below
        if COLOR.path(color, "1", index).exists()
    }
    assert len(kept) > 4
    above_it = COLOR.path(color, "2", tuple(i // 2 for i in corner))
    assert above_it.exists()
    editor = Editor(COLOR, color, Wkw if wkw is not None else Ours, 0)
    for index in kept:
        editor.put(index, np.zeros((1, EDGE, EDGE, EDGE), np.uint8))
    COLOR.update(color)
    assert not above_it.exists()
    check_rebuilt(COLOR, color)
    for index, data in kept.items():
        COLOR.path(color, "1", index).write_bytes(data)
    COLOR.update(color)
    assert above_it.exists()
    check_rebuilt(COLOR, color)


def test_removed_source_files_remove_coarser_ones(color):
    for path in (color / "color" / "1").rglob("x*.wkw"):
        if path.name != "x3.wkw":
            path.unlink()
    COLOR.update(color)
    check_rebuilt(COLOR, color)
    for path in (color / "color" / "1").rglob("x*.wkw"):
        path.unlink()
    with pytest.raises(MissingError, match="the mag has no data files"):
        COLOR.update(color, finest="1")


def test_touched_files_change_nothing(layer, dataset):
    """They are read, but no file is written and no coarser mag is read."""
    before = states(dataset)
    paths = sorted((dataset / layer.name / "1").rglob("x*.wkw"))
    for path in paths[::3]:
        os.utime(path)
    report = layer.update(dataset)
    assert "0 of them changed" in report.note
    assert len(report.mags) == 1
    assert coarser(layer, changed(before, states(dataset))) == set()
    assert COMPLETED in layer.update(dataset).note


# ----------------------------------------------------------------------------- by content


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "mag", "has_record"),
    [(COLOR, "2", True), (COLOR, "8", False), (LABELS, "4-4-2", False), (CHANNELS, "4-8-4", True)],
    ids=str,
)
def test_an_update_by_content_repairs_damage(layer, dataset, mag, has_record):
    """One file is replaced by another valid one, one is removed, one is added."""
    if not has_record:
        for path in dataset.rglob(".wkwdask-files.npy"):
            path.unlink()
    before = states(dataset)
    files = sorted((dataset / layer.name / mag).rglob("x*.wkw"))
    status = files[-1].stat()
    other = files[0].read_bytes()
    files[-1].write_bytes(other)
    os.utime(files[-1], ns=(status.st_atime_ns, status.st_mtime_ns))
    files[0].unlink()
    paths = [layer.path(dataset, mag, index) for index in np.ndindex(9, 9, 9)]
    missing = [
        path
        for path in paths
        if not path.exists()
        and path != files[0]
        and touches_box(layer, dataset, str(path.relative_to(dataset)))
    ]
    for path in missing[:1]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(other)
    layer.update(dataset, update="content")
    check_rebuilt(layer, dataset)
    touched = changed(before, states(dataset))
    assert touched <= {str(path.relative_to(dataset)) for path in (files[0], files[-1])}
    assert COMPLETED in layer.update(dataset).note


def test_an_update_by_content_leaves_a_sound_pyramid_unchanged(layer, dataset):
    before = states(dataset)
    report = layer.update(dataset, update="content")
    assert "0 of them changed" in report.note
    assert states(dataset) == before


def test_an_update_by_content_notices_changes_without_a_new_time(color):
    path = sorted((color / "color" / "1").rglob("x*.wkw"))[4]
    voxels = wkwdask.read(color, layer="color", mag="1")
    wkwdask.to_wkw(
        255 - voxels,
        color.parent / "x" / "1",
        offset=COLOR.offset,
        block_len=BLOCK_LEN,
        file_len=FILE_LEN,
        compression="raw",
    )
    (color / "color" / "1" / "header.wkw").write_bytes(
        (color.parent / "x" / "1" / "header.wkw").read_bytes()
    )
    for source in (color / "color" / "1").rglob("x*.wkw"):
        other = color.parent / "x" / "1" / source.relative_to(color / "color" / "1")
        source.unlink()
        if other.exists():
            shutil.copy(other, source)
    COLOR.update(color)
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(255 - value for value in data[100:3000])
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert COMPLETED in COLOR.update(color).note
    assert "nothing to do" not in COLOR.update(color, update="content").note
    fresh = copied(color, color.parent / "again")
    wkwdask.build_pyramid(fresh, "color", mags=COLOR.mags, existing="overwrite", compression="lz4")
    assert differences(contents(color), contents(fresh)) == []


# ----------------------------------------------------------------------------- boxes


def test_an_update_of_a_box_writes_only_files_that_touch_it(color):
    axes = COLOR.files(color)
    voxels = COLOR.voxels(np.random.default_rng(6), [len(axis) * EDGE for axis in axes])
    changed_mag = color.parent / "changed" / "1"
    wkwdask.write(
        changed_mag,
        [axis.start * EDGE for axis in axes],
        voxels,
        block_len=BLOCK_LEN,
        file_len=FILE_LEN,
        compression="lz4",
    )
    for path in changed_mag.rglob("x*.wkw"):
        target = color / "color" / "1" / path.relative_to(changed_mag)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    fresh = copied(color, color.parent / "anew")
    COLOR.build(fresh, existing="overwrite")
    before, new = states(color), contents(fresh)
    box = wkwdask.BoundingBox((40, 20, 30), (30, 5, 40))
    COLOR.update(color, update=False, bounding_box=box)
    touching = {f"color/2/z{z}/y{y}/x{x}.wkw" for x in (1, 2) for y in (0,) for z in (0, 1, 2)}
    first = {name for name in changed(before, states(color)) if name.startswith("color/2/")}
    assert first == touching & set(new)
    assert all(contents(color)[name] == new[name] for name in first)
    COLOR.update(color)
    assert differences(contents(color), new) == []


@pytest.mark.parametrize(
    ("topleft", "size"),
    [
        ((0, 0, 0), (140, 90, 80)),  # grown on all sides
        ((5, 0, 9), (131, 75, 60)),  # by a part of a file
        ((9, 3, 11), (100, 61, 57)),  # less on all sides
    ],
)
def test_an_update_follows_another_box_of_the_layer(color, topleft, size):
    """Files on the border are rebuilt, since their windows hold other voxels."""
    path = color / JSON_NAME
    document = json.loads(path.read_text())
    box = document["dataLayers"][0]["boundingBox"]
    box["topLeft"], (box["width"], box["height"], box["depth"]) = list(topleft), size
    path.write_text(json.dumps(document))
    before = states(color)
    COLOR.update(color)
    assert "color/2/z1/y1/x1.wkw" not in changed(before, states(color))
    check_rebuilt(COLOR, color)
    assert COMPLETED in COLOR.update(color).note
    editor = Editor(COLOR, color, Ours, 7)
    for index in [(0, 0, 0), (7, 4, 4), (8, 5, 4)]:  # now inside, if it has grown
        editor.put(index, COLOR.voxels(editor.random, (EDGE,) * 3))
    COLOR.update(color)
    check_rebuilt(COLOR, color)


# ----------------------------------------------------------------------------- refusals


def test_another_method_is_refused(color):
    before = states(color)
    for options in ({"method": "max"}, {"method": "median", "ignore_zero": True}):
        with pytest.raises(ResumeError, match="made with median, not "):
            COLOR.update(color, **options)
    assert states(color) == before
    COLOR.update(color, method="median")


@pytest.mark.parametrize("mag", [0, 1, 2])
def test_a_missing_mag_is_refused(color, mag):
    shutil.rmtree(color / "color" / COLOR.mags[mag])
    with pytest.raises(
        MissingError,
        match=f"mag {COLOR.mags[mag]} is missing and cannot be updated; build it first",
    ):
        wkwdask.build_pyramid(color, "color", mags=COLOR.mags, update=True)
    assert leftovers(color) == []


def test_a_locked_mag_is_refused(color):
    editor = Editor(COLOR, color, Ours, 8)
    editor.put((2, 2, 2), COLOR.voxels(editor.random, (EDGE,) * 3))
    before = states(color)
    lock = put_lock(color / "color" / "4", this_process("the other job"))
    with pytest.raises(LockedError, match="the other job"):
        COLOR.update(color)
    assert states(color) == before
    lock.unlink()
    COLOR.update(color)
    check_rebuilt(COLOR, color)
