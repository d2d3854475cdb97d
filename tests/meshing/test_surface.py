"""Surfaces are the same whatever other threads do, and simplifiers keep what they must."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wkwdask.meshing.surface import (
    UNIT,
    Simplifier,
    Surface,
    joined,
    marching_cubes,
    without_unused,
)

pytestmark = pytest.mark.needs("zmesh", "pyfqmr")
EACH_SIMPLIFIER = [
    "pyfqmr",
    pytest.param("meshoptimizer", marks=pytest.mark.needs("meshoptimizer")),
]
ANYWHERE = (np.full(3, -(1 << 31), np.int32), np.full(3, (1 << 31) - 1, np.int32))


def balls():
    """Surfaces of balls of several sizes."""
    x, y, z = np.ogrid[-16:17, -16:17, -16:17]
    distance = x * x + y * y + z * z
    for radius in range(7, 15):
        ((_, surface),) = marching_cubes((distance < radius * radius).astype(np.uint8))
        yield surface


@pytest.mark.parametrize("name", EACH_SIMPLIFIER)
def test_threads_do_not_meet(name):
    simplifier, surfaces = Simplifier(name, (1.0, 0.8, 1.25)), [*balls()] * 8

    def simplified(surface):
        simple = simplifier.simplify(surface, ANYWHERE, 0.35, np.inf)
        return simple.vertices.tobytes(), simple.faces.tobytes()

    expected = [simplified(surface) for surface in surfaces]
    assert len(set(expected)) == 8
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(simplified, surfaces)) == expected


@pytest.mark.parametrize("name", EACH_SIMPLIFIER)
def test_faces_are_bounded(name):
    *_, surface = balls()
    few, many = (
        Simplifier(name, (1.0, 1.0, 1.0)).simplify(surface, ANYWHERE, 9.0, reduction)
        for reduction in (4, np.inf)
    )
    assert len(surface.faces) // 4 <= len(few.faces) < len(surface.faces) / 3
    assert few is not None
    assert many is None or len(many.faces) < len(few.faces)


@pytest.mark.parametrize("name", EACH_SIMPLIFIER)
def test_vertices_stay_in_bounds(name):
    labels = np.zeros((20, 20, 20), np.uint8)
    labels[3:, 4:15, 5:16] = 1
    ((_, surface),) = marching_cubes(labels)
    is_held = surface.vertices[:, 0] == 19 * UNIT
    assert is_held.any()
    bounds = np.ones(3, np.int32), np.full(3, 19 * UNIT - 1, np.int32)
    simple = Simplifier(name, (1.0, 1.0, 1.0)).simplify(surface, bounds, 0.5, np.inf)
    on_plane = simple.vertices[simple.vertices[:, 0] == 19 * UNIT]
    assert sorted(map(tuple, on_plane)) == sorted(map(tuple, surface.vertices[is_held]))
    assert len(simple.faces) < len(surface.faces) / 2


def test_a_lost_vertex_on_a_plane_is_seen(monkeypatch):
    *_, surface = balls()
    low, high = ANYWHERE
    bounds = low, np.array([high[0], high[1], surface.vertices[:, 2].max() - 1], np.int32)
    order = np.argsort(surface.vertices[:, 2])

    def lose(number):
        faces = surface.faces[(surface.faces != number).all(axis=1)]
        return lambda *_: without_unused(Surface(surface.vertices, faces))

    simplifier = Simplifier("pyfqmr", (1.0, 1.0, 1.0))
    for number, is_lost in ((order[-1], True), (order[0], False)):
        monkeypatch.setattr(Simplifier, "_by_pyfqmr", lose(number))
        simple = simplifier.simplify(surface, bounds, 0.5, 4)
        assert (simple is None) == is_lost


def test_a_closed_surface_that_vanishes_is_seen(monkeypatch):
    *_, surface = balls()
    nothing = Surface(surface.vertices[:0], surface.faces[:0])
    monkeypatch.setattr(Simplifier, "_by_pyfqmr", lambda *_: nothing)
    simplifier = Simplifier("pyfqmr", (1.0, 1.0, 1.0))
    assert simplifier.simplify(surface, ANYWHERE, 0.5, 4) is None


def test_no_error_changes_nothing():
    *_, surface = balls()
    assert Simplifier("pyfqmr", (1.0, 1.0, 1.0)).simplify(surface, ANYWHERE, 0.0, 4) is surface


def test_equal_positions_are_joined():
    far = 2**31 - 1
    first = Surface(
        np.array([[0, 0, 0], [far, 0, 1], [0, 5, 0]], np.int32), np.array([[0, 1, 2]], np.uint32)
    )
    second = Surface(
        np.array([[far, 0, 1], [0, 0, 0], [0, 0, 0], [3, 0, far]], np.int32),
        np.array([[0, 1, 3], [0, 1, 2]], np.uint32),
    )
    whole = joined([first, second])
    assert len(whole.vertices) == 4
    corners = [sorted(map(tuple, whole.vertices[face].tolist())) for face in whole.faces]
    assert corners == [
        [(0, 0, 0), (0, 5, 0), (far, 0, 1)],
        [(0, 0, 0), (3, 0, far), (far, 0, 1)],
    ]
