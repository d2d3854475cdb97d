"""Finding out how a coarser mag was made that does not say so: by files that tell the methods apart."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from wkwdask.formats.wkw.volume import file_path
from wkwdask.kernels.window.reduce import METHODS
from wkwdask.verbs.wkw.verify import Made, check_of, recompute_specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.runs.job import Result
    from wkwdask.verbs.verify import RecomputeSpec
    from wkwdask.verbs.wkw.dataset_check import MagScope

_TRIED = 32  # intact files of a mag at most: the search ends with the first ones that tell the methods apart


class MethodTrials:
    """Files of coarser mags that are computed by every method and compared with what is stored."""

    def __init__(self) -> None:
        self._fits: dict[str, set[str]] = defaultdict(lambda: set(METHODS))
        self._own: dict[str, set[str]] = defaultdict(lambda: set(METHODS))
        self._compared: dict[str, int] = defaultdict(int)
        self._broken: set[str] = set()

    def specs(self, scope: MagScope, made: Made, broken: set[str]) -> Iterator[RecomputeSpec]:
        """Give the trials of a mag: of the sound blocks of its broken files, then of intact files until only one method is left."""
        stored = {file_path(scope.folder, (x, y, z)) for x, y, z in scope.listing.shards.tolist()}
        self._broken |= stored & broken
        specs = [spec for spec in recompute_specs(scope, made, broken - stored) if spec.coarser.shard_path(spec.shard) in stored]
        check = check_of(scope, decode=True)
        for spec in (spec for spec in specs if os.path.isfile(path := spec.coarser.shard_path(spec.shard)) and path in broken):
            yield from (replace(spec, method=method, check=check) for method in ((made.method,) if made.is_known else METHODS))
        if made.is_known:
            return
        for spec in _telling([spec for spec in specs if spec.coarser.shard_path(spec.shard) not in broken]):
            left = sorted(self._fits[scope.folder])
            if len(left) < 2:
                return
            yield from (replace(spec, method=method) for method in left)

    def take(self, spec: RecomputeSpec, result: Result) -> None:
        """Take note of what a trial gave."""
        path = spec.coarser.shard_path(spec.shard)
        fits = self._own[path] if path in self._broken else self._fits[spec.coarser.name]
        self._compared[path] = max(self._compared[path], result.value.compared)
        if result.value.different:
            fits.discard(spec.method)

    def method_of(self, scope: MagScope, path: str, made: Made, *, has_sound: bool) -> tuple[str | None, str]:
        """Choose the method by which a file is made anew."""
        if made.is_noted:
            return made.method, f"by {made.method}, as its provenance says"
        if has_sound and not self._compared[path]:
            return None, "its sound blocks could not be compared with the finer mag"
        fits = {made.method} if made.is_known else self._fits[scope.folder]
        left = sorted(fits & self._own[path])
        if len(left) == 1:
            return left[0], f"by {left[0]}, as {'you say' if made.is_known else 'intact files of the mag show'}"
        if left:
            return None, f"nothing tells how the mag was made, its sound files fit {', '.join(left)} alike: give method="
        if fits:
            return None, f"its sound blocks are not what the finer mag gives by {', '.join(sorted(fits))}: that may hold less than was there"
        return None, "no method gives the intact files of the mag: give method= if you know it"


def _telling(specs: Sequence[RecomputeSpec]) -> list[RecomputeSpec]:
    """Choose files that are likely to tell methods apart: the largest ones, in turn with some from all over the mag."""
    largest = sorted(specs, key=_nbytes, reverse=True)[:_TRIED]
    spread = specs[:: max(1, len(specs) // _TRIED)]
    mixed = {spec.shard: spec for spec in chain.from_iterable(zip_longest(largest, spread)) if spec is not None}
    return list(mixed.values())[:_TRIED]


def _nbytes(spec: RecomputeSpec) -> int:
    try:
        return os.stat(spec.coarser.shard_path(spec.shard)).st_size
    except OSError:
        return 0
