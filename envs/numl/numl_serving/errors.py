"""The exceptions of the package: every message is one line that says what is wrong and where."""


class ServingError(Exception):
    """Base of all errors that this package raises on purpose."""


class EventError(ServingError):
    """An event that cannot be used; names the table, the column and the first offending row."""


class CheckpointError(ServingError):
    """A training checkpoint that cannot be read or holds no usable weights."""


class ModelFilesError(ServingError):
    """Model files (weights, model card, golden event) that are missing or do not fit together."""
