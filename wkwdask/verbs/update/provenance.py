"""Provenance of mags that are updated: the mag from which each was made, and by which method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.errors import ResumeError
from wkwdask.geometry.bounding_box import BoundingBox, moved
from wkwdask.geometry.mag import Mag
from wkwdask.model.parsing import reading
from wkwdask.plans.pyramid import step_factors
from wkwdask.store.paths import is_bucket, is_remote
from wkwdask.store.records import PROVENANCE_NAME, read_creation_settings
from wkwdask.verbs.pyramid import choose_method
from wkwdask.verbs.recompute import recorded_ladder
from wkwdask.verbs.sources import box_setting, source_fingerprint

if TYPE_CHECKING:
    from wkwdask.model.image import Image
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.verbs.pyramid import PyramidOptions


def is_beside(image: Image, folder: str) -> bool:
    """Return whether the folder of a level is on a file system or in a bucket, as that of its image
    is."""
    return is_remote(folder) is is_bucket(image.folder)


def settings_of_mag(image: Image, mag: Mag) -> dict[str, Any]:
    """Return the settings of the job that made a mag; empty if unknown."""
    folder = image.mags.get(mag)
    is_known = folder is not None and is_beside(image, folder)
    return read_creation_settings(str(folder), mag) if is_known else {}


def made_from(layer: Image, mag: Mag, finest: Mag) -> Mag | None:
    """Return the mag from which a mag was made; None if its chain of sources does not lead to the
    finest mag."""
    ladder = recorded_ladder(settings_of_mag(layer, mag))
    if mag not in ladder[1:]:
        return None
    finer = ladder[ladder.index(mag, 1) - 1]
    if finer.x * finer.y * finer.z >= mag.x * mag.y * mag.z:
        return None
    return finer if finer == finest or made_from(layer, finer, finest) is not None else None


def method_of_mag(
    layer: Image,
    source: Volume,
    mag: Mag,
    previous: Mag,
    options: PyramidOptions,
    trusts_records: bool,
) -> tuple[Mag, str, bool]:
    """Return the source mag, method and ``ignore_zero`` of a mag: as recorded, or as the options
    say for a mag that ``mags=`` names and that has no record."""
    folder, settings = layer.mags[mag], settings_of_mag(layer, mag)
    if not settings and options.mags is not None and not trusts_records:
        step_factors(previous, [mag])
        return previous, choose_method(layer, source, options), options.ignore_zero
    finer = made_from(layer, mag, source.box.mag)
    if finer is None:
        made = (
            f"made by {settings.get('command')}"
            + (f" from mag {settings['source']}" if "source" in settings else "")
            if settings
            else "not made by wkwdask"
        )
        raise ResumeError(
            f"{folder}: {made}, not by build_pyramid from mag {source.box.mag}: it is left "
            'unchanged; existing="overwrite" rebuilds mags'
        )
    with reading(f"{folder}/{PROVENANCE_NAME}", "record"):
        method, ignore_zero = str(settings["method"]), bool(settings["ignore_zero"])
    if options.method not in ("default", method) or (options.ignore_zero and not ignore_zero):
        requested = options.method + (" with ignore_zero" if options.ignore_zero else "")
        raise ResumeError(
            f"{folder}: made with {method}{' with ignore_zero' if ignore_zero else ''}, not "
            f"{requested}; build the mags again"
        )
    return finer, method, ignore_zero


def box_of_source(settings: dict[str, Any], finer: Mag) -> BoundingBox | None:
    """Return the box of the finer mag from which a mag was made [voxels of the finer mag], None if
    unknown."""
    if "box" not in settings or "source" not in settings:
        return None
    try:
        box = BoundingBox.parse(settings["box"])
        return BoundingBox(box.topleft, box.size, Mag.parse(settings["source"])).in_mag(finer)
    except (AttributeError, TypeError, ValueError):
        return None


def with_source(provenance: JsonObject, target: TargetArray, source: Volume) -> JsonObject:
    """Return the provenance of a mag with the current box and identity of its source."""
    made: JsonObject = provenance.get("made", provenance)
    settings = read_creation_settings(target.folder, target.mag)
    if settings.get("command") != "build_pyramid":
        return provenance
    with reading(f"{target.folder}/{PROVENANCE_NAME}", "record"):
        origin = Mag.parse(settings["source"])
    current = {**settings, "box": box_setting(source.box.in_mag(origin))}
    if origin == source.box.mag:
        current |= {**source_fingerprint(source), "source": origin.name}
    if current == settings:
        return provenance
    changed: JsonObject = {"settings": current, "mag": target.mag.name}
    if "made" in provenance:
        changed = {"made": {**made, **changed}}
    box = moved(target.box, target.origin)
    return {**provenance, **changed, "box": [*box.topleft, *box.size]}
