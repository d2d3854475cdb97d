"""Every verb on images whose chunks and shards have any lengths, also those that are no powers of
two; other software writes and reads the images."""

from __future__ import annotations

import dask
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verbs.all_verbs import LIMITS, VERBS, Bench
from verbs.foreign_forms import image_with_chunks

pytestmark = [
    pytest.mark.needs("zarr"),
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LENGTHS = (1, 2, 3, 5, 6, 7, 8, 12, 16, 100)
NOT_MEANT = {
    # of images that wkwdask writes, or of coordinates
    *("save", "save_by_url", "resume", "write", "create", "convert_from_wkw", "levels", "xarray"),
    # of files, or of images of one kind
    *(
        "manifest",
        "info",
        "preview",
        "meshes",
        "zarr_view",
        "zarr_in_place",
        "serve",
        "clear_region",
        "contrast",
        "histogram",
    ),
}


@st.composite
def geometries(draw, names):
    """Draw an image: its format, chunks, chunks per shard, size, position, and other chunks for a
    copy."""
    lengths = st.tuples(*[st.sampled_from(LENGTHS)] * 3)
    name = draw(st.sampled_from(names))
    counts = (
        draw(st.tuples(*[st.sampled_from((1, 2, 3, 5))] * 3)) if name == "zarr-3-sharded" else None
    )
    # the ladder of a single section, or voxel, is another one
    size = draw(st.tuples(*[st.integers(9, 40)] * 3))
    offset = (
        draw(st.tuples(*[st.sampled_from((0, 1, 7, 12))] * 3))
        if name == "precomputed"
        else (0, 0, 0)
    )
    return image_with_chunks(name, draw(lengths), counts, size, offset, draw(lengths))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", sorted(VERBS.keys() - NOT_MEANT))
@settings(
    max_examples=max(2, settings().max_examples // 4), suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_verb(name, data, tmp_path_factory):
    form = data.draw(
        geometries(
            ("zarr-3-sharded",)
            if name == "rechunk_shards"
            else ("zarr-2", "zarr-3", "zarr-3-sharded", "n5", "precomputed")
        )
    )
    limits = LIMITS.get(name, {})
    with dask.config.set(scheduler="synchronous"):
        VERBS[name](
            Bench(form, tmp_path_factory.mktemp("any"), data.draw(st.integers(0, 99)), **limits)
        )
