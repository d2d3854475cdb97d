"""The nodes of an NML, tree by tree, as WEBKNOSSOS writes it."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from wkwdask.errors import FormatError
from wkwdask.model.parsing import reading

_FARTHEST = 2**53


def read_nodes(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read where the nodes of all trees are."""
    trees: list[int] = []
    positions: list[tuple[float, float, float]] = []
    root, number = None, -1
    with reading(path, "NML", lambda: f"in node {len(positions) + 1}"):
        for event, element in ElementTree.iterparse(path, ("start", "end")):
            if event == "start":
                root = element if root is None else root
                number += element.tag == "thing"
            elif element.tag == "node" and number >= 0:
                trees.append(number)
                positions.append((float(element.attrib["x"]), float(element.attrib["y"]), float(element.attrib["z"])))
            elif element.tag == "thing":
                element.clear()
    if root is None or root.tag != "things":
        raise FormatError(f"{path}: begins with <{'' if root is None else root.tag}>, expected <things>, as an NML does")
    places = np.array(positions, np.float64).reshape(-1, 3)
    far = np.flatnonzero(~(np.abs(places) < _FARTHEST).all(axis=1))  # not a number is not less either
    if len(far):
        raise FormatError(f"{path}: node {far[0] + 1} lies at {', '.join(f'{n:g}' for n in places[far[0]])}, which no volume reaches")
    return np.array(trees, np.int64), np.floor(places).astype(np.int64)
