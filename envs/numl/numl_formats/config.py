"""A model's ``config.pbtxt``, made from its card and from what the image says of all else.

An image has a template for each model of the kit: its configuration without what depends on the
weights. In protobuf's text format, two texts one after the other are one message.
"""

from __future__ import annotations

import json
from typing import Any

from numl_formats.errors import FormatError

_TYPES = ("INT32", "FP32")
_LARGEST = 1 << 20
_MOST_DIM = 1 << 31


def render_config(name: str, version: int, card: bytes, template: str) -> str:
    """Return the configuration that serves one version of a model.

    Args:
        card: The content of the version's ``model.json``.
        template: The configuration without name, versions, tensors and what the card says.

    Raises:
        FormatError: The card is none.
    """
    try:
        if len(card) > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        said = json.loads(card.decode("utf-8"))
        blocks = [
            f"name: {_quoted(name)}",
            f"version_policy {{ specific {{ versions: {version} }} }}",
            *(_tensor("input", tensor) for tensor in said["inputs"]),
            *(_tensor("output", tensor) for tensor in said["outputs"]),
            *(_classes(head) for head in said["heads"] if head["classes"]),
        ]
        if said["demo"]:
            blocks.append(_parameter("weights", "demo weights"))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        words = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"model.json of {name} is not a model card: {words}") from None
    return "\n".join([*blocks, template])


def _tensor(kind: str, said: Any) -> str:
    data_type, dims = said["data_type"], said["dims"]
    if data_type not in _TYPES:
        raise ValueError(f"{data_type!r} is not one of {', '.join(_TYPES)}")
    for dim in dims:
        if type(dim) is not int or not -1 <= dim < _MOST_DIM:
            raise ValueError(f"{dim!r} is not a dimension")
    optional = " optional: true" if kind == "input" and said.get("optional") is True else ""
    return (
        f"{kind} {{ name: {_quoted(said['name'])} data_type: TYPE_{data_type} "
        f"dims: [{', '.join(map(str, dims))}]{optional} }}"
    )


def _classes(head: Any) -> str:
    if not isinstance(head["name"], str):
        raise TypeError("the name of a head is not a text")
    return _parameter(f"{head['name']}_classes", ",".join(head["classes"]))


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"


def _quoted(text: Any) -> str:
    """Return a text as protobuf quotes it: what is not plain ASCII, byte by byte."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b"\"\\'" else f"\\{byte:03o}"
        for byte in text.encode("utf-8")
    )
    return f'"{"".join(plain)}"'
