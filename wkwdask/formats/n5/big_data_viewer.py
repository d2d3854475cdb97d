"""Time points of BigDataViewer, whose ``resolution`` has no unit: the XML beside the container
states the voxel size of each setup (SpimData 0.2).

The XML has ``SequenceDescription/ViewSetups/ViewSetup`` with ``id`` and ``voxelSize`` (``unit``,
``size``), and an ``ImageLoader`` that names the container.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from wkwdask.errors import WkwDaskError
from wkwdask.formats.n5.attributes import is_factor_list
from wkwdask.model.levels import nm_per_unit
from wkwdask.store.paths import basename, dirname, split, splitext
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# BdvN5Format
SETUP, TIME_POINT = re.compile(r"setup(\d+)", re.ASCII), re.compile(r"timepoint\d+", re.ASCII)
SETUP_KEY = "downsamplingFactors"
_MAX_XML_NBYTES = 64 << 20


def has_path_of_time_point(group: str) -> bool:
    return bool(TIME_POINT.fullmatch(basename(group)) and SETUP.fullmatch(basename(dirname(group))))


def is_time_point(group: str, inherited: Mapping[str, Any]) -> bool:
    """Return whether a group is a time point of a setup, by its path and the attributes that it
    inherits."""
    return (
        has_path_of_time_point(group)
        and bool(inherited.get(SETUP_KEY))
        and is_factor_list(inherited[SETUP_KEY])
    )


def lacks_unit(group: Mapping[str, Any]) -> bool:
    """Return whether the attributes of a time point state lengths without a unit."""
    return "resolution" in group and not {"units", "pixelResolution"} & group.keys()


def size_in_xml(group: str) -> dict[str, Any] | None:
    """Return ``resolution`` and ``units`` of a time point from the XML beside its container, or
    None."""
    container, setup = dirname(dirname(group)), SETUP.fullmatch(basename(dirname(group)))
    for root in _documents(container) if setup else ():
        for view in root.iterfind("SequenceDescription/ViewSetups/ViewSetup"):
            unit, size, number = (
                view.findtext(path, "").strip()
                for path in ("voxelSize/unit", "voxelSize/size", "id")
            )
            with contextlib.suppress(ValueError):
                lengths = [float(length) for length in size.split()]
                if (
                    setup
                    and int(number) == int(setup[1])
                    and len(lengths) == 3
                    and nm_per_unit(unit) is not None
                ):
                    return {"resolution": lengths, "units": [unit] * 3}
    return None


def _documents(container: str) -> Iterator[ElementTree.Element]:
    """Yield the XML documents of BigDataViewer beside a container that name it; on servers, only
    those of the usual names are found."""
    folder, name = split(container)
    with contextlib.suppress(OSError, WkwDaskError):
        store = open_store(folder)
        usual = [f"{splitext(name)[0]}.xml", "dataset.xml"]
        names = (
            sorted(other for other in store_at(folder).names() if other.endswith(".xml"))
            if store.can.states
            else usual
        )
        for raw in store.read_whole(names, _MAX_XML_NBYTES):
            with contextlib.suppress(ElementTree.ParseError):
                root = ElementTree.fromstring(raw or b"")
                named = {
                    basename((element.text or "").strip().rstrip("/"))
                    for element in root.iterfind("SequenceDescription//ImageLoader//n5")
                }
                if root.tag == "SpimData" and name in named:
                    yield root
