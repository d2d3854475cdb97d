"""Jobs that apply a user's function brick by brick, to compute another volume or one value.

The function is any picklable callable.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, counted_from, moved, part_of_array
from wkwdask.geometry.grid import cell_box, mark_cells
from wkwdask.geometry.vectors import divide, minus, plus, times
from wkwdask.kernels.window.reduce import repeat_voxels
from wkwdask.model.states import States, add_digests, digest
from wkwdask.model.summary import counted
from wkwdask.model.volume import voxel_nbytes
from wkwdask.plans.cells import cell_map, marked_cells
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import Result, Task, is_fatal, mark_final
from wkwdask.runs.parts import BrickWriter
from wkwdask.runs.retries import NO_RESULT, FailurePolicy
from wkwdask.verbs.function_calls import FunctionCalls, call_function
from wkwdask.verbs.region_job import RegionJob, SourceSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import LevelSpec
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap

    Stored = TargetArray | LevelSpec


def is_finer(mag: Mag, other: Mag) -> bool:
    """Return whether a mag equals another one or is finer on every axis."""
    if all(a <= b for a, b in zip(mag.factors, other.factors, strict=True)):
        return True
    if all(a >= b for a, b in zip(mag.factors, other.factors, strict=True)):
        return False
    raise ValueError(
        f"mag {mag} is finer than mag {other} on one axis and coarser on another; they cannot be "
        "read together"
    )


def read_padded(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    """Read a box of a volume in its own mag, with zeros outside of the volume."""
    inside = box.intersection(volume.box)
    out = np.zeros((volume.num_channels, *box.size), volume.dtype, order="F")
    if not inside.is_empty:
        volume.read_into(part_of_array(out, inside, box.topleft), inside.topleft)
    return out


def read_aligned(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    """Read the voxels of a box of another mag: those of a finer volume unreduced, those of a
    coarser volume repeated."""
    if is_finer(volume.box.mag, box.mag):
        return read_padded(volume, box.in_mag(volume.box.mag))
    coarse_box = box.in_mag(volume.box.mag)
    planes = read_padded(volume, coarse_box).transpose(0, 3, 2, 1)
    factor = box.mag.step_to(volume.box.mag)
    depth, height, width = (n * f for n, f in zip(planes.shape[1:], reversed(factor), strict=True))
    out = np.empty((volume.num_channels, depth, height, width), volume.dtype)
    repeat_voxels(planes, factor, out)
    x, y, z = (
        slice(a - t * f, b - t * f)
        for a, b, t, f in zip(box.topleft, box.bottomright, coarse_box.topleft, factor, strict=True)
    )
    return out.transpose(0, 3, 2, 1)[:, x, y, z]


def read_mask(volume: Volume, box: BoundingBox) -> npt.NDArray[np.bool_]:
    """Return which voxels of a box are nonzero in any channel of a volume of any mag, shape (x, y,
    z)."""
    mask: npt.NDArray[np.bool_] = (read_aligned(volume, box) != 0).any(axis=0)
    if not is_finer(volume.box.mag, box.mag):
        return mask
    (x, y, z), (fx, fy, fz) = box.size, volume.box.mag.step_to(box.mag)
    return np.logical_or.reduce(mask.reshape(x, fx, y, fy, z, fz), axis=(1, 3, 5))  # type: ignore[no-any-return]


_LASTING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors that depend on code and data alone, so a retry is useless. Others may be temporary: files,
memory, timeouts, devices."""


class Computation(Protocol):
    """Computation of a volume from others, brick by brick. Picklable: tasks carry it."""

    @property
    def plan(self) -> BrickPlan: ...

    @property
    def sources(self) -> tuple[Volume, ...]: ...

    @property
    def title(self) -> str:
        """Name of the computation in errors."""

    def occupied(self, region_shape: Vec3) -> CellMap:
        """Return the map of regions to compute, shape (x, y, z); all others are zero."""

    def states(self, region: Vec3) -> int:
        """Return the digest of the states of all files that a region reads."""

    def region_box(self, region: Vec3) -> BoundingBox:
        """Return the box that a region reads [absolute voxels]."""

    @property
    def batch(self) -> int:
        """Number of bricks that are computed together."""

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        """Compute the voxels of a brick, shape (c, x, y, z); None where all of them are zero."""

    def voxels_of(
        self, boxes: Sequence[BoundingBox], target: Stored
    ) -> list[npt.NDArray[Any] | None]:
        """Compute the voxels of some bricks together."""


class BrickByBrick:
    """Base of computations that compute each brick by itself."""

    __slots__ = ()
    batch = 1

    def voxels_of(
        self, boxes: Sequence[BoundingBox], target: Stored
    ) -> list[npt.NDArray[Any] | None]:
        return [self.voxels(box, target) for box in boxes]  # type: ignore[attr-defined]


class Brick(NamedTuple):
    """Input of a function for one brick."""

    box: BoundingBox
    read_box: BoundingBox
    """The brick with its halo."""
    arrays: list[npt.NDArray[Any]]
    """One array per source."""


class Computed(NamedTuple):
    """Result of a function for one brick."""

    result: tuple[Any, ...]
    """The value that the function returned; () for an empty brick."""
    box: BoundingBox
    """Brick with its halo: the box that was read."""
    seconds: tuple[float, float]
    """Time for reading and for the function."""


@dataclass(frozen=True, slots=True)
class AppliedFunction:
    """A user's function, and the volumes and boxes to which it is applied."""

    function: Callable[..., Any]
    """Called with one array per source, shape (x, y, z), or (c, x, y, z) for a source of several
    channels."""
    sources: tuple[Volume, ...]
    plan: BrickPlan
    halo: Vec3 = (0, 0, 0)
    """Border of a brick that the function gets along x, y, z [voxels]."""
    mask: Volume | None = None
    """Voxels where it is zero become zero; bricks where all of it is zero are not computed."""
    where: BoundingBox | None = None
    """Box to compute [voxels of the mag]; voxels outside become zero."""
    skips_empty: bool = False
    """Whether bricks become zero, without a call, where the first source (with the halo) is
    zero."""
    attempts: int = 1
    """Maximal number of calls per brick."""
    origin: Vec3 = (0, 0, 0)
    """Absolute voxel of the mag from which the boxes of the plan count."""
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel of the mag [nm], for functions that have a parameter for it."""
    calls: FunctionCalls = field(default_factory=FunctionCalls)
    """Set-up of the function, and number of calls at the same time."""
    batch: int = 1
    """Bricks of one call. With more than one, each argument of the function is a list."""

    @property
    def title(self) -> str:
        return f"computed by {function_name(self.function)}"

    def occupied(self, region_shape: Vec3) -> CellMap:
        box = moved(self.plan.box, self.origin)
        maps = []
        if self.where is not None:
            maps.append(self.plan.touched_regions(counted_from(self.where, self.origin)))
        if self.skips_empty:
            maps.append(self._stored(self.sources[0], region_shape, box, self.halo))
        if self.mask is not None:
            maps.append(self._stored(self.mask, region_shape, box))
        return (
            reduce(and_, maps)
            if maps
            else cell_map(self.plan.box, self.plan.region_shape, self.sources[0].name, fill=True)
        )

    def _stored(
        self, volume: Volume, region_shape: Vec3, box: BoundingBox, halo: Vec3 = (0, 0, 0)
    ) -> CellMap:
        """Return the map of regions that, grown by a halo, touch a stored shard of a volume of any
        mag."""
        regions = cell_map(self.plan.box, self.plan.region_shape, volume.name)
        # A cell is as long as a region, but at least one voxel of the volume. The map of occupied
        # cells begins at the first cell of the volume, while boxes count from voxel 0.
        x, y, z = divide(times(region_shape, box.mag.factors), volume.box.mag.factors)
        shape = (max(1, x), max(1, y), max(1, z))
        first = divide(volume.box.topleft, shape)
        for x, y, z in marked_cells(volume.files.occupied(shape)).tolist():
            touched = _grown(
                cell_box(plus((x, y, z), first), shape, volume.box).in_mag(box.mag), halo
            ).intersection(box)
            touched = counted_from(touched, self.origin)
            low, high = (
                np.array([touched.topleft], np.int64),
                np.array([touched.bottomright], np.int64),
            )
            mark_cells(regions, low, high, self.plan.box, self.plan.region_shape)
        return regions

    def compute(self, box: BoundingBox) -> tuple[Any, ...]:
        """Return the result of the function for a brick, or () for an empty brick."""
        (computed,) = self.compute_all([box])
        return _cropped(computed, box)

    def compute_all(self, boxes: Sequence[BoundingBox]) -> list[Computed]:
        """Read bricks with their halo from all sources and call the function, again after a
        temporary error."""
        # The halo ends at the border of the volume, which the function then treats like the border
        # of a whole array.
        #   |<- halo ->|<------ brick ------>|<- halo ->|     inside the volume: the function gets all of it, and the brick is cut out of its result  # noqa: E501
        #              |<------ brick ------>|<- halo ->|     at the border of the volume
        start = time.perf_counter()
        inside = self.sources[0].box
        grown = [
            _grown(box, self.halo).intersection(inside.in_mag(box.mag)).union(box) for box in boxes
        ]
        bricks = [Brick(*pair, self._read(pair[1])) for pair in zip(boxes, grown, strict=True)]
        reading = (time.perf_counter() - start) / max(1, len(boxes))
        computed = [Computed((), box, (reading, 0.0)) for box in grown]
        is_called = [not self.skips_empty or brick.arrays[0].any() for brick in bricks]
        numbers = [n for n, called in enumerate(is_called) if called]
        for n in range(0, len(numbers), self.batch):
            group = numbers[n : n + self.batch]
            start = time.perf_counter()
            results = self._call([bricks[n] for n in group])
            calling = (time.perf_counter() - start) / len(group)
            for n, result in zip(group, results, strict=True):
                self._check_shape(result, bricks[n])
                computed[n] = Computed((result,), grown[n], (reading, calling))
        return computed

    def _check_shape(self, result: Any, brick: Brick) -> None:
        if (
            brick.read_box != brick.box
            and isinstance(result, np.ndarray)
            and result.shape[-3:] != brick.read_box.size
        ):
            raise ValueError(
                f"{function_name(self.function)} returned shape {result.shape} for "
                f"{brick.read_box.size} voxels (with the halo)"
            )

    def _read(self, box: BoundingBox) -> list[npt.NDArray[Any]]:
        arrays = (read_aligned(source, box) for source in self.sources)
        return [array[0] if array.shape[0] == 1 else array for array in arrays]

    def _call(self, bricks: Sequence[Brick]) -> Sequence[Any]:
        """Call the function on some bricks; return a result for each."""
        prepared, attempt = self.calls.prepare(), 1
        while True:
            try:
                with self.calls.one_of_few():
                    return self._results(prepared, bricks)
            except Exception as error:
                if attempt == self.attempts or isinstance(error, _LASTING_ERRORS):
                    mark_final(error)
                    error.add_note(
                        f"box {', '.join(str(brick.box) for brick in bricks)}"
                        + (f", tried {attempt} times" if attempt > 1 else "")
                    )
                    raise
            attempt += 1
            # the failed call may have changed the arrays in place
            bricks = [brick._replace(arrays=self._read(brick.read_box)) for brick in bricks]

    def _results(self, prepared: tuple[Any, ...], bricks: Sequence[Brick]) -> Sequence[Any]:
        names = context_parameters(self.function)
        contexts = [(brick.box, brick.read_box, self.voxel_size_nm) for brick in bricks]
        if self.batch == 1:
            context = dict(zip(_CONTEXT, contexts[0], strict=True))
            keywords = {name: context[name] for name in names}
            return [call_function(self.function, *prepared, *bricks[0].arrays, **keywords)]
        columns = map(list, zip(*contexts, strict=True))
        context_lists = dict(zip(_CONTEXT, columns, strict=True))
        arrays = map(list, zip(*(brick.arrays for brick in bricks), strict=True))
        results = call_function(
            self.function, *prepared, *arrays, **{name: context_lists[name] for name in names}
        )
        if not isinstance(results, (list, tuple)) or len(results) != len(bricks):
            what = (
                f"{len(results)} results"
                if isinstance(results, (list, tuple))
                else type(results).__name__
            )
            raise TypeError(
                f"{function_name(self.function)} returned {what}, expected a list of "
                f"{len(bricks)}, one for each block of the batch"
            )
        return results

    def region_box(self, region: Vec3) -> BoundingBox:
        return moved(self.plan.region_box(region), self.origin)

    def voxels(self, box: BoundingBox, target: Stored) -> npt.NDArray[Any] | None:
        (voxels,) = self.voxels_of([box], target)
        return voxels

    def voxels_of(
        self, boxes: Sequence[BoundingBox], target: Stored
    ) -> list[npt.NDArray[Any] | None]:
        boxes = [moved(box, self.origin) for box in boxes]
        inside = [box if self.where is None else box.intersection(self.where) for box in boxes]
        masks = [
            None if self.mask is None or box.is_empty else read_mask(self.mask, box)
            for box in inside
        ]
        out: list[npt.NDArray[Any] | None] = [None] * len(boxes)
        numbers = [
            n
            for n, (box, mask) in enumerate(zip(inside, masks, strict=True))
            if not box.is_empty and (mask is None or mask.any())
        ]
        computed = self.compute_all([inside[n] for n in numbers])
        for n, of_brick in zip(numbers, computed, strict=True):
            for result in _cropped(of_brick, inside[n]):
                voxels = _checked(result, inside[n], target, self.function)
                mask = masks[n]
                if mask is not None:
                    voxels = np.where(mask, voxels, np.zeros((), target.dtype))
                out[n] = _padded(voxels, inside[n], boxes[n])
        return out

    def states(self, region: Vec3) -> int:
        grown = _grown(self.region_box(region), self.halo)
        volumes = [*self.sources, *(() if self.mask is None else (self.mask,))]
        return add_digests(
            *(digest(volume.files.shard_states(grown.in_mag(volume.box.mag))) for volume in volumes)
        )


def _cropped(computed: Computed, box: BoundingBox) -> tuple[Any, ...]:
    """Return the result of a function without the halo."""
    result, read_box, _ = computed
    if not result or read_box == box or not isinstance(result[0], np.ndarray):
        return result
    return (part_of_array(result[0], box, read_box.topleft),)


def _padded(voxels: npt.NDArray[Any], inside: BoundingBox, box: BoundingBox) -> npt.NDArray[Any]:
    """Return the voxels of a box from those of a part of it, with zeros around."""
    if inside == box:
        return voxels
    out = np.zeros((len(voxels), *box.size), voxels.dtype, order="F")
    part_of_array(out, inside, box.topleft)[...] = voxels
    return out


def _grown(box: BoundingBox, halo: Vec3) -> BoundingBox:
    return BoundingBox.from_corners(minus(box.topleft, halo), plus(box.bottomright, halo), box.mag)


_CONTEXT = ("box", "read_box", "voxel_size")


def context_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function that get the box to compute, the box that was read, and
    the voxel size."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, as many functions of numpy are
        return []
    bound = function.keywords if isinstance(function, partial) else {}
    return [name for name in _CONTEXT if name in parameters and name not in bound]


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the function inside a partial or the type of a callable
    object."""
    if isinstance(function, partial):
        return str(vars(function).get("__name__") or function_name(function.func))
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def check_signature(
    function: Callable[..., Any], num_sources: int, *, has_setup: bool = False
) -> None:
    """Raise a TypeError if a function cannot be called with the result of its set-up, if there is
    one, and with one array per source."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    arrays = "1 array" if num_sources == 1 else f"{num_sources} arrays"
    if has_setup:
        arrays = f"the result of setup and {arrays}"
    keywords = dict.fromkeys(context_parameters(function))
    try:
        signature.bind(*range(has_setup + num_sources), **keywords)
    except TypeError as error:
        raise TypeError(
            f"{function_name(function)} cannot be called with {arrays}, one for each source: "
            f"{error}"
        ) from None


def _checked(
    result: Any, box: BoundingBox, target: Stored, function: Callable[..., Any]
) -> npt.NDArray[Any]:
    """Check that a result fits the target, and return it as shape (c, x, y, z)."""
    name = function_name(function)
    if not isinstance(result, np.ndarray) or isinstance(result, np.ma.MaskedArray):
        raise TypeError(
            f"{name} returned {type(result).__name__}, expected an array of shape {box.size}"
        )
    shape = result.shape
    if result.ndim == 3:
        result = result[np.newaxis]
    if result.shape != (target.num_channels, *box.size):
        channels = counted(target.num_channels, "channel")
        raise ValueError(
            f"{name} returned shape {shape}, expected {box.size} voxels in {channels} (channels= "
            "sets their number)"
        )
    if not np.can_cast(result.dtype, target.dtype, "safe"):
        returned = result.dtype.name
        remedy = f"cast it in the function, or set dtype= to a type that stores {returned}"
        raise TypeError(
            f"{name} returned {returned}, which {target.dtype.name} cannot store without loss: "
            f"{remedy}"
        )
    voxels: npt.NDArray[Any] = result.astype(target.dtype, copy=False)
    return voxels


@dataclass(frozen=True, slots=True)
class ApplySpec(SourceSpec):
    """Task that computes one region of the target."""

    application: Computation
    target: TargetArray
    region: Vec3

    def task(self) -> Task:
        return Task(
            f"{self.application.plan.region_box(self.region)}, {self.application.title}",
            "region {},{},{}".format(*self.region),
            ApplySpec.run,
            self,
        )

    @property
    def source(self) -> Volume:
        """The first volume, named in errors for all."""
        return self.application.sources[0]

    def states(self) -> States:
        return self.source.files.shard_states(
            self.application.region_box(self.region).in_mag(self.source.box.mag)
        )

    def digest(self) -> int:
        return self.application.states(self.region)

    def run(self) -> Result:
        application, plan = self.application, self.application.plan
        # before reading: a file that changes during the read then fails the check on resume
        states = application.states(self.region)
        part = None if plan.contains_whole_shards(self.target.shard_shape) else self.region
        region = plan.region_box(self.region)
        with BrickWriter(self.target, plan.brick_shape, part, region) as writer:
            bricks = plan.bricks(self.region)
            while group := list(islice(bricks, application.batch)):
                boxes = [plan.brick_box(brick) for brick in group]
                voxels_of_all = application.voxels_of(boxes, self.target)
                for brick, voxels in zip(group, voxels_of_all, strict=True):
                    writer.put(brick, voxels)
            receipts = writer.close()
        box = application.region_box(self.region)
        nbytes_in = sum(
            voxel_nbytes(source, box.in_mag(source.box.mag)) for source in application.sources
        )
        return Result(tuple((0, receipt) for receipt in receipts), states, nbytes_in=nbytes_in)


class ApplyJob(RegionJob):
    def __init__(self, application: Computation, target: TargetArray) -> None:
        plan = application.plan
        super().__init__(
            [target],
            [plan],
            [application.occupied(plan.region_shape)],
            lambda _, region: ApplySpec(application, target, region),
        )


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """Task that computes and encodes a brick and stores nothing; its value is the stored and the
    decoded size."""

    application: Computation
    target: TargetArray
    box: BoundingBox

    def task(self) -> Task:
        return Task(
            f"a brick of {self.box}, {self.application.title}",
            "size {},{},{}".format(*self.box.topleft),
            SizeSpec.run,
            self,
        )

    def run(self) -> Result:
        voxels = self.application.voxels(self.box, self.target)
        stored = (
            0 if voxels is None else self.target.encoder.encoded_nbytes(voxels, self.box.topleft)
        )
        return Result((), value=(stored, voxel_nbytes(self.target, self.box)))


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """Task that calls the function once and stores nothing, to find mistakes before a job
    starts."""

    application: AppliedFunction
    stored: Stored | None
    """Target, or its description; None where the result is a value."""
    block_shape: Vec3
    """Shape of the box of the first call [voxels]."""

    def task(self) -> Task:
        return Task(
            f"the trial of {function_name(self.application.function)}", "trial", TrialSpec.run, self
        )

    def run(self) -> Result:
        """Call the function on a block in the middle of the volume. If that fails, call it on the
        brick around the block: it may need a larger box."""
        application, box = self.application, self.application.plan.box
        selected = box if application.where is None else application.where
        failure: Exception
        for shape in (self.block_shape, application.plan.brick_shape):
            x, y, z = (
                (a + b) // 2 // n
                for a, b, n in zip(selected.topleft, selected.bottomright, shape, strict=True)
            )
            trial_box = cell_box((x, y, z), shape, box).intersection(selected)
            try:
                if self.stored is None:
                    application.compute(trial_box)
                else:
                    application.voxels(trial_box, self.stored)
            except Exception as error:
                if is_fatal(error):
                    raise
                failure = error
            else:
                return Result(())
        raise failure


@dataclass(frozen=True, slots=True)
class ReduceSpec:
    """Task that reduces one region to a value."""

    application: AppliedFunction
    combine: Callable[[Any, Any], Any]
    """Function that combines two values into one."""
    region: Vec3
    number: int
    """Place of the region in the order in which values are combined."""

    def task(self) -> Task:
        return Task(
            (
                f"{self.application.plan.region_box(self.region)}, reduced by "
                f"{function_name(self.application.function)}"
            ),
            "reduce {},{},{}".format(*self.region),
            ReduceSpec.run,
            self,
        )

    def run(self) -> Result:
        value: tuple[Any, ...] = ()
        plan = self.application.plan
        for brick in plan.bricks(self.region):
            box = plan.brick_box(brick)
            inside = (
                box if self.application.where is None else box.intersection(self.application.where)
            )
            computed = () if inside.is_empty else self.application.compute(inside)
            if computed:
                value = computed if not value else (self.combine(value[0], computed[0]),)
        box = plan.region_box(self.region)
        return Result(
            (),
            value=value,
            nbytes_in=sum(
                voxel_nbytes(source, box.in_mag(source.box.mag))
                for source in self.application.sources
            ),
        )


class ReduceJob:
    """Job that reduces volumes to one value. Values are combined in the order of regions, not of
    completion, so that float sums are reproducible."""

    def __init__(self, application: AppliedFunction, combine: Callable[[Any, Any], Any]) -> None:
        self._application, self._combine = application, combine
        self._occupied = application.occupied(application.plan.region_shape)
        self.num_tasks = int(self._occupied.sum())
        self._waiting: dict[int, tuple[Any, ...]] = {}
        self._next = 0
        self.value: tuple[Any, ...] = ()

    def tasks(self) -> Iterator[Task]:
        regions = self._application.plan.regions(self._occupied)
        return (
            ReduceSpec(self._application, self._combine, region, number).task()
            for number, region in enumerate(regions)
        )

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Keep a value until those of all regions before it are combined."""
        if isinstance(task.spec, ReduceSpec):
            self._waiting[task.spec.number] = result.value
        while self._next in self._waiting:
            value = self._waiting.pop(self._next)
            self._next += 1
            if value:
                self.value = value if not self.value else (self._combine(self.value[0], value[0]),)
        return ()


class ReduceWork(Work[Any]):
    """Reduction of volumes to one value, None where nothing is computed."""

    def __init__(
        self,
        application: AppliedFunction,
        combine: Callable[[Any, Any], Any],
        most_failures: int,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self._application, self._combine, self._resources = application, combine, resources
        self._failure_policy = FailurePolicy(most_failures, lists_always=True, ending=NO_RESULT)

    def phases(self) -> Generator[Phase, str, Any]:
        job = ReduceJob(self._application, self._combine)
        title = f"reducing {self._application.sources[0].name}"
        yield Phase(job, title, self._failure_policy, resources=self._resources)
        return job.value[0] if job.value else None
