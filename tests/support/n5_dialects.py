"""N5 groups as other software describes them, written by tensorstore."""

from __future__ import annotations

import json

import numpy as np
from support.n5_volumes import write_attributes

SIZE = (48, 40, 24)
FINE = np.random.default_rng(1).integers(1, 200, SIZE).astype("u1")
LEVELS = [FINE[(slice(None, None, 1 << n),) * 3] for n in range(4)]
FACTORS = [[1, 1, 1], [2, 2, 2], [4, 4, 4]]
RESOLUTION = {"pixelResolution": {"dimensions": [4, 4, 8], "unit": "nm"}}


def write_by_tensorstore(folder, array, labels=None, units=None, **attributes):
    import tensorstore as ts

    schema = {
        "dtype": str(array.dtype),
        "domain": {"shape": array.shape},
        "chunk_layout": {"chunk": {"shape": [16, 16, 8]}},
    }
    if labels is not None:
        schema["domain"]["labels"] = labels
        schema["dimension_units"] = units
    store = ts.open(
        {
            "driver": "n5",
            "kvstore": f"file://{folder}/",
            "create": True,
            "metadata": {"compression": {"type": "gzip"}},
            "schema": schema,
        }
    ).result()
    store[...] = array
    write_attributes(folder, **json.loads((folder / "attributes.json").read_text()), **attributes)


def write_levels(group, own=lambda n: {}, axes="xyz"):
    for n, array in enumerate(LEVELS[:3]):
        write_by_tensorstore(group / f"s{n}", array if axes == "xyz" else array.T, **own(n))


def units_of(n, axes="xyz"):
    return {
        "labels": list(axes),
        "units": [f"{(8 if axis == 'z' else 4) << n} nm" for axis in axes],
    }


def cosem(n):
    scale = [8 << n, 4 << n, 4 << n]
    center = [length / 2 - first / 2 for length, first in zip(scale, (8, 4, 4), strict=True)]
    return {
        "transform": {
            "axes": ["z", "y", "x"],
            "scale": scale,
            "translate": center,
            "units": ["nm"] * 3,
        }
    }


def factors_of(n, first=0):
    return {"downsamplingFactors": FACTORS[n]} if n >= first else {}


def no_attributes(group):
    write_levels(group)


def version_alone(group):
    write_levels(group)
    write_attributes(group.parent, n5="2.5.1")


def write_xml(container, unit="nm", size=(4, 4, 8), setup=0):
    """Write the XML of BigStitcher beside a container (SpimData 0.2)."""
    container.parent.mkdir(parents=True, exist_ok=True)
    container.with_suffix(".xml").write_text(
        f"""<?xml version="1.0" encoding="UTF-8"?>
<SpimData version="0.2">
  <BasePath type="relative">.</BasePath>
  <SequenceDescription>
    <ImageLoader format="bdv.n5" version="1.0">
      <n5 type="relative">{container.name}</n5>
    </ImageLoader>
    <ViewSetups>
      <ViewSetup>
        <id>{setup}</id>
        <name>tile 0</name>
        <size>48 40 24</size>
        <voxelSize>
          <unit>{unit}</unit>
          <size>{" ".join(map(str, size))}</size>
        </voxelSize>
        <attributes><illumination>0</illumination><channel>0</channel><tile>0</tile><angle>0</angle></attributes>
      </ViewSetup>
    </ViewSetups>
    <Timepoints type="pattern"><integerpattern>0</integerpattern></Timepoints>
  </SequenceDescription>
</SpimData>
""",
        encoding="utf-8",
    )


def bigdataviewer(group):
    write_xml(group.parents[1])
    write_levels(group, factors_of)
    write_attributes(group.parent, downsamplingFactors=FACTORS, dataType="uint8", n5="2.5.1")
    write_attributes(group, resolution=[4, 4, 8], saved_completely=True, multiScale=True)


def two_time_points(group):
    bigdataviewer(group)
    for n, array in enumerate(LEVELS[:3]):
        write_by_tensorstore(
            group.parent / "timepoint1" / f"s{n}", array, downsamplingFactors=FACTORS[n]
        )


def factors_in_the_group(group):
    write_levels(group)
    write_attributes(group, downsamplingFactors=FACTORS, **RESOLUTION)


def scales_of_n5_viewer(group):
    write_levels(group)
    write_attributes(group, scales=FACTORS, **RESOLUTION)


def levels_of_n5_viewer(group):
    write_levels(group, lambda n: factors_of(n) | RESOLUTION)


def resolution_in_the_group(group):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group, **RESOLUTION)


def neuroglancer(group):
    write_levels(group)
    write_attributes(
        group,
        axes=["x", "y", "z"],
        units=["nm"] * 3,
        resolution=[4, 4, 8],
        downsamplingFactors=FACTORS,
    )


def neuroglancer_zyx(group):
    write_levels(group, axes="zyx")
    write_attributes(
        group,
        axes=["z", "y", "x"],
        units=["nm"] * 3,
        resolution=[8, 4, 4],
        downsamplingFactors=FACTORS,
    )


def tensorstore(group):
    write_levels(group, units_of)


def tensorstore_zyx(group):
    write_levels(group, lambda n: units_of(n, "zyx"), axes="zyx")


def transforms(group):
    write_levels(group, cosem)


def paintera(group):
    write_levels(group, lambda n: factors_of(n, 1))
    write_attributes(group.parent, painteraData={"type": "raw"})
    write_attributes(group, multiScale=True, resolution=[4, 4, 8], offset=[0, 0, 0], maxId=3)


def imagej(group):
    """n5-ij: each array states its own size."""

    def size(n):
        lengths = (4.0 * 2**n, 4.0 * 2**n, 8.0 * 2**n)
        names = ("pixelWidth", "pixelHeight", "pixelDepth")
        return {**dict(zip(names, lengths, strict=True)), "pixelUnit": "nm"}

    write_levels(group, size)


DIALECTS = [
    no_attributes,
    version_alone,
    bigdataviewer,
    factors_in_the_group,
    scales_of_n5_viewer,
    levels_of_n5_viewer,
    resolution_in_the_group,
    neuroglancer,
    neuroglancer_zyx,
    tensorstore,
    tensorstore_zyx,
    transforms,
    paintera,
    imagej,
]
SIZED = [describe for describe in DIALECTS if describe not in (no_attributes, version_alone)]
