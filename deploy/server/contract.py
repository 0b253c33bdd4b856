"""The wire contract: the tensors that a client sends, and those it reads.

A model's card names them. Existing clients rely on names, types and shapes of the models here;
how many classes there are is a matter of the weights; outputs and optional inputs may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Dims = tuple[int, ...]

# What existing clients send.
INPUTS: Mapping[str, str] = MappingProxyType(
    {
        "hit_table_hit_id": "INT32",
        "hit_table_local_plane": "INT32",
        "hit_table_local_time": "FP32",
        "hit_table_local_wire": "INT32",
        "hit_table_integral": "FP32",
        "hit_table_rms": "FP32",
        "spacepoint_table_spacepoint_id": "INT32",
        "spacepoint_table_hit_id_u": "INT32",
        "spacepoint_table_hit_id_v": "INT32",
        "spacepoint_table_hit_id_y": "INT32",
    }
)
_TOLD = 3  # faults named in one line


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a server declares it, or a card.

    Attributes:
        datatype: Triton's name of its type.
        dims: Its dimensions; -1: any length.
        optional: Whether a request may leave it out.
    """

    datatype: str
    dims: Dims
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of a model as a server declares them, or its card.

    Attributes:
        inputs: By name.
        outputs: By name.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def read(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Signature:
        """Read what a server answers about a model.

        Args:
            metadata: The model's metadata, as JSON.
            config: Its configuration, as JSON. It alone says which inputs are optional; where
                the server keeps it closed it is empty, and none counts as asked for.

        Raises:
            KeyError, TypeError, ValueError: It is no such answer.
        """
        optional = {i["name"] for i in config.get("input", ()) if i.get("optional")}

        def tensors(kind: str) -> dict[str, Tensor]:
            # A message of gRPC has its long integers as text in JSON.
            return {
                t["name"]: Tensor(
                    t["datatype"],
                    tuple(int(d) for d in t.get("shape", ())),
                    kind == "inputs" and (not config or t["name"] in optional),
                )
                for t in metadata[kind]
            }

        return cls(tensors("inputs"), tensors("outputs"))


def breach(found: Signature, card: Signature) -> str | None:
    """Return in one line how a server breaks a model's contract, or None if it keeps it.

    Args:
        found: What the server declares.
        card: What the model's card says.
    """
    faults = []
    for kind, declared, wanted in (
        ("input", found.inputs, card.inputs),
        ("output", found.outputs, card.outputs),
    ):
        for name, tensor in wanted.items():
            faults += _faults(kind, name, tensor, declared.get(name))
    for name, tensor in found.inputs.items():
        if name not in card.inputs and not tensor.optional:
            faults.append(f"input {name} is asked for, which no client sends")
    if not faults:
        return None
    more = f"; and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
    return "; ".join(faults[:_TOLD]) + more


def _faults(kind: str, name: str, wanted: Tensor, found: Tensor | None) -> list[str]:
    if found is None:
        return [] if wanted.optional else [f"{kind} {name} is missing"]
    if found.datatype != wanted.datatype:
        return [f"{kind} {name} is {found.datatype}, expected {wanted.datatype}"]
    if not _fits(found.dims, wanted.dims):
        return [f"{kind} {name} has dims {list(found.dims)}, expected {list(wanted.dims)}"]
    return []


def _fits(found: Dims, wanted: Dims) -> bool:
    """Return whether dimensions are those wanted, whatever the number of classes."""
    if found == wanted:
        return True
    if len(wanted) == 1 and wanted != (-1,):
        # The classes of an event. Existing configurations declare [4]; what is answered is [1, 4].
        return len(found) in (1, 2) and found[:-1] in ((), (1,)) and _some(found[-1])
    return len(wanted) == len(found) == 2 and wanted[0] == found[0] == -1 and _some(found[1])


def _some(length: int) -> bool:
    return length == -1 or length >= 1
