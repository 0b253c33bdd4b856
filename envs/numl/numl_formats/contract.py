"""The wire contract: the tensors that clients send and read. No other module names them.

A model's card lists its own tensors. Existing clients rely on the names, types and shapes of this
kit's models; the number of classes depends on the weights; outputs and optional inputs may be
added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Dims = tuple[int, ...]

HITS, SPACEPOINTS = "hit_table", "spacepoint_table"
# What every event needs, to put its answer back on its hits and to draw them.
HIT_ID, PLANE = f"{HITS}_hit_id", f"{HITS}_local_plane"
TIME, WIRE = f"{HITS}_local_time", f"{HITS}_local_wire"
# The outputs whose meaning a client knows; those of hits have a plane's name behind.
SEMANTIC, FILTER, EVENT_CLASS = "x_semantic", "x_filter", "e_evt"
OF_THE_EVENT = "_evt"
TYPES = {"INT32": "int32", "FP32": "float32"}
"""Triton's name of each type of a tensor, and numpy's."""
_HIT_COLUMNS = {
    "hit_id": "INT32",
    "local_plane": "INT32",
    "local_time": "FP32",
    "local_wire": "INT32",
    "integral": "FP32",
    "rms": "FP32",
}
_INTEGER_COLUMNS = frozenset({"tpc", "cryostat"})
POSITIONS = tuple(f"{SPACEPOINTS}_position_{axis}" for axis in "xyz")
_PLANE_INPUT = f"{SPACEPOINTS}_hit_id_"
_TOLD = 3  # faults named in one line


def planes_of(inputs: Collection[str]) -> tuple[str, ...]:
    """Return the planes of a model that has these inputs, in the order of ``local_plane``."""
    named = (name for name in inputs if name.startswith(_PLANE_INPUT))
    return tuple(name.removeprefix(_PLANE_INPUT) for name in named)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a server or a card declares it.

    Attributes:
        datatype: Triton's name of its type.
        dims: Its dimensions; -1: any length.
        optional: Whether requests may lack it.
    """

    name: str
    datatype: str
    dims: Dims
    optional: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy's type; KeyError if no model of the kit has such tensors."""
        import numpy as np  # takes long, and few commands need it

        return np.dtype(TYPES[self.datatype])

    def as_json(self) -> dict[str, Any]:
        """Return it as a card lists it."""
        facts = {"name": self.name, "data_type": self.datatype, "dims": list(self.dims)}
        return facts | ({"optional": True} if self.optional else {})


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns that a model takes.

    Attributes:
        planes: Names of the wire planes; ``local_plane`` is an index into them.
        tensors: All tensors of a request, in the order of the wire contract.
    """

    planes: tuple[str, ...]
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, planes: Sequence[str], features: Iterable[str] = (), *, positions: bool) -> Schema:
        """Return the schema of a detector.

        Args:
            planes: Names of the wire planes.
            features: Columns of the hit table that the network reads. Those that are not in every
                request are added: float32, but for numbers of detector parts.
            positions: Whether requests may carry the spacepoints' positions.
        """
        hits = dict(_HIT_COLUMNS)
        for column in features:
            hits.setdefault(column, "INT32" if column in _INTEGER_COLUMNS else "FP32")
        tensors = [Tensor(f"{HITS}_{name}", datatype, (-1,)) for name, datatype in hits.items()]
        tensors.append(Tensor(f"{SPACEPOINTS}_spacepoint_id", "INT32", (-1,)))
        tensors += [Tensor(f"{_PLANE_INPUT}{plane}", "INT32", (-1,)) for plane in planes]
        if positions:
            tensors += [Tensor(name, "FP32", (-1,), optional=True) for name in POSITIONS]
        return cls(tuple(planes), tuple(tensors))


UVY = Schema.of(("u", "v", "y"), positions=False)
"""What existing clients send."""
INPUTS: Mapping[str, str] = {tensor.name: tensor.datatype for tensor in UVY.tensors}


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of a model by name, as a server or its card declares them."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def read(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Signature:
        """Read what a server answers about a model.

        Args:
            metadata: The model's metadata, as JSON.
            config: Its configuration, as JSON, which alone says what inputs are optional; empty
                where the server does not show it, and then no input counts as required.

        Raises:
            KeyError, TypeError, ValueError: This is not a server's answer.
        """
        optional = {i["name"] for i in config.get("input", ()) if i.get("optional")}

        def tensors(kind: str) -> dict[str, Tensor]:
            # A message of gRPC has its long integers as text in JSON.
            return {
                t["name"]: Tensor(
                    t["name"],
                    t["datatype"],
                    tuple(int(d) for d in t.get("shape", ())),
                    kind == "inputs" and (not config or t["name"] in optional),
                )
                for t in metadata[kind]
            }

        return cls(tensors("inputs"), tensors("outputs"))


def listed(faults: Sequence[str]) -> str:
    """Return faults in one line, at most three of them."""
    more = f"; and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
    return "; ".join(faults[:_TOLD]) + more


def breach(found: Signature, card: Signature) -> str | None:
    """Return in one line how a server's declaration breaks a model's card, or None."""
    faults = []
    for kind, declared, wanted in (
        ("input", found.inputs, card.inputs),
        ("output", found.outputs, card.outputs),
    ):
        for name, tensor in wanted.items():
            faults += _faults(kind, name, tensor, declared.get(name))
    for name, tensor in found.inputs.items():
        if name not in card.inputs and not tensor.optional:
            faults.append(f"input {name} is required, but no client sends it")
    return listed(faults) if faults else None


def _faults(kind: str, name: str, wanted: Tensor, found: Tensor | None) -> list[str]:
    if found is None:
        return [] if wanted.optional else [f"{kind} {name} is missing"]
    if found.datatype != wanted.datatype:
        return [f"{kind} {name} is {found.datatype}, expected {wanted.datatype}"]
    if not _fits(found.dims, wanted.dims):
        return [f"{kind} {name} has dims {list(found.dims)}, expected {list(wanted.dims)}"]
    return []


def _fits(found: Dims, wanted: Dims) -> bool:
    """Return whether dimensions agree, whatever the number of classes."""
    if found == wanted:
        return True
    if len(wanted) == 1 and wanted != (-1,):
        # Event classes: existing configurations declare [4] and answer [1, 4].
        return len(found) in (1, 2) and found[:-1] in ((), (1,)) and _some(found[-1])
    return len(wanted) == len(found) == 2 and wanted[0] == found[0] == -1 and _some(found[1])


def _some(length: int) -> bool:
    return length == -1 or length >= 1
