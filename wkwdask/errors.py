"""Every error that wkwdask raises on its own account, on one screen.

Each leaf is also a subclass of the builtin that fits it, so that plain ``except ValueError`` keeps working. All of them carry
nothing but their message, which makes them survive pickling between dask workers.
"""

from __future__ import annotations


class WkwDaskError(Exception):
    """Base of all errors of this package; never raised itself."""


class FormatError(WkwDaskError, ValueError):
    """Stored bytes or JSON break their specification."""


class TruncatedError(FormatError):
    """Fewer bytes are stored than were promised."""


class CorruptError(FormatError):
    """Enough bytes are stored, but their content is impossible."""


class UnsupportedError(WkwDaskError, NotImplementedError):
    """Legal by the specification, but not implemented here."""


class AlignmentError(WkwDaskError, ValueError):
    """A region does not lie on the shard grid: two tasks would own one file."""


class BoundsError(WkwDaskError, IndexError):
    """A box reaches outside its layer."""


class MissingError(WkwDaskError, FileNotFoundError):
    """A dataset, layer, mag or metadata file is absent (an absent shard is not an error: it reads as zeros)."""


class ReplacedError(WkwDaskError, OSError):
    """What is being read was replaced by another job since it was opened."""


class ExistsError(WkwDaskError, FileExistsError):
    """The target already exists and ``existing="error"``."""


class ResumeError(WkwDaskError, ValueError):
    """A journal and the settings of the job differ, or there are files without a journal."""


class LockedError(WkwDaskError, OSError):
    """Another job writes these files."""


class TaskFailedError(WkwDaskError, RuntimeError):
    """Some tasks of a job failed; the message lists them with their reasons."""


class BatchError(WkwDaskError, RuntimeError):
    """A batch system refused a job, or is not there."""


class IncompleteWriteError(WkwDaskError, RuntimeError):
    """The receipts of a job do not cover its plan."""


class SpaceWarning(UserWarning):
    """A job will probably need more bytes or files than its file system has left."""


class ViewerWarning(UserWarning):
    """What is stored as specified is shown wrong by Neuroglancer."""


class SectionWarning(UserWarning):
    """Sections of a stack are missing or bad, and the job goes on."""


class HeaderWarning(UserWarning):
    """Headers of chunks are not where readers of the stored files look for them."""


class AccessWarning(UserWarning):
    """A server refuses files that are taken to be absent."""
