"""Nobody else is at work: the locks of whoever might be, taken without waiting for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.errors import KitError
from deploy.files import unless_locked


@contextmanager
def nobody_at_work(locks: Iterable[Path]) -> Iterator[None]:
    """Hold all ``locks`` for the length of the block.

    Raises:
        KitError: If somebody holds one of them.
    """
    with ExitStack() as stack:
        for lock in locks:
            if not stack.enter_context(unless_locked(lock)):
                raise KitError(f"another command is at work in {lock.parent}")
        yield
