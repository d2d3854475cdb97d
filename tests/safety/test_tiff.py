"""TIFF files that are damaged or crafted: an error that names the file, soon, and never zeros in
place of what is stored."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError

tifffile = pytest.importorskip(
    "tifffile", reason="tifffile, of the extra convert, is not installed"
)

VOXEL_SIZE = (4, 4, 35)
SHORT, LONG = 3, 4


def section(height=64, width=64):
    return np.random.default_rng(0).integers(1, 255, (height, width), np.uint8)


def directory(tags, at=8, following=0):
    """A directory of (code, type, count, value), with what follows."""
    entries = b"".join(
        struct.pack("<HHI", code, kind, count) + struct.pack("<I", value)
        for code, kind, count, value in sorted(tags)
    )
    return struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)


def image_tags(height, width=64, **more):
    """The tags of an uncompressed image of uint8 in one strip, but for where it lies."""
    named = {
        "rows": (278, LONG, 1, height),
        "offsets": (273, LONG, 1, 8),
        "counts": (279, LONG, 1, height * width),
        "compression": (259, SHORT, 1, 1),
    }
    named |= more
    always = [
        (256, LONG, 1, width),
        (257, LONG, 1, height),
        (258, SHORT, 1, 8),
        (262, SHORT, 1, 1),
        (277, SHORT, 1, 1),
    ]
    return always + [tag for tag in named.values() if tag is not None]


def write(path, *directories, data=b""):
    """A TIFF of some data and then the directories, each a list of tags; the last may lead to any
    offset."""
    raw = b"II*\0" + struct.pack("<I", 8 + len(data)) + data
    for n, tags in enumerate(directories):
        size = 2 + 12 * len(tags) + 4
        raw += directory(tags, following=len(raw) + size if n + 1 < len(directories) else 0)
    path.write_bytes(raw)
    return path


def patched(path, code, change):
    """Change an entry of the first directory of a file that tifffile wrote."""
    raw = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", raw, 4)
    (count,) = struct.unpack_from("<H", raw, at)
    for n in range(count):
        entry = at + 2 + 12 * n
        if struct.unpack_from("<H", raw, entry)[0] == code:
            change(raw, entry)
    path.write_bytes(raw)
    return path


def hidden(raw, entry):
    """Change the code of a tag to one that nobody reads."""
    struct.pack_into("<H", raw, entry, 65000)


def fail(source, tmp_path, **options):
    with pytest.raises((FormatError, UnsupportedError), match=r"a\.(ome\.)?tif") as caught:
        wkwdask.convert(source, tmp_path / "ds", voxel_size=VOXEL_SIZE, **options)
    assert not (tmp_path / "ds" / "color" / "1").exists()
    return str(caught.value)


def taken(source, tmp_path):
    wkwdask.convert(source, tmp_path / "ds", voxel_size=VOXEL_SIZE, existing="overwrite")
    return wkwdask.read(tmp_path / "ds", mag=1)[0].T  # it may be all zero


# ----------------------------------------------------------------------------- strips


@pytest.mark.parametrize(
    "options",
    [
        {"rowsperstrip": 16},
        {"rowsperstrip": 16, "compression": "zlib"},
        {"compression": "zlib"},
        {"tile": (16, 16)},
    ],
)
def test_a_file_without_byte_counts_is_no_sparse_one(tmp_path, options):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, section(), metadata=None, **options)
    patched(path, 325 if "tile" in options else 279, hidden)
    assert "byte counts" in fail(path, tmp_path)


def test_one_raw_strip_needs_no_byte_count(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", section(), metadata=None)
    np.testing.assert_array_equal(
        taken(patched(tmp_path / "a.tif", 279, hidden), tmp_path)[0], section()
    )


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize(("zeroed", "what"), [((279,), "0 bytes"), ((273,), "offset 0")])
def test_a_count_of_zero_at_an_offset_is_an_error(tmp_path, compression, rows, zeroed, what):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, section(), metadata=None, rowsperstrip=rows, compression=compression)
    for code in zeroed:
        patched(path, code, zero_last)
    assert what in fail(path, tmp_path)


def zero_last(raw, entry):
    """Zero the last value of a tag."""
    kind, count, at = struct.unpack_from("<HII", raw, entry + 2)
    size = {SHORT: 2, LONG: 4}[kind]
    first = entry + 8 if size * count <= 4 else at
    raw[first + size * (count - 1) : first + size * count] = bytes(size)


def test_a_file_without_pages_is_no_section(tmp_path):
    (tmp_path / "s").mkdir()
    for name in ("0.tif", "2.tif"):
        tifffile.imwrite(tmp_path / "s" / name, section(), metadata=None)
    empty = tmp_path / "s" / "1a.tif"
    empty.write_bytes(b"II*\0" + bytes(8))
    for source in (empty, tmp_path / "s"):
        with pytest.raises(FormatError, match=r"1a\.tif: cannot be read: holds no pages"):
            wkwdask.convert(source, tmp_path / "ds", voxel_size=VOXEL_SIZE)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("rows", [16, 64])
def test_a_sparse_strip_is_zero(tmp_path, compression, rows):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, section(), metadata=None, rowsperstrip=rows, compression=compression)
    for code in (273, 279):
        patched(path, code, zero_last)
    expected = section()
    expected[-rows:] = 0
    np.testing.assert_array_equal(taken(path, tmp_path)[0], expected)


@pytest.mark.parametrize("height", [5_000_000, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("missing", [("offsets", "counts"), ("counts",), ("offsets",), ()])
@pytest.mark.parametrize("compression", [1, 5, 8])
def test_rows_that_are_not_stored(tmp_path, height, missing, compression):
    """A header of some hundred bytes that claims millions of rows."""
    more = dict.fromkeys(missing) | {"compression": (259, SHORT, 1, compression)}
    if "counts" not in missing:
        more["counts"] = (279, LONG, 1, 100)
    fail(write(tmp_path / "a.tif", image_tags(height, **more), data=bytes(100)), tmp_path)
    more["rows"] = (278, LONG, 1, 16)
    fail(write(tmp_path / "a.tif", image_tags(height, **more), data=bytes(100)), tmp_path)


def test_a_sparse_strip_of_any_size_is_no_image(tmp_path):
    tags = image_tags(2**31 - 1, offsets=(273, LONG, 1, 0), counts=(279, LONG, 1, 0))
    fail(write(tmp_path / "a.tif", tags), tmp_path)


def test_a_strip_of_fewer_bytes_than_its_rows(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, section(), metadata=None)
    fail(
        patched(path, 279, lambda raw, entry: struct.pack_into("<I", raw, entry + 8, 10)), tmp_path
    )


# ----------------------------------------------------------------------------- directories


def loop(tmp_path, length):
    """A chain of directories whose last one leads back to the first."""
    path = write(tmp_path / "a.tif", *[image_tags(4) for _ in range(length)], data=bytes(256))
    raw = bytearray(path.read_bytes())
    raw[-4:] = raw[4:8]
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("length", [1, 2, 100, 101, 500])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_loop_of_directories(tmp_path, length, as_folder):
    (tmp_path / "s").mkdir()
    path = loop(tmp_path / "s", length)
    assert "overlap or form a loop" in fail(path.parent if as_folder else path, tmp_path)


def test_directories_that_overlap(tmp_path):
    """Each begins 8 bytes behind the one before it, and all claim a thousand tags."""
    count, step = 5_000, 8
    raw = bytearray(b"II*\0" + struct.pack("<I", 8) + bytes(step * count + 14_000))
    for n in range(count):
        struct.pack_into("<H", raw, 8 + step * n, 1000)
        struct.pack_into("<I", raw, 8 + step * n + 2 + 12_000, 8 + step * (n + 1))
    (tmp_path / "a.tif").write_bytes(raw)
    fail(tmp_path / "a.tif", tmp_path)


def test_tags_that_claim_the_file_again_and_again(tmp_path):
    data = bytes(1 << 20)
    tags = image_tags(64) + [(65000, LONG, 1 << 18, 8)] * 4000
    assert "tags claim" in fail(write(tmp_path / "a.tif", tags, data=data), tmp_path)


def test_directories_below_that_are_listed_many_times(tmp_path):
    count = 20_000
    data = (
        struct.pack("<I", 8 + 4 * count) * count
        + directory(image_tags(4) + [(65000, LONG, 1, 0)] * 1000)
        + bytes(256)
    )
    tags = [*image_tags(4), (330, LONG, count, 8)]
    assert "overlap or form a loop" in fail(write(tmp_path / "a.tif", tags, data=data), tmp_path)


@pytest.mark.parametrize(
    "description",
    [
        "ImageJ=1.53\nimages=2000000000\nslices=2000000000\n",
        '{"shape": [2000000000, 64, 64]}',
        '{"shape": ' + "[" * 20_000,
    ],
)
def test_pages_that_are_only_described(tmp_path, description):
    tifffile.imwrite(tmp_path / "a.tif", section(), description=description, metadata=None)
    fail(tmp_path / "a.tif", tmp_path)


def ome(size_z, data="<TiffData/>", more=""):
    size = (
        f'DimensionOrder="XYZCT" Type="uint8" SizeX="64" SizeY="64" SizeZ="{size_z}" SizeC="1" '
        'SizeT="1"'
    )
    return (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        f'<Image ID="Image:0"><Pixels ID="Pixels:0" {size}><Channel ID="Channel:0:0" '
        f'SamplesPerPixel="1"/>{data}</Pixels></Image>{more}</OME>'
    )


MODULO = (
    '<StructuredAnnotations><XMLAnnotation ID="A" '
    'Namespace="openmicroscopy.org/omero/dimension/modulo"><Value><Modulo>'
    '<ModuloAlongZ Type="other" Start="0" End="1e12" '
    'Step="1"/></Modulo></Value></XMLAnnotation></StructuredAnnotations>'
)


@pytest.mark.parametrize(
    "text",
    [
        ome(2_000_000_000),
        ome(4, '<TiffData IFD="0" PlaneCount="2000000000"/>'),
        ome(2_000_000_000, '<TiffData FirstZ="1999999999" IFD="0" PlaneCount="1"/>'),
        ome(1, more=MODULO),
    ],
    ids=["planes", "count", "first", "modulo"],
)
def test_planes_that_are_only_claimed(tmp_path, text):
    tifffile.imwrite(tmp_path / "a.ome.tif", section(), description=text, metadata=None)
    fail(tmp_path / "a.ome.tif", tmp_path)


@pytest.mark.parametrize("name", ["../other.ome.tif", "{absolute}", "link.ome.tif"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_planes_in_files_of_other_folders(tmp_path, name, as_folder):
    """A set of OME-TIFFs lies in one folder."""
    (tmp_path / "s").mkdir()
    tifffile.imwrite(tmp_path / "other.ome.tif", section(), metadata=None)
    (tmp_path / "s" / "link.ome.tif").symlink_to(tmp_path / "other.ome.tif")
    name = name.format(absolute=tmp_path / "other.ome.tif")
    text = ome(
        1,
        (
            '<TiffData FirstZ="0" IFD="0" PlaneCount="1"><UUID '
            f'FileName="{name}">urn:uuid:1</UUID></TiffData>'
        ),
    )
    tifffile.imwrite(tmp_path / "s" / "a.ome.tif", section(), description=text, metadata=None)
    if as_folder:
        (tmp_path / "s" / "link.ome.tif").unlink()
    if not as_folder or not name.startswith("link"):
        assert "other.ome.tif" in fail(
            tmp_path / "s" if as_folder else tmp_path / "s" / "a.ome.tif", tmp_path
        )
