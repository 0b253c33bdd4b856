"""The wire contract: the tensors that every client of NuGraph sends, and those it reads.

Existing clients rely on names, types and shapes. How many classes there are is a matter of the
weights; outputs and optional inputs may be added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Dims = tuple[int, ...]

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
    """A tensor as a server declares it.

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
    """The tensors of a model as a server declares them.

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


@dataclass(frozen=True, slots=True)
class _Shape:
    """Dimensions that are right, and how a message names them."""

    text: str
    fits: Callable[[Dims], bool]


def _some(length: int) -> bool:
    return length == -1 or length >= 1


_COLUMN = _Shape("[-1]", lambda dims: dims == (-1,))
_CLASSES = _Shape("[-1, classes]", lambda d: len(d) == 2 and d[0] == -1 and _some(d[1]))
# Existing configurations declare [4]; what is answered is [1, 4].
_EVENT = _Shape(
    "[classes] or [1, classes]",
    lambda d: len(d) in (1, 2) and _some(d[-1]) and d[:-1] in ((), (1,)),
)
_VERTEX = _Shape("[1, 3]", lambda dims: dims == (1, 3))
_OUTPUTS: Mapping[str, Mapping[str, _Shape]] = MappingProxyType(
    {
        "semantic": {f"x_semantic_{plane}": _CLASSES for plane in "uvy"},
        "filter": {f"x_filter_{plane}": _COLUMN for plane in "uvy"},
        "event": {"e_evt": _EVENT},
        "vertex": {"v_evt": _VERTEX},
    }
)


def breach(signature: Signature, heads: Sequence[str]) -> str | None:
    """Return in one line how a model breaks the contract, or None if it keeps it.

    Args:
        signature: What the server declares.
        heads: The heads of the model's weights: ``semantic``, ``filter``, ``event``,
            ``vertex``.
    """
    faults = []
    for name, datatype in INPUTS.items():
        faults += _faults("input", name, datatype, _COLUMN, signature.inputs.get(name))
    for name, tensor in signature.inputs.items():
        if name not in INPUTS and not tensor.optional:
            faults.append(f"input {name} is asked for, which no client sends")
    for head in heads:
        for name, shape in _OUTPUTS.get(head, {}).items():
            faults += _faults("output", name, "FP32", shape, signature.outputs.get(name))
    if not faults:
        return None
    more = f"; and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
    return "; ".join(faults[:_TOLD]) + more


def _faults(kind: str, name: str, datatype: str, shape: _Shape, found: Tensor | None) -> list[str]:
    if found is None:
        return [f"{kind} {name} is missing"]
    if found.datatype != datatype:
        return [f"{kind} {name} is {found.datatype}, expected {datatype}"]
    if not shape.fits(found.dims):
        return [f"{kind} {name} has dims {list(found.dims)}, expected {shape.text}"]
    return []
