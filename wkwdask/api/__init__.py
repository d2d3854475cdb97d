"""Public functions and classes of wkwdask, one module per topic; :mod:`wkwdask` exports them by
name.

A function of this folder parses what users pass (URLs, mags, boxes, options), lets ``verbs`` or
``ids`` plan a job, and runs it with ``graphs.runners`` on threads or on the active dask Client. It
may import every folder below it except ``cli``. Imports of dask and its users stay inside
functions, so that light verbs load fast. Start with :mod:`wkwdask.api.access` (reading) and
:mod:`wkwdask.api.writing`.
"""

from wkwdask.model.summary import draw_cards_with


def _draw(path: str, pixels: int) -> str:
    from wkwdask.api.layers import picture_of_mag

    return picture_of_mag(path, pixels)


draw_cards_with(_draw)
