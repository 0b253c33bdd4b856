"""Names and shapes of the weights that a model card describes.

Weights have these names whatever generation of nugraph they come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numl_formats.card import EMBEDDED_HEADS, Head, ModelCard, NetworkSpec
from numl_formats.repository import CARD_FILE
from numl_serving.errors import ModelFilesError


def weight_shapes(card: ModelCard) -> dict[str, tuple[int, ...]]:
    """Return name and shape of a card's weights; see `shapes_of`."""
    return shapes_of(card.network, len(card.planes), len(card.hit_features), card.heads)


def shapes_of(
    spec: NetworkSpec, planes: int, features: int, heads: Sequence[Head]
) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the weights, all float32; a first dimension of -1 is P.

    P is 1 where the planes share the weights, else their number; it may differ from layer to
    layer. With F hit features, C classes, widths H (hit), N (nexus) and E (event), and M = N, or N
    for each plane with the rule ``concat``, the layers ``[..., outputs, inputs]`` are:

    - nugraph3: ``encoder`` [P, H, F]; ``nexus_encoder`` [N, 3] if spacepoints start from their
      position; the blocks ``planar`` (hit to hit), ``up`` (hit to spacepoint), ``to_event``,
      ``from_event`` and ``down`` (spacepoint to hit). For T features of the node that receives,
      S of the one that sends and O that come out, a block has ``gate`` [P, T + S] (the receiving
      node's features first), ``hidden`` [P, O, S + T] (what is received first) and ``output``
      [P, O, O]; ``to_event`` and ``from_event`` lack the P.
    - nugraph2: ``encoder`` [P, C, H, F]; ``planar.gate`` [P, C, 2 (H + F)], ``planar.hidden``
      [P, C, H, 2 (H + F)], ``planar.output`` [P, C, H, H]; ``nexus.hidden`` [C, N, planes H],
      ``nexus.output`` [C, N, N]; ``down.gate`` [P, C, H + N], ``down.hidden`` [P, C, H, H + N],
      ``down.output`` [P, C, H, H]. The receiving node's features come first everywhere.
    - ``heads.NAME`` [P, width, C H] (class by class), or [width, E] for a head on the event.
      P is 1 for the heads on an embedding, whose vectors know no planes.
    - with an embedding, for ``beta`` (W = 1) and ``coordinates`` (W = their width), with hidden
      width X: ``start`` [W, F]; of an update ``hidden`` [X, W + H] (its own numbers first),
      ``middle`` [X, X] if there are three layers, and ``output`` [W, X]; ``decoder`` [H, H + W]
      (the hit's features first), in front of its head.

    Each is ``NAME.weight``; ``NAME.bias`` has its shape without the inputs.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:-1]

    h, n, e, c = spec.hit_width, spec.nexus_width, spec.event_width, spec.classes
    if spec.kind == "nugraph3":
        merged = planes * n if spec.nexus == "concat" else n
        layer("encoder", -1, h, features)
        if spec.nexus_start == "position":
            layer("nexus_encoder", n, 3)
        blocks = {
            "planar": ((-1,), h, h, h),
            "up": ((-1,), n, h, n),
            "to_event": ((), e, merged, e),
            "from_event": ((), merged, e, n),
            "down": ((-1,), h, n, h),
        }
        for name, (lead, target, source, out) in blocks.items():
            layer(f"{name}.gate", *lead, target + source)
            layer(f"{name}.hidden", *lead, out, source + target)
            layer(f"{name}.output", *lead, out, out)
        if (embedding := spec.embedding) is not None:
            for name, width in (("beta", 1), ("coordinates", embedding.width)):
                layer(f"{name}.start", width, features)
                layer(f"{name}.hidden", embedding.hidden, width + h)
                if embedding.layers > 2:
                    layer(f"{name}.middle", embedding.hidden, embedding.hidden)
                layer(f"{name}.output", width, embedding.hidden)
                layer(f"{name}.decoder", h, h + width)
    else:
        joined = 2 * (h + features)
        layer("encoder", -1, c, h, features)
        layer("planar.gate", -1, c, joined)
        layer("planar.hidden", -1, c, h, joined)
        layer("planar.output", -1, c, h, h)
        layer("nexus.hidden", c, n, planes * h)
        layer("nexus.output", c, n, n)
        layer("down.gate", -1, c, h + n)
        layer("down.hidden", -1, c, h, h + n)
        layer("down.output", -1, c, h, h)
    for head in heads:
        if head.node == "event":
            layer(f"heads.{head.name}", head.width, e)
        else:
            is_embedded = spec.embedding is not None and head.name in EMBEDDED_HEADS
            layer(f"heads.{head.name}", 1 if is_embedded else -1, head.width, c * h)
    return shapes


def check_weights(card: ModelCard, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that weights are those that a card describes.

    Raises:
        ModelFilesError: Names the first that is missing, unexpected or of another shape.
    """
    expected = weight_shapes(card)
    for name in sorted(expected.keys() | shapes.keys()):
        wanted, found = expected.get(name), shapes.get(name)
        if wanted is None:
            raise ModelFilesError(f"weight {name} is not in the network that {CARD_FILE} describes")
        if found is None:
            raise ModelFilesError(f"weight {name} is missing")
        leads = (1, len(card.planes)) if wanted[:1] == (-1,) else wanted[:1]
        if card.network.nexus == "joint" and name.startswith("up."):
            leads = (1,)  # the hits of all planes are aggregated together
        if (
            len(found) != len(wanted)
            or found[1:] != wanted[1:]
            or (found[:1] and found[0] not in leads)
        ):
            raise ModelFilesError(
                f"weight {name} has shape {list(found)}, {CARD_FILE} describes {list(wanted)}"
            )
    for name, shape in expected.items():
        layer, _, kind = name.rpartition(".")
        if kind == "bias" and shape[:1] == (-1,):
            biases, sets = shapes[name][0], shapes[f"{layer}.weight"][0]
            if biases != sets:
                raise ModelFilesError(
                    f"weight {name} is for {biases} {'plane' if biases == 1 else 'planes'}, "
                    f"but {layer}.weight is for {sets}"
                )
