"""The package's exceptions. Every message is one line: what is wrong, and where."""

from __future__ import annotations


class SyncError(Exception):
    """Base class of the errors that this package raises deliberately."""


class UsageError(SyncError):
    """The command line or the folder cannot be used."""


class BucketError(SyncError):
    """The bucket is away or refuses: the same is tried again."""


class ReleaseError(SyncError):
    """A release is wrong: it is tried again after half an hour, a restart or a new publication."""
