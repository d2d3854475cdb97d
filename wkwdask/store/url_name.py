"""How URLs of a format say that they are that: a prefix, as in ``n5://PATH``, or what Neuroglancer writes at the end, as in ``PATH|n5:``."""

from __future__ import annotations

import os
from dataclasses import dataclass

from wkwdask.store.paths import is_remote, local_path


@dataclass(frozen=True, slots=True)
class UrlName:
    """How URLs of one format look."""

    prefixes: tuple[str, ...]
    """What they may begin with."""
    endings: tuple[str, ...]
    """What may stand behind their last ``|``, with a colon or without."""

    def is_in(self, url: object) -> bool:
        """Tell whether a URL says itself that it is one of the format."""
        if not isinstance(url, (str, os.PathLike)):
            return False
        text = os.fspath(url)
        return text.startswith(self.prefixes) or self._is_ending(text)

    def stripped(self, url: str | os.PathLike[str]) -> str:
        """Take off what says so.

        Examples
        --------
        >>> name = UrlName(("n5://",), ("n5",))
        >>> name.stripped("n5://https://host/em.n5/"), name.stripped("gs://bucket/em.n5/|n5:"), name.is_in("n5")
        ('https://host/em.n5', 'gs://bucket/em.n5', False)
        """
        text = os.fspath(url)
        for prefix in self.prefixes:
            text = text.removeprefix(prefix)
        if self._is_ending(text):
            text = text.rpartition("|")[0]
        return text.rstrip("/") or text

    def location(self, url: str | os.PathLike[str]) -> str:
        """Give the path or URL of the folder that a user names."""
        text = self.stripped(url)
        return text if is_remote(text) else local_path(text)

    def _is_ending(self, text: str) -> bool:
        _, bar, ending = text.rpartition("|")
        return bool(bar) and ending.removesuffix(":") in self.endings
