"""Volume annotations as WEBKNOSSOS exports them: single blocks of LZ4 in a zip, in a zip with an
NML."""

from __future__ import annotations

import io
import zipfile

import numpy as np
from support.wkw_files import LZ4, Header, encode_file

NML = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<things>
  <meta name="writer" content="NmlWriter.scala"/>
  <parameters>
    <experiment datasetName="{dataset}" name="{dataset}" description="" organization="org" wkUrl="http://localhost:9000"/>
    <scale x="11.24" y="11.24" z="28.0" unit="nanometer"/>
    <offset x="0" y="0" z="0"/>
    <time ms="1700000000000"/>
    <editPosition x="0" y="0" z="0"/>
    <editRotation xRot="0.0" yRot="0.0" zRot="0.0"/>
    <zoomLevel zoom="1.0"/>
  </parameters>
  {volumes}
  <branchpoints/>
  <comments/>
  <groups/>
</things>
"""


def write_data_zip(file, mags, dtype=np.uint32, block_len=32, compression=zipfile.ZIP_STORED):
    """Write ``data_Volume.zip``: for each mag, by its name, the voxels of its blocks by their
    indices."""
    header = Header(dtype, 1, block_len, 1, LZ4)
    with zipfile.ZipFile(file, "w", compression) as data:
        for mag, blocks in mags.items():
            data.writestr(f"{mag}/header.wkw", header.to_bytes())
            for (x, y, z), voxels in blocks.items():
                data.writestr(
                    f"{mag}/z{z}/y{y}/x{x}.wkw",
                    encode_file(np.asarray(voxels, dtype)[np.newaxis], block_len),
                )
    return file


def write_annotation(
    path,
    mags,
    fallback="seg",
    dataset="ds",
    inner_compression=zipfile.ZIP_DEFLATED,
    outer_compression=zipfile.ZIP_STORED,
    **options,
):
    """Write the zip that is downloaded, of one layer."""
    return write_annotations(
        path, {fallback: mags}, dataset, inner_compression, outer_compression, **options
    )


def write_annotations(
    path,
    layers,
    dataset="ds",
    inner_compression=zipfile.ZIP_DEFLATED,
    outer_compression=zipfile.ZIP_STORED,
    **options,
):
    """Write the zip that is downloaded: mags by the name of the layer that they were made on."""
    volumes = []
    with zipfile.ZipFile(path, "w", outer_compression) as outer:
        for number, (fallback, mags) in enumerate(layers.items()):
            inner = io.BytesIO()
            write_data_zip(inner, mags, compression=inner_compression, **options)
            name = f"data_{number}_Volume.zip"
            outer.writestr(name, inner.getvalue())
            volumes.append(
                f'<volume id="{number}" location="{name}" fallbackLayer="{fallback}" name="Volume '
                f'{number}" format="wkw" largestSegmentId="100"/>'
            )
        outer.writestr("annotation.nml", NML.format(dataset=dataset, volumes="\n  ".join(volumes)))
    return path
