"""All errors and warnings of wkwdask.

Each error is also a subclass of the builtin that fits it, so that plain ``except ValueError`` keeps
working. Errors carry nothing but their message: they survive pickling between dask workers.
"""

from __future__ import annotations


class WkwDaskError(Exception):
    """Base class of all errors of this package; never raised itself."""


class FormatError(WkwDaskError, ValueError):
    """Stored bytes or JSON violate their specification."""


class TruncatedError(FormatError):
    """Fewer bytes are stored than the header or table states."""


class CorruptError(FormatError):
    """Enough bytes are stored, but their content is invalid."""


class UnsupportedError(WkwDaskError, NotImplementedError):
    """Legal by the specification, but not implemented here."""


class AlignmentError(WkwDaskError, ValueError):
    """A region is not aligned with the shard grid: two tasks would write one file."""


class BoundsError(WkwDaskError, IndexError):
    """A box extends beyond its layer."""


class MissingError(WkwDaskError, FileNotFoundError):
    """A dataset, layer, mag or metadata file is missing; shards may be missing, and read as zeros."""  # noqa: E501


class ReplacedError(WkwDaskError, OSError):
    """Another job has replaced an array since it was opened."""


class ExistsError(WkwDaskError, FileExistsError):
    """The target already exists and ``existing="error"``."""


class ResumeError(WkwDaskError, ValueError):
    """The journal of a job differs from its settings, or files exist without a journal."""


class LockedError(WkwDaskError, OSError):
    """Another job is writing these files."""


class TaskFailedError(WkwDaskError, RuntimeError):
    """Some tasks of a job failed; the message lists each with its reason."""


class BatchError(WkwDaskError, RuntimeError):
    """A batch system rejected a job, or is not available."""


class IncompleteWriteError(WkwDaskError, RuntimeError):
    """The receipts of a job do not cover its plan: some shards were not written."""


class SpaceError(WkwDaskError, OSError):
    """A job needs more bytes than its file system has free. Nothing was written."""


class SpaceWarning(UserWarning):
    """A job may need more bytes or inodes than its file system has free."""


class DiscardWarning(UserWarning):
    """A job discards the finished work of an interrupted one, because it starts over."""


class ViewerWarning(UserWarning):
    """The volume follows its specification, but Neuroglancer shows it wrongly."""


class SectionWarning(UserWarning):
    """Sections of a stack are missing or unreadable; the job continues."""


class HeaderWarning(UserWarning):
    """Headers of chunks are not at the place where readers of the stored files expect them."""


class AccessWarning(UserWarning):
    """A server denies access to files, which are then treated as missing."""


class TransformationWarning(UserWarning):
    """An image states a transformation that is not applied, such as a rotation."""


class MetadataWarning(UserWarning):
    """A copy does not have all metadata of its source, or a file states values whose unit is
    unknown."""
