"""Train and evaluate the demo models: a few CPU minutes of pytorch_lightning each."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytorch_lightning as lightning
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.loggers.logger import DummyLogger
from torch.utils.data import DataLoader
from torch_geometric.data import HeteroData

from . import networks, oracle
from .geometry import PLANES
from .graphs import make_graphs
from .simulate import SimulatedEvent

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how a model is trained."""

    epochs: int
    learning_rate: float
    batch_size: int = 2
    seed: int = 1


SETTINGS: Final = {
    "nugraph2": Settings(epochs=6, learning_rate=1.5e-3),
    "nugraph3": Settings(epochs=12, learning_rate=2e-3),
}


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A trained model, and the CPU time it took (s)."""

    name: str
    model: Any
    seconds: float


class _Epochs(lightning.Callback):
    """Reports each finished epoch."""

    def __init__(self, name: str, report: Report) -> None:
        super().__init__()
        self.name, self.report = name, report

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Report the loss of the last batch."""
        loss = float(trainer.callback_metrics["loss/train"])
        done = trainer.current_epoch + 1
        self.report(f"{self.name}: epoch {done} of {trainer.max_epochs}, loss {loss:.3f}")


def train(
    name: str,
    events: Sequence[SimulatedEvent],
    checkpoint: Path,
    settings: Settings,
    report: Report = lambda _: None,
) -> Trained:
    """Train a model with nugraph's own training step and schedule and write its checkpoint.

    Args:
        name: "nugraph2" or "nugraph3".
        events: training events.
        checkpoint: the Lightning checkpoint to write.
        settings: length and pace.
        report: called with one line per epoch.
    """
    started = time.process_time()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    lightning.seed_everything(settings.seed, verbose=False)
    graphs = networks.prepare(name, make_graphs(events, networks.MODELS[name]))
    report(f"{name}: {len(graphs)} training graphs made in {time.process_time() - started:.0f} s")
    model = networks.build(name, settings.learning_rate)
    networks.learn_quickly(model, graphs)
    networks.normalise_by_events(model, graphs)
    loader: DataLoader[HeteroData] = DataLoader(
        graphs,  # type: ignore[arg-type]  # a list is a dataset to torch
        batch_size=settings.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=networks.collate,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        # Else Lightning asks MPI, which nobody may have initialised.
        plugins=[LightningEnvironment()],
        max_epochs=settings.epochs,
        # nugraph's modules write to TensorBoard without asking; nobody reads it here
        logger=DummyLogger(),
        callbacks=[_Epochs(name, report)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=2.0,
    )
    trainer.fit(model, loader)
    networks.finish(model)
    trainer.save_checkpoint(checkpoint, weights_only=True)
    return Trained(name, model.eval(), time.process_time() - started)


def evaluate(trained: Trained, events: Sequence[SimulatedEvent]) -> dict[str, Any]:
    """Return how well a model does on events it has not seen.

    Returns:
        Fractions of hits (of events, for `event_*`), the shares of the largest true classes to
        compare them with, recall per class, and for nugraph3 the median vertex error in cm.
    """
    labels = networks.MODELS[trained.name]
    graphs = networks.prepare(trained.name, make_graphs(events, labels))
    answers = [oracle.answer(trained.model, graph.clone(), PLANES) for graph in graphs]
    pairs = [(networks.truth(graph), out, plane)
             for graph, out in zip(graphs, answers, strict=True) for plane in PLANES]  # fmt: skip
    truth = np.concatenate([true[p] for true, _, p in pairs])
    guess = np.concatenate([out[f"x_semantic_{p}"].argmax(axis=1) for _, out, p in pairs])
    kept = np.concatenate([out[f"x_filter_{p}"] > 0.5 for _, out, p in pairs])
    signal = truth >= 0
    classes = labels.semantic_classes
    count = np.bincount(truth[signal], minlength=len(classes))
    right = np.bincount(truth[signal & (truth == guess)], minlength=len(classes))
    result: dict[str, Any] = {
        "events": len(graphs),
        "hits": len(truth),
        "semantic": _share(right.sum(), count.sum()),
        "semantic_largest_class": _share(count.max(), count.sum()),
        "semantic_recall": {c: _share(r, n) for c, r, n in zip(classes, right, count, strict=True)},
        "semantic_share": {c: _share(n, count.sum()) for c, n in zip(classes, count, strict=True)},
        "filter": _share((kept == signal).sum(), len(signal)),
        "filter_largest_class": _share(max(signal.sum(), (~signal).sum()), len(signal)),
    }
    if labels.event:
        result |= _event_accuracy(graphs, answers, labels.event_classes)
    return result


def _event_accuracy(
    graphs: Sequence[HeteroData], answers: Sequence[oracle.Arrays], classes: Sequence[str]
) -> dict[str, Any]:
    truth = np.array([int(graph["evt"].y) for graph in graphs])
    guess = np.array([int(out["e_evt"].argmax()) for out in answers])
    count = np.bincount(truth, minlength=len(classes))
    right = np.bincount(truth[truth == guess], minlength=len(classes))
    vertex = np.concatenate([graph["evt"].y_vtx.numpy() for graph in graphs])
    found = np.concatenate([out["v_evt"] for out in answers])
    error = np.linalg.norm(found - vertex, axis=1)
    guessed = np.linalg.norm(vertex.mean(axis=0) - vertex, axis=1)
    return {
        "event": _share(right.sum(), count.sum()),
        "event_largest_class": _share(count.max(), count.sum()),
        "event_recall": {c: _share(r, n) for c, r, n in zip(classes, right, count, strict=True)},
        "vertex_median_cm": round(float(np.median(error)), 1),
        "vertex_median_cm_of_the_mean": round(float(np.median(guessed)), 1),
    }


def _share(part: int, whole: int) -> float:
    return round(float(part) / whole, 4) if whole else 0.0
