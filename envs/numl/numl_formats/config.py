"""A model's ``config.pbtxt``, made from its card and from what the image says of all else.

An image has a template for each model of the kit: its configuration without what depends on the
weights. In protobuf's text format, two texts one after the other are one message.
"""

from __future__ import annotations

import hashlib
import re

from numl_formats.card import ModelCard
from numl_formats.cardfile import card_of
from numl_formats.contract import Tensor
from numl_formats.errors import FormatError

DIGEST = "config_sha256"
"""The parameter by which a server says which configuration it has loaded."""
_DIGEST = re.compile(rf'key: "{DIGEST}" value {{ string_value: "([0-9a-f]{{64}})"')


def render_config(name: str, version: int, card: bytes, template: str) -> str:
    """Return the configuration that serves one version of a model.

    Args:
        card: The content of the version's ``model.json``.
        template: The configuration without name, versions, tensors and what the card says.

    Raises:
        FormatError: The card is none.
    """
    try:
        said = card_of(card)
    except FormatError as error:
        raise FormatError(f"model.json of {name}: {error}") from None
    versions = f"version_policy {{ specific {{ versions: {version} }} }}"
    return "\n".join([f"name: {_quoted(name)}", versions, of_card(said), template])


def with_digest(config: str) -> str:
    """Return a configuration that carries its own digest."""
    return f"{config}\n{_parameter(DIGEST, hashlib.sha256(config.encode()).hexdigest())}\n"


def digest_in(config: str) -> str:
    return str(_DIGEST.findall(config)[-1])


def of_card(card: ModelCard) -> str:
    """Return what a card says of a configuration: tensors, names of classes, the weights."""
    blocks = [
        *(_tensor("input", tensor) for tensor in card.schema.tensors),
        *(_tensor("output", tensor) for tensor in card.outputs),
        *(_parameter(f"{h.name}_classes", ",".join(h.classes)) for h in card.heads if h.classes),
        # Clients note by this what has labelled their events.
        _parameter("weights_sha256", card.weights.sha256),
    ]
    if card.demo:
        blocks.append(_parameter("weights", "demo weights"))
    return "\n".join(blocks)


def _tensor(kind: str, tensor: Tensor) -> str:
    return (
        f"{kind} {{ name: {_quoted(tensor.name)} data_type: TYPE_{tensor.datatype} "
        f"dims: [{', '.join(map(str, tensor.dims))}]{' optional: true' * tensor.optional} }}"
    )


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"


def _quoted(text: str) -> str:
    """Return a text as protobuf quotes it: what is not plain ASCII, byte by byte."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b"\"\\'" else f"\\{byte:03o}"
        for byte in text.encode("utf-8")
    )
    return f'"{"".join(plain)}"'
