"""All faults of headers and tables at once, and manifests as GNU coreutils write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import any_length_headers, headers

from wkwdask.errors import CorruptError, FormatError, UnsupportedError
from wkwdask.formats.webknossos.datasource import (
    format_segment_id,
    largest_segment_id,
    valid_parts,
    with_fields,
    without_mags,
)
from wkwdask.formats.wkw.file import parse_jump_table
from wkwdask.formats.wkw.file_check import (
    VALID,
    check_file_header,
    check_mag_header,
    classify_bounds,
)
from wkwdask.formats.wkw.header import format_header, make_header, parse_header
from wkwdask.geometry.mag import Mag
from wkwdask.model.faults import KINDS, SEVERITIES, Fault
from wkwdask.model.remedies import REMEDIES
from wkwdask.verbs.manifest import format_manifest, parse_manifest

HEADER = make_header("uint32", 2, block_len=8, file_len=2)


def test_all_faults_of_a_header():
    raw = b"XYZ\2" + bytes([0x55, 9, 99, 3]) + bytes(8)
    header, faults = check_mag_header(raw, "header.wkw")
    assert header is None
    assert [(fault.kind, fault.offset) for fault in faults] == [
        ("header.magic", 0),
        ("header.version", 3),
        ("header.block_type", 5),
        ("header.voxel_type", 6),
    ]


def test_all_differences_of_a_file():
    raw = format_header(make_header("uint16", 3, block_len=4, file_len=4).for_data_file())
    header, faults = check_file_header(raw, 999, HEADER, "x0.wkw")
    assert header is None
    assert [fault.kind for fault in faults] == [
        "file.block_len",
        "file.file_len",
        "file.voxel_type",
        "file.channels",
    ]


@given(raw=st.binary(max_size=24) | any_length_headers().map(format_header))
def test_headers_as_the_parser_judges(raw):
    """Any bytes: a header without an error is one that can be parsed, and no other is."""
    header, faults = check_mag_header(raw, "header.wkw")
    try:
        parsed = parse_header(raw, "header.wkw", is_data_file=False)
    except (FormatError, UnsupportedError):
        parsed = None
    assert (header is None) == (parsed is None)
    assert parsed is None or parsed.with_block_type(parsed.block_type) == header
    if parsed is not None and not parsed.data_offset:
        assert [fault.kind for fault in faults if fault.severity == "error"] == []


@given(header=headers(), data=st.data())
def test_tables_as_the_parser_judges(header, data):
    """All blocks are good where the parser takes the table and no block is empty."""
    if not header.is_compressed:
        return
    first, nbytes = header.smallest_data_offset, header.smallest_data_offset + 60
    places = st.integers(first - 3, nbytes + 3) | st.integers(0, 2**64 - 1)
    entries = data.draw(
        st.lists(places, min_size=header.blocks_per_file + 1, max_size=header.blocks_per_file + 1)
    )
    if data.draw(st.booleans()):
        entries.sort()
    bounds = np.array(entries, np.uint64)
    good = classify_bounds(bounds, header, nbytes) == VALID
    try:
        parse_jump_table(
            bounds.astype("<u8").tobytes(), header, 0, header.blocks_per_file, nbytes, "x0.wkw"
        )
        parsed = True
    except FormatError:
        parsed = False
    assert bool(good.all()) == (parsed and bool((np.diff(bounds.astype(np.int64)) > 0).all()))


def test_every_kind_says_what_it_means():
    for kind, (severity, meaning) in KINDS.items():
        assert severity in SEVERITIES
        assert meaning
        assert not meaning.endswith(".")
        assert "." in kind or kind == "quarantine"
        assert bool(REMEDIES.get(kind)) == (severity != "note"), kind
    assert set(REMEDIES) <= set(KINDS)
    fault = Fault("block.too_few", "a/x0.wkw", "5 bytes", "9", 3, (1, 2, 3), 77, 4)
    assert str(fault) == (
        "error block.too_few: a/x0.wkw (block 3, voxel 1, 2, 3, byte 77): 5 bytes, expected 9 (and "
        "4 more): reads of this block fail"
    )
    assert fault.to_json()["voxel"] == (1, 2, 3)


NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))


@given(hashes=st.dictionaries(NAMES, st.sampled_from(["0" * 64, "f" * 64]), max_size=5))
def test_manifests_of_any_names(hashes):
    assert parse_manifest(format_manifest(hashes.items(), 5), "manifest") == hashes


@pytest.mark.parametrize(
    "text", ["abc\n", "0" * 63 + "  name\n", "0" * 64 + " name\n", "g" * 64 + "  name\n"]
)
def test_what_is_no_manifest(text):
    with pytest.raises(CorruptError, match="manifest: line 1"):
        parse_manifest(text, "manifest")


def test_segment_ids():
    for value in (0, 5, (1 << 53) - 1, 1 << 53, (1 << 64) - 1):
        assert largest_segment_id({"largestSegmentId": format_segment_id(value)}) == value
    # as webknossos 4.3.3 writes it
    assert format_segment_id(1 << 60) == {
        "customJsonEncoding": "bigint",
        "value": "1152921504606846976",
    }
    assert [
        largest_segment_id(one)
        for one in ({}, {"largestSegmentId": None}, {"largestSegmentId": "x"})
    ] == [None] * 3


@pytest.mark.parametrize(("key", "mag_key"), [("mags", "mag"), ("wkwResolutions", "resolution")])
def test_edits_of_both_forms(key, mag_key):
    entries = [
        {mag_key: [1, 1, 1], "cubeLength": 1024, "odd": 1},
        {mag_key: [2, 2, 1], "cubeLength": 512},
    ]
    document = {
        "other": 1,
        "dataLayers": [{"name": "a", key: entries, "odd": 2}, {"name": "b", "mags": []}],
    }
    fewer = without_mags(document, "a", [Mag(2, 2, 1)])
    assert fewer["dataLayers"][0] == {"name": "a", key: entries[:1], "odd": 2}
    assert with_fields(document, "b", {"x": 1})["dataLayers"] == [
        document["dataLayers"][0],
        {"name": "b", "mags": [], "x": 1},
    ]
    assert len(document["dataLayers"][0][key]) == 2  # the one that was given is as it was


def test_what_can_be_saved_of_a_document():
    box = {"topLeft": [0, 0, 0], "width": 1, "height": 1, "depth": 1}
    good = {"name": "good", "category": "color", "boundingBox": box, "mags": []}
    bad = {
        "name": "bad",
        "category": "colour",
        "boundingBox": {},
        "mags": [],
        "largestSegmentId": 5,
    }
    head, layers, others = valid_parts({"id": 1, "scale": [1, 1], "dataLayers": [good, bad, 7]})
    assert (head, layers, others) == ({"id": 1}, [good], [bad, 7])
    assert valid_parts({"scale": [1, 1, 1]}) == ({"scale": [1, 1, 1]}, [], [])
    assert valid_parts([1]) == ({}, [], [])
