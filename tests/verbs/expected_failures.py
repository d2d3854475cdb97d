"""Cells of the matrix that fail. Delete the line of a cell when it passes; the mark is strict."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from wkwdask.errors import BoundsError, MissingError


@dataclass(frozen=True)
class Fault:
    """Reason for failures, and the errors that show it; AssertionError stands for wrong results without an error."""

    reason: str
    raises: tuple[type[Exception], ...] = (AssertionError,)


ROUNDED = Fault("windows that a level leaves out count as missing voxels")
EMPTY_LEVEL = Fault("a box in which a coarse level has no voxels is not copied", (BoundsError,))
THREE = Fault("new images keep shards of three chunks and are refused", (ValueError,))
TYPES = Fault("float16 and bool are float32 and uint8 for all verbs", (AssertionError, TypeError))
LAYERS = Fault("Zarr layers of a dataset are not verified, and written with the padding of their arrays", (AssertionError, MissingError))

EXPECTED_FAILURES = {
    ("levels", "rounded-down"): ROUNDED,
    ("copy_box", "rounded-down"): EMPTY_LEVEL,
    ("copy_moved_box", "rounded-down"): EMPTY_LEVEL,
    ("convert_levels_to_wkw", "rounded-down"): ROUNDED,
    ("levels", "rounded-down-scales"): ROUNDED,
    ("copy_box", "rounded-down-scales"): EMPTY_LEVEL,
    ("copy_moved_box", "rounded-down-scales"): EMPTY_LEVEL,
    ("convert_levels_to_wkw", "rounded-down-scales"): ROUNDED,
    ("levels", "ratios-of-shapes"): ROUNDED,
    ("convert_levels_to_wkw", "ratios-of-shapes"): ROUNDED,
    ("apply", "shards-of-three"): THREE,
    ("pyramid", "shards-of-three"): THREE,
    ("pyramid_ladder", "shards-of-three"): THREE,
    ("pyramid_resume", "shards-of-three"): THREE,
    ("pyramid_box", "shards-of-three"): THREE,
    ("pyramid_update", "shards-of-three"): THREE,
    ("pyramid_plan", "shards-of-three"): THREE,
    ("upsample", "shards-of-three"): THREE,
    ("compress", "shards-of-three"): THREE,
    ("copy", "shards-of-three"): THREE,
    ("copy_box", "shards-of-three"): THREE,
    ("copy_moved_box", "shards-of-three"): THREE,
    ("convert_levels_to_wkw", "shards-of-three"): THREE,
    ("convert_levels_to_precomputed-sharded", "shards-of-three"): THREE,
    ("convert_levels_to_n5", "shards-of-three"): THREE,
    ("convert_levels_to_ngff-0.5", "shards-of-three"): THREE,
    ("verify_pyramid", "shards-of-three"): THREE,
    ("repair_by_method", "shards-of-three"): THREE,
    ("repair", "shards-of-three"): THREE,
    ("components", "shards-of-three"): THREE,
    ("remap", "shards-of-three"): THREE,
    ("dust", "shards-of-three"): THREE,
    ("renumber", "shards-of-three"): THREE,
    ("info", "float16"): TYPES,
    ("write_region", "float16"): TYPES,
    ("clear_region", "float16"): TYPES,
    ("serve", "float16"): TYPES,
    ("apply", "float16"): TYPES,
    ("apply_to_wkw", "float16"): TYPES,
    ("pyramid", "float16"): TYPES,
    ("pyramid_ladder", "float16"): TYPES,
    ("pyramid_box", "float16"): TYPES,
    ("pyramid_update", "float16"): TYPES,
    ("upsample", "float16"): TYPES,
    ("rechunk", "float16"): TYPES,
    ("compress", "float16"): TYPES,
    ("copy", "float16"): TYPES,
    ("copy_box", "float16"): TYPES,
    ("copy_moved_box", "float16"): TYPES,
    ("rm", "float16"): TYPES,
    ("convert_to_wkw", "float16"): TYPES,
    ("verify_pyramid", "float16"): TYPES,
    ("repair_by_method", "float16"): TYPES,
    ("repair", "float16"): TYPES,
    ("info", "bool"): TYPES,
    ("write_region", "bool"): TYPES,
    ("clear_region", "bool"): TYPES,
    ("serve", "bool"): TYPES,
    ("apply", "bool"): TYPES,
    ("apply_to_wkw", "bool"): TYPES,
    ("rechunk", "bool"): TYPES,
    ("compress", "bool"): TYPES,
    ("copy", "bool"): TYPES,
    ("copy_box", "bool"): TYPES,
    ("copy_moved_box", "bool"): TYPES,
    ("rm", "bool"): TYPES,
    ("convert_to_wkw", "bool"): TYPES,
    ("apply", "webknossos"): LAYERS,
    ("apply_to_wkw", "webknossos"): LAYERS,
    ("levels", "webknossos"): LAYERS,
    ("rechunk", "webknossos"): LAYERS,
    ("verify", "webknossos"): LAYERS,
    ("components", "webknossos"): LAYERS,
    ("components_to_wkw", "webknossos"): LAYERS,
    ("remap", "webknossos"): LAYERS,
    ("remap_to_wkw", "webknossos"): LAYERS,
    ("dust", "webknossos"): LAYERS,
    ("dust_to_wkw", "webknossos"): LAYERS,
    ("renumber", "webknossos"): LAYERS,
    ("renumber_to_wkw", "webknossos"): LAYERS,
    ("pyramid_mode", "shards-of-three"): THREE,
    ("pyramid_of_labels", "shards-of-three"): THREE,
    ("pyramid_mode", "float16"): TYPES,
    ("pyramid_mode", "bool"): TYPES,
}


def marks(name: str, form: object) -> list[pytest.MarkDecorator]:
    """Return the marks of a cell."""
    fault = EXPECTED_FAILURES.get((name, str(form)))
    return [] if fault is None else [pytest.mark.xfail(strict=True, raises=fault.raises, reason=fault.reason)]
