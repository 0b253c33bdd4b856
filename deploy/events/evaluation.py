"""One evaluation: the events of a split through a server, compared with the truth."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.client.pool import Transport
from deploy.client.transport import ServedModel
from deploy.events.files import EventFile, EventTensors
from deploy.events.graphs import GraphFile, is_graph_file
from deploy.events.inference import Failure, infer
from deploy.events.scores import Scores
from deploy.events.tables import EventFileError
from deploy.events.training import check_training
from deploy.events.truth import FLAVOURS, TRUE_COLUMNS, Truth, truth_of
from deploy.host.errors import ClientError
from numl_formats.contract import EVENT_CLASS, SEMANTIC

FORMAT = 1
EVERY, TEST = "all", "test"


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What came of it; a failure for each event that was not answered."""

    scores: Scores
    failures: Sequence[Failure]
    split: str


def evaluate(
    path: Path,
    split: str | None,
    model: ServedModel,
    connect: Callable[[], Transport],
    *,
    training: Mapping[str, Any] | None = None,
    concurrency: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Evaluation:
    """Send the events of a file and compare the answers with the truth.

    Args:
        path: A graph file, or one of pynuml's tables.
        split: Of a graph file; None: the test split, or all events of a file without splits.
        training: Figures that are to stand beside these, from `read_training`.
        progress: Called with the numbers of events that are done, and of all.

    Raises:
        KitError: The file cannot be read, its planes or classes are not those of the model or of
            the training, it has no truth of anything that the model answers, or the server is
            lost.
    """
    with closing(_open(path, split, model)) as file:
        if not file.event_ids:
            raise ClientError(f"{path} has no events")
        scores = Scores(_classes(file, model))
        if training is not None:
            check_training(training, model.planes, scores.classes)
        # The flavours are the kit's reading of a table: a model may well tell other classes.
        comparable = isinstance(file, GraphFile) or scores.classes["event"] == FLAVOURS
        truths: deque[Truth] = deque()

        def events() -> Iterator[EventTensors | Failure]:
            for index, event_id in enumerate(file.event_ids):
                try:
                    event = file.read(index)
                    truth = truth_of(event) if isinstance(file, EventFile) else file.truth(index)
                    if not comparable:
                        truth = replace(truth, event=None)
                except EventFileError as error:
                    truths.append(Truth())
                    yield Failure(event_id, str(path), error.cause)
                else:
                    truths.append(truth)
                    yield event

        failures: list[Failure] = []
        for outcome in infer(events(), model, connect, concurrency=concurrency):
            truth = truths.popleft()
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                try:
                    scores.add(outcome.labels, truth)
                except EventFileError as error:
                    event_id = outcome.labels.event.event_id
                    failures.append(Failure(event_id, str(path), error.cause))
            progress(scores.events + len(failures), len(file.event_ids))
    if scores.events and not scores.metrics():
        raise ClientError(
            f"{path} has no truth of what {model.name} answers",
            "a graph file that pynuml made with labellers (its classes and y_semantic) has it",
        )
    named = (split or TEST) if isinstance(file, GraphFile) else EVERY
    return Evaluation(scores, failures, named)


def _open(path: Path, split: str | None, model: ServedModel) -> EventFile | GraphFile:
    if is_graph_file(path):
        only = None if split == EVERY else split or TEST
        return GraphFile(path, model.inputs, model.optional, only)
    if split not in (None, EVERY):
        raise ClientError(f"{path} is no graph file, and has no splits", "leave --split out")
    return EventFile(path, model.inputs, model.optional, TRUE_COLUMNS)


def _classes(file: EventFile | GraphFile, model: ServedModel) -> dict[str, tuple[str, ...]]:
    """Return the classes of the heads; ClientError if a graph file's and the model's differ."""
    in_file: dict[str, tuple[str, ...]] = {"semantic": (), "event": ()}
    if isinstance(file, GraphFile):
        in_file = {"semantic": file.semantic_classes, "event": file.event_classes}
    found: dict[str, tuple[str, ...]] = {}
    for kind, output in (("semantic", SEMANTIC), ("event", EVENT_CLASS)):
        said = model.parameters.get(f"{kind}_classes", "")
        served = tuple(name.strip() for name in said.split(",")) if said else ()
        answers = any(name == output or name.startswith(f"{output}_") for name in model.outputs)
        if answers and served and in_file[kind] and served != in_file[kind]:
            raise ClientError(
                f"{file.path} has the {kind} classes {', '.join(in_file[kind])}, "
                f"{model.name} {', '.join(served)}: they cannot be compared"
            )
        found[kind] = served or in_file[kind]
    if isinstance(file, EventFile) and file.has("event_table", "is_cc", "nu_pdg"):
        found["event"] = found["event"] or FLAVOURS
    return found


def document(
    found: Evaluation, path: Path, model: ServedModel, url: str, training: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the answer in JSON's types."""
    return {
        "ok": not found.failures,
        "format": FORMAT,
        "model": model.name,
        "weights": model.parameters.get("weights") or None,
        "endpoint": url,
        "file": str(path),
        "split": found.split,
        "planes": list(model.planes),
        **found.scores.document(),
        "training": None if training is None else dict(training["metrics"]),
        "failed": [failure.document() for failure in found.failures],
    }
