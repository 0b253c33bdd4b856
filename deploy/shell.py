"""Words of a command, as a person can paste them."""

from __future__ import annotations

import os
import shlex


def quote(word: str) -> str:
    """Return ``word`` as a shell reads it, on one line that has nothing invisible in it.

    A word that can be shown is quoted as every shell reads it, any other in the way of bash
    and zsh (``$'...'``).
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
