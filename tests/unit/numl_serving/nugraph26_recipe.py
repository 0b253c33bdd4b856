"""Make the files in ``nugraph26``: checkpoints of nugraph's main branch, and their answers.

That branch is not on PyPI, so its answers are kept. In the environment of ``numlkit prepare
--full``, with a clone of nugraph in NUGRAPH:

    git -C NUGRAPH checkout 1b49275aa844c468af4bef41a2884bb77e1cab22
    PYTHONPATH=envs/numl python tests/unit/numl_serving/nugraph26_recipe.py NUGRAPH

Then the narrow one, and the feature extension as it was when it still wrote what it computes:

    git -C NUGRAPH checkout 95e71ec
    PYTHONPATH=envs/numl python tests/unit/numl_serving/nugraph26_recipe.py NUGRAPH
    git -C NUGRAPH show a0fb8be:nugraph/nugraph/util/FeatureExtension.py > EXTENSION
    git -C NUGRAPH checkout 1b49275aa844c468af4bef41a2884bb77e1cab22
    PYTHONPATH=envs/numl python tests/unit/numl_serving/nugraph26_recipe.py NUGRAPH EXTENSION

Each ``NAME.npz`` has an event (``input/...``) and the float64 answer (``output/...``), rounded.
"""

import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi4py

FOLDER = Path(__file__).resolve().with_name("nugraph26")
UPSTREAM = Path(sys.argv[1])

mpi4py.rc.initialize = False
sys.path[:0] = [str(UPSTREAM / "nugraph"), str(UPSTREAM / "pynuml")]
for absent in ("wandb", "torch_scatter", "cuml"):
    module = types.ModuleType(absent)
    vars(module).update({"Table": None, "Html": None, "log": None, "scatter_max": None})
    sys.modules[absent] = module

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from nugraph.models import NuGraph2, NuGraph3  # noqa: E402
from numl_demo import oracle  # noqa: E402
from numl_demo.graphs import POSITION_SCALE, Columns, scale_positions  # noqa: E402
from numl_demo.simulate import simulate_event  # noqa: E402
from torch_geometric.utils import subgraph  # noqa: E402

HEADS = ("semantic", "filter", "event", "vertex", "instance", "spacepoint")
SMALL: dict[str, Any] = {
    "in_features": 7,
    "hit_features": 16,
    "nexus_features": 6,
    "interaction_features": 5,
    "instance_features": 3,
    "semantic_classes": ["MIP", "HIP", "shower", "michel", "diffuse", "invisible", "background"],
    "event_classes": ["numu", "nue", "nc"],
    "num_iters": 3,
}
UVY = ("u", "v", "y")


def heads(*there: str) -> dict[str, bool]:
    """Return nugraph's arguments for these heads."""
    return {f"{head}_head": head in there for head in HEADS}


NARROW = not (UPSTREAM / "nugraph/nugraph/util/feature_extension.py").exists()


class NoLoss(torch.nn.Module):
    """Stands in for a decoder's loss, with as many numbers as it has."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, *_: Any) -> Any:
        """Return zeros."""
        return torch.zeros(self.shape)


def answered(model: Any, data: Any, planes: tuple[str, ...]) -> Any:
    """Return the answer to an event without truth."""
    shapes = {"SemanticDecoder": () if NARROW else (1,), "InstanceDecoder": (3,)}
    kinds = iter([type(decoder).__name__ for decoder in getattr(model, "decoders", ())])
    oracle._NoLoss = lambda: NoLoss(shapes.get(next(kinds), ()))
    if isinstance(model, NuGraph3) and not hasattr(model, "instance_decoder"):
        # No head reads the embedding, which lies on the hits all the same.
        model.register_forward_hook(lambda *_: without_embedding(data["hit"]))
    return oracle.answer(model, data, planes)


def without_embedding(hits: Any) -> None:
    """Take the embedding away."""
    del hits.of, hits.ox


oracle.nugraph2_transform.subgraph = lambda hits, edges, *, relabel_nodes: subgraph(
    hits, edges, relabel_nodes=relabel_nodes
)


def graph_of(tables: Any, model: Any, planes: tuple[str, ...], extend: Any, first: bool) -> Any:
    """Make an event's graph, and transform it as nugraph's data module does."""
    event = Columns({name: pd.DataFrame(columns) for name, columns in tables.items()})
    if first:
        scale_positions(event, POSITION_SCALE)
    data = oracle.make_graph(oracle.producer(planes, ("integral", "rms")), event)
    data["evt"].y = torch.zeros(1, dtype=torch.long)
    if first:
        data["hit"].x = data["hit"].x[:, :2]
    data = type(model).transform(planes)(data)
    return data if extend is None else extend(data, planes)


def as_written(data: Any, planes: tuple[str, ...]) -> Any:
    """Run main's own feature extension, which leaves the four features zero."""
    from nugraph.util import FeatureExtension

    return FeatureExtension(planes)(data)


def as_computed(data: Any, planes: tuple[str, ...]) -> Any:
    """Run the first feature extension, on graphs with a store for each plane."""
    first = runpy.run_path(sys.argv[2])["FeatureExtension"]
    extension = type("Extension", (first,), {"forward": first.__call__})
    if "u" in data.node_types:
        stores = data.clone()
        del stores["hit"]
        stores = extension(planes).forward(stores)
        for plane in planes:
            data[plane].x = stores[plane].x
        return data
    split = data.clone()
    split["hit"].x = split["hit"].x[:, :0]
    stores = NuGraph2.transform(planes)(split)
    del stores["hit"]
    stores = extension(planes).forward(stores)
    hits = data["hit"]
    more = torch.zeros(hits.num_nodes, 4)
    for number, plane in enumerate(planes):
        more[hits.plane == number] = stores[plane].x[:, -4:]
    hits.x = torch.cat((hits.x, more), dim=1)
    return data


def make(
    name: str,
    planes: tuple[str, ...] = UVY,
    extend: Callable[..., Any] | None = None,
    kind: Any = NuGraph3,
    first: bool = False,
    gain: float = 2.0,
    **changes: Any,
) -> None:
    """Write a checkpoint, an event and the answer to it."""
    sizes = SMALL | {"planes": list(planes)} | changes
    if kind is NuGraph2:
        sizes = {
            "in_features": 8,
            "planar_features": 6,
            "nexus_features": 4,
            "planes": list(planes),
            "semantic_classes": SMALL["semantic_classes"][:3],
            "num_iters": 3,
        }
    torch.manual_seed(1)
    model = kind(**sizes)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data *= gain
    if sizes.get("instance_head") and sizes.get("filter_head"):
        # Random weights would call no hit signal, and put all of them in one place.
        model.filter_decoder.net.bias.data += 20
        model.semantic_decoder.net.bias.data[6] -= 20
        model.instance_decoder.coord_net[2].weight.data *= 64
    tables = tables_of(simulate_event(8, 1, (200, 300)), len(planes))
    data = graph_of(tables, model, planes, extend, first)
    model.train()
    with torch.no_grad():
        if kind is NuGraph2:
            model.encoder({plane: data[plane].x for plane in planes})
        else:
            model.encoder(data.clone())
    FOLDER.mkdir(exist_ok=True)
    content = {
        "epoch": 1,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": model.state_dict(),
        "hyper_parameters": dict(model.hparams),
    }
    torch.save(content, FOLDER / f"{name}.ckpt")
    model.eval().double()
    for store in data.node_stores:
        for key, value in store.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                store[key] = value.double()
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float64  # what the spacepoint decoder may call the type of its answer
    answer = answered(model, data, planes)
    torch.set_default_dtype(torch.float32)
    torch.float = torch.float32
    found = {
        f"output/{key}": array.astype(np.float32) if array.dtype == np.float64 else array
        for key, array in answer.items()
    }
    for table in ("hit_table", "spacepoint_table"):
        for key, array in tables[table].items():
            found[f"input/{table}_{key}"] = array
    np.savez_compressed(FOLDER / f"{name}.npz", **found)
    clusters = np.concatenate([found.get(f"output/x_i_{p}", np.zeros(0)) for p in planes])
    print(name, *np.unique(clusters, return_counts=True))


def tables_of(event: Any, planes: int) -> dict[str, dict[str, Any]]:
    """Return the columns that a request has, of the first planes only."""
    hits, points = event.tables["hit_table"], event.tables["spacepoint_table"]
    kept = hits["local_plane"][:, 0] < planes
    names = {"hit_id": np.int32, "local_plane": np.int32, "local_wire": np.int32}
    names |= {"local_time": np.float32, "integral": np.float32, "rms": np.float32}
    table = {name: hits[name][kept, 0].astype(kind) for name, kind in names.items()}
    ids = {f"hit_id_{p}": points["hit_id"][:, n] for n, p in enumerate(UVY[:planes])}
    return {"hit_table": table, "spacepoint_table": {k: v.astype(np.int32) for k, v in ids.items()}}


def main() -> None:
    """Make what the checked-out nugraph can."""
    if len(sys.argv) > 2:
        make("extended", extend=as_computed, in_features=11, **heads("semantic", "instance"))
        make("extended_nugraph2", extend=as_computed, kind=NuGraph2, first=True, gain=1.0)
    elif not NARROW:
        make("plain", **heads("semantic", "filter"))
        make("instance", **heads(*HEADS))
        make("two_planes", planes=("u", "v"), hit_features=9, **heads("vertex", "instance"))
        make("zeros", extend=as_written, in_features=11, **heads("semantic", "instance"))
    else:
        make("narrow", **heads(*HEADS))


main()
