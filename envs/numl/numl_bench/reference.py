"""The reference: nugraph's own code, of the generation that a model is of.

The benchmark measures it, the tests compare with it. It is what a Triton model with NuGraph's own
stack does for a request, at its best: the losses, which the decoders compute for every event, are
left out, and so is collating into a batch.

The environment has nugraph 24.7.1; 25.4.0 is laid beside it. A process can have only one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import safetensors.numpy
from numl_demo.nugraph25 import lay_beside

from numl_formats.cardfile import read_card
from numl_formats.repository import CARD_FILE

from .measure import Outputs, Tensors


class Reference(Protocol):
    """NuGraph's own code with the weights of a model."""

    def preprocess(self, tensors: Tensors) -> Any:
        """Make the graph of a request's tensors."""

    def network(self, data: Any, *, gradients: bool) -> Outputs:
        """Answer a graph, which the models change.

        Args:
            data: The graph.
            gradients: Whether torch records what a backward pass would need, as it does where
                nobody has told it not to.
        """


def load(directory: Path, nugraph25: Path) -> Reference:
    """Read a model folder with ``model.json`` and weights.

    Args:
        directory: The model folder.
        nugraph25: Where nugraph 25.4.0 is unpacked.

    Raises:
        ImportError: The nugraph that is needed is not there, or another has been imported before.
    """
    card = read_card(directory / CARD_FILE)
    weights = safetensors.numpy.load_file(directory / card.weights.file)
    if card.network.generation.startswith("2026"):
        raise ImportError("nugraph's main branch is not on PyPI: this model has no reference")
    if card.network.generation == "25.4":
        lay_beside(nugraph25)
        from .reference25 import Reference25

        return Reference25(card, weights)
    from .reference24 import Reference24

    return Reference24(card, weights)
