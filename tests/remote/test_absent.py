"""Files that are absent or refused, and HTML pages in their place: zeros only where the file is
certainly absent."""

from __future__ import annotations

import contextlib

import dask
import numpy as np
import pytest
from support.proxy import Answer, Cut

import wkwdask
from wkwdask.errors import AccessWarning

pytestmark = pytest.mark.needs("obstore")

DOCUMENTS = (".json", "info", "header.wkw", ".zarray", ".zattrs", ".zgroup")


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.one_in(3)
def test_absent_chunks_are_zero(form, place):
    np.testing.assert_array_equal(wkwdask.read(form.url(place), form.box()), form.array())


def test_refused_chunks_are_zero_while_a_document_is_readable(form, web):
    """A bucket that may not be listed answers 403 where a file is absent."""
    with pytest.warns(AccessWarning, match="they are treated as absent"):
        np.testing.assert_array_equal(
            wkwdask.read(form.url(web.refusing), form.box()), form.array()
        )


def test_refused_chunks_are_errors_once_the_document_is_refused_too(form, far):
    array = wkwdask.open(form.url(far.url))
    far.fault = lambda request: Answer(403)
    with pytest.raises(PermissionError, match="403"):
        array.compute()


def test_a_page_in_place_of_a_chunk_is_an_error(form, web):
    """It answers with status 200, also for the chunks that are absent."""
    with pytest.raises((wkwdask.UnsupportedError, wkwdask.FormatError), match=web.paging):
        wkwdask.read(form.url(web.paging), form.box())


def test_a_chunk_that_is_replaced_while_it_is_read_is_an_error_or_new(form, far):
    """The table is of the old file, the blocks would be of the new one."""
    array = wkwdask.open(form.url(far.url))
    np.testing.assert_array_equal(array.compute(), form.array())
    far.fault = lambda request: (
        None
        if request.path.endswith(DOCUMENTS) or "if-match" not in request.headers
        else Answer(412)
    )
    with contextlib.suppress(wkwdask.ReplacedError):
        np.testing.assert_array_equal(array.compute(), form.array())


def test_a_server_that_is_busy_is_asked_again(form, far):
    far.failures[:] = [Answer(503)] * 2
    np.testing.assert_array_equal(wkwdask.read(form.url(far.url), form.box()), form.array())


def test_a_body_that_is_cut_is_asked_again(form, far):

    array = wkwdask.open(form.url(far.url))
    far.failures[:] = [Cut(5)]
    np.testing.assert_array_equal(array.compute(), form.array())


def test_a_connection_that_breaks_is_made_again(form, far):

    array = wkwdask.open(form.url(far.url))
    far.failures[:] = [Cut(), Cut()]
    np.testing.assert_array_equal(array.compute(), form.array())


def test_a_server_that_can_compress_need_not(form, web):
    """nginx compresses on the fly for clients that accept it, and ranges are then impossible."""
    np.testing.assert_array_equal(wkwdask.read(form.url(web.compressing), form.box()), form.array())
