"""Make meshes of the labels of a segmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from wkwdask.geometry.mag import whole_number
from wkwdask.meshing.plan import MeshOptions, MeshPlan, lay_out_meshes
from wkwdask.model.image import mag_or_key
from wkwdask.store.looks import looking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report


@looking()
def meshes(
    source: str | PathLike[str],
    target: str | PathLike[str] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    lods: int | None = None,
    error: float = 0.35,
    reduction: float = 4,
    simplifier: Literal["pyfqmr", "meshoptimizer"] = "pyfqmr",
    cell: int = 128,
    ids: str | PathLike[str] | Sequence[int] | None = None,
    mapping: Any = None,
    min_voxels: int = 0,
    where: BoundingBox | Sequence[Sequence[int]] | None = None,
    close: bool = True,
    sharded: bool = True,
    segment_properties: bool = False,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    dry_run: bool = False,
    force_space: bool = False,
) -> Report | MeshPlan:
    """Mesh the labels of a segmentation, in several levels of detail, for Neuroglancer.

    Each cell of the volume is meshed by one task, on threads or on the active dask Client, and
    cells are joined by eights to coarser levels. Meshes of neighbouring cells have the same
    vertices at the plane between them: there is no seam. The folder of the meshes appears when all
    are complete, then ``info`` of the volume names it. The same call resumes an interrupted job.

    Needs the packages of the extra ``meshes``.

    Parameters
    ----------
    source : str or path
        A dataset, a layer or a mag with labels, in any format.
    target : str or path, optional
        Folder for the meshes, inside a Neuroglancer precomputed segmentation on disk or in a
        bucket, such as ``precomputed://volume/mesh``, or inside a segmentation layer of a
        WEBKNOSSOS dataset, such as ``dataset/layer/mesh``, which lists it as an attachment; by
        default the folder ``mesh`` of the source, if that is such a volume or layer.
    layer : str, optional
        The layer with the labels; may be omitted if there is only one, or only one segmentation.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag to mesh; by default the mag of the path, else the finest mag that was written. A
        mag of 2-2-2 takes about a quarter of the time.
    lods : int, optional
        Number of levels of detail, at most; by default until each label is in one cell. A label
        that would have more than 1,048,576 faces in a cell of a coarser level has no such level.
    error : float
        Distance by which simplification may move the surface in the finest level, about [voxels],
        and twice as much in each coarser level; 16 times that where the finer parts of a label in a
        cell have more than 524,288 times ``reduction`` faces. 0 keeps all faces of all levels. For
        voxels that are no cubes, the length is that of a cube of the same volume.
    reduction : float
        Number of faces that simplification to the next coarser level may replace by one, at most.
        Thin parts of labels vanish with a large one.
    simplifier : {"pyfqmr", "meshoptimizer"}
        Library for the simplification. ``"meshoptimizer"`` takes about a third of the time, and
        needs the extra ``meshes-fast`` and a C++ compiler.
    cell : int
        Edge of a cell of the finest level [voxels], from 2 to 1000. A task holds one cell.
    ids : sequence of int, str or path, optional
        Labels to mesh, after ``mapping``; or a file with one id per line.
    mapping : dict, array or path, optional
        Mapping of ids, as in :func:`remap`: labels that become equal get one mesh, for example the
        segments of an agglomerate. Labels that it does not contain stay.
    min_voxels : int
        Labels with fewer voxels of the mag in the box get no mesh.
    where : BoundingBox or pair of corners, optional
        Box to mesh: its lowest corner and the corner beyond its highest voxel, as absolute voxels
        of the mag along x, y, z.
    close : bool
        Close meshes at the border of the box. Open ones end half a voxel before it.
    sharded : bool
        Write the meshes of many labels into one file. Otherwise each label has two files.
    segment_properties : bool
        Also write the number of voxels of each label, and let ``info`` name them. Neuroglancer
        lists and filters segments by them. They are held in memory, and viewers load them whole.
        Other properties that ``info`` names are replaced with ``existing="overwrite"`` alone.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the folder exists, or if ``info`` names another one. ``"overwrite"`` replaces
        them, and only a folder of meshes is replaced. An interrupted job is resumed, except by
        ``"restart"``. Meshes keep no record of their job: ``"resume"`` refuses finished ones.
    dry_run : bool
        Mesh a few small cells, and return what would be done; write nothing.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.

    Returns
    -------
    Report or MeshPlan
        The note of the report states the number of labels and of faces, and names labels without a
        mesh.

    Raises
    ------
    BoundsError
        ``where`` lies outside the layer.
    ExistsError
        The folder exists, or ``info`` names another one, and ``existing="error"``.
    FormatError
        A record, a header or the file of ids is broken.
    IncompleteWriteError
        The source changed during the job.
    LockedError
        Another job writes these meshes.
    MissingError
        The source, or the volume around the target, does not exist.
    ModuleNotFoundError
        A package of the extra ``meshes`` or ``meshes-fast`` is not installed.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TaskFailedError
        Some cells failed; the message lists them.
    TypeError
        The labels are not integers, or an option has another type.
    UnsupportedError
        The target is on a server that is only read, or another version of ``meshoptimizer`` is
        installed.
    ValueError
        An option is invalid, the target is not inside a segmentation, or a label is negative.

    Notes
    -----
    The format is ``neuroglancer_multilod_draco`` (neuroglancer, ``precomputed/meshes.rst``). A
    shard has at most about 128 MiB, and more only for one label that is larger. Vertices of the
    finest level lie between the centres of voxels, as marching cubes places them. A surface from
    which simplification would remove a vertex at a plane between cells is kept unsimplified; the
    report counts them.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> labels = np.zeros((64, 64, 64), np.uint32)
    >>> labels[10:50, 10:20, 10:30] = 7
    >>> volume = f"precomputed://{folder}/cells"
    >>> _ = wkwdask.save(labels, volume, voxel_size=(8, 8, 8), category="segmentation")
    >>> wkwdask.meshes(volume, cell=32).note.partition(";")[0]  # doctest: +SKIP
    '1 label'
    """
    from wkwdask.graphs.runners import run_plan

    options = MeshOptions(
        None if lods is None else whole_number(lods, "lods", 1),
        error,
        reduction,
        whole_number(cell, "cell"),
        simplifier,
        where,
        ids,
        mapping,
        whole_number(min_voxels, "min_voxels", 0),
        close,
        sharded,
        segment_properties,
    )
    plan = lay_out_meshes(source, target, (layer, mag_or_key(mag)), options, existing)
    return plan.describe() if dry_run else run_plan(plan, force_space=force_space)
