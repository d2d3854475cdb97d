"""The examples of the proposal of the codec ``offset`` for Zarr v3, as printed there.

"Offset Codec", version 0.1.0, by Mark Kittisopikul, zarr-extensions; licensed under the Creative
Commons Attribution 3.0 Unported License.
"""

from __future__ import annotations

TIFF_PREFIX = "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYBAwABAAAAAAEAABcBBAABAAAAAAACAAAAAAA="  # noqa: E501

TIFF_HEXDUMP = """
49 49 2a 00 08 00 00 00 08 00 00 01 03 00 01 00
01 01 03 00 01 00 00 00 02 01 03 00 01 00 00 00
10 00 00 00 03 01 03 00 01 00 00 00 01 00 00 00
06 01 03 00 01 00 00 00 01 00 00 00 11 01 04 00
01 00 00 00 6e 00 00 00 16 01 03 00 01 00 00 00
01 00 00 00 17 01 04 00 01 00 00 00 02 00 00 00
00 00 00 00 00 00
"""

SCHEMA = {
    "name": "offset",
    "configuration": {
        "offset": {
            "description": "The number of bytes to offset.",
            "type": "integer",
            "minimum": 0,
        },
        "prefix": {
            "description": "An optional base64-encoded string of the literal bytes to prepend when encoding. "  # noqa: E501
            "The length of the decoded bytes must equal 'offset'.",
            "type": "string",
            "contentEncoding": "base64",
        },
    },
    "required": ["offset"],
}

EXAMPLE_1 = {
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "offset", "configuration": {"offset": 110, "prefix": TIFF_PREFIX}},
    ]
}

EXAMPLE_2 = {
    "codecs": [
        {"name": "gzip"},
        {"name": "offset", "configuration": {"offset": 16, "prefix": "TVlfQ1VTVE9NX0hFQURFUg=="}},
    ]
}

EXAMPLE_3_ATTRIBUTES = {
    "dimensions": [1024, 1024],
    "blockSize": [64, 64],
    "dataType": "uint16",
    "compression": {"type": "zstd", "level": 3},
}

EXAMPLE_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1024, 1024],
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64, 64]}},
    "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "zstd", "configuration": {"level": 3}},
        {"name": "offset", "configuration": {"offset": 12, "prefix": "AAAAAgAAAEAAAABA"}},
    ],
    "fill_value": 0,
}
