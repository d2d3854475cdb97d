"""Segmentations made of volumes, and their ids changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.jobs.wkw_components import ComponentsOptions, stage_components

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy.typing as npt

    from wkwdask.jobs.report import Report


def connected_components(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    threshold: float | tuple[float, float] | None = None,
    connectivity: Literal[6, 18, 26] = 26,
    min_voxels: int = 0,
    layer: str | None = None,
    mag: Mag | int | str | Sequence[int] | None = None,
    where: BoundingBox | str | Sequence[Any] | None = None,
    dtype: npt.DTypeLike | None = None,
    block_len: int | None = None,
    file_len: int | None = None,
    compression: str | None = None,
    level: int = DEFAULT_LEVEL,
    existing: Literal["error", "resume", "overwrite"] = "error",
) -> Report:
    """Label the connected components of a layer, across the borders of its files, as a new segmentation.

    Each component gets one id wherever it goes. Ids are 1 to the number of components, the same for any number of workers. What is held in memory is a
    brick for each worker, and some 30 bytes for each component of a brick that goes on beyond it. The mag appears when it is complete, and the JSON says its
    ``largestSegmentId``. What an interrupted call finished is kept: the same call goes on from there.

    Parameters
    ----------
    source : str or path
        A mag, a layer (its finest mag), or what :func:`convert` imports; one channel.
    target : str or path
        The mag that is made, such as ``dataset/components/1``: the same mag as the source.
    threshold : number or tuple of 2 numbers, optional
        Voxels count that are at least this number, or that lie between the two (both included). Without it, the source holds labels: neighbours are joined
        that have the same label, and 0 is background.
    connectivity : {6, 18, 26}
        Voxels are neighbours that share a face (6), a face or an edge (18), a face, an edge or a corner (26, as cc3d has it by default).
    min_voxels : int
        Components of fewer voxels become 0 and get no id.
    layer : str, optional
        The layer, where the source is a dataset.
    mag : Mag, int or str, optional
        The mag, by default the finest.
    where : BoundingBox, str or sequence, optional
        What is labelled: x, y, z, width, height, depth [voxels of mag 1]. Everything else becomes zero, and joins nothing.
    dtype : dtype_like, optional
        Type of the ids; by default uint32, or uint64 where there are more than 2^32 - 1 components.
    block_len, file_len : int, optional
        Edge of a block [voxels] and of a file [blocks]; by default as in the source.
    compression : {"lz4hc", "lz4", "raw"}, optional
        How blocks are encoded; by default as in the source, LZ4HC if that is raw.
    level : int
        LZ4HC level, 1..12.
    existing : {"error", "resume", "overwrite"}
        What to do where the mag is there already. An interrupted job goes on in any case but ``"overwrite"``, which starts anew.

    Returns
    -------
    Report
        Its note says how many components there are.

    Raises
    ------
    BoundsError
        ``where`` lies outside of the source.
    ExistsError
        The mag is there and ``existing="error"``.
    FormatError
        A record or header is broken.
    IncompleteWriteError
        The source was changed meanwhile.
    LockedError
        Another job writes the mag.
    MissingError
        The source is not there.
    ResumeError
        What was interrupted was started with other settings or from other data.
    TypeError
        Labels or ids are not integers.
    UnsupportedError
        A path leaves the dataset.
    ValueError
        An option makes no sense, or there are more components than ``dtype`` can tell apart.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> voxels = np.zeros((64, 64, 64), np.uint8)
    >>> voxels[:, 3, 3] = 200
    >>> voxels[40:, 20:, 20:] = 180
    >>> _ = wkwdask.write(f"{folder}/color/1", (0, 0, 0), voxels, file_len=1)
    >>> wkwdask.connected_components(f"{folder}/color/1", f"{folder}/cells/1", threshold=100).note
    '2 components'
    >>> np.unique(wkwdask.read(f"{folder}/cells/1"), return_counts=True)[1].tolist()
    [215616, 64, 46464]
    """
    from wkwdask.graphs import build
    from wkwdask.graphs.runners import num_workers

    options = ComponentsOptions(
        threshold, connectivity, min_voxels, None if where is None else BoundingBox.parse(where), dtype, block_len, file_len, compression, level
    )
    staged = stage_components(source, target, options, existing, num_workers(), layer, None if mag is None else Mag.parse(mag))
    return build.connected_components(staged)
