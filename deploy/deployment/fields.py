"""Kinds of values in a deployment file."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, Field


def number(low: float, high: float, kind: type[int] | type[float] = int) -> BeforeValidator:
    """Return a validator that accepts numbers of a kind from ``low`` to ``high`` only."""

    def check(value: Any) -> float:
        # Its type itself: true is not 1.
        if type(value) not in (int, kind) or not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{value!r} is not {what} from {low} to {high}")
        return kind(value)

    return BeforeValidator(check)


Port = Annotated[int, number(1, 65535)]
Size = Annotated[ByteSize, Field(ge=10**6, lt=2**63)]
