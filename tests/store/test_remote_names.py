"""Names of files in remote stores: ``..`` of a document stays below the host or bucket."""

from __future__ import annotations

import pytest

from wkwdask.store.objects.remote import RemoteStore


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("https://host/em", "1/0", "https://host/em/1/0"),
        ("https://host/em/s0", "../s1/0", "https://host/em/s1/0"),
        ("https://host/em", "../../../other.host/0", "https://host/other.host/0"),
        ("s3://bucket/em", "../../../other-bucket/0", "s3://bucket/other-bucket/0"),
        ("https://host", "../other.host/0", "https://host/other.host/0"),
        ("https://host/em", "../a#b?c", "https://host/a%23b%3Fc"),
    ],
)
def test_a_name_does_not_lead_out_of_the_host(url, name, expected):
    assert RemoteStore(url).path_of(name) == expected
