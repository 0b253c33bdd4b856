"""Run events in batches of bounded size; a failure in one event does not affect the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from numl_serving.answer import Outputs
from numl_serving.errors import DeviceLostError, ServingError, attempt
from numl_serving.graph import EventGraph

Answers = Sequence[Outputs | ServingError]


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch; an event that is larger by itself is run alone.

    Attributes:
        hits: Hits, of all planes.
        edges: Edges between hits, and from hits to spacepoints.
    """

    hits: int = 65_536
    edges: int = 524_288


def split(graphs: Mapping[int, EventGraph], limits: Limits) -> Iterator[list[int]]:
    """Yield the indices of each batch's graphs, in order."""
    batch: list[int] = []
    hits = edges = 0
    for number, graph in graphs.items():
        more_hits = len(graph.rows)
        more_edges = len(graph.edge_source) + len(graph.up_hit)
        if batch and (hits + more_hits > limits.hits or edges + more_edges > limits.edges):
            yield batch
            batch, hits, edges = [], 0, 0
        batch.append(number)
        hits, edges = hits + more_hits, edges + more_edges
    if batch:
        yield batch


def run(
    graphs: Mapping[int, EventGraph],
    limits: Limits,
    answer: Callable[[Sequence[EventGraph]], Answers],
    recover: Callable[[], DeviceLostError | None],
) -> tuple[dict[int, Outputs | ServingError], int]:
    """Answer graphs in batches; a batch that fails is run again in halves, down to single events.

    Args:
        graphs: By the number of their event.
        limits: The largest batch.
        answer: Runs one batch; returns outputs, or an error of its own, for each graph of it.
        recover: Called after each failure, when nothing of the failed batch is alive any more.
            Returns an error if no further batch can succeed: all that is left fails with it.

    Returns:
        Outputs or error by number, and how many batches succeeded.
    """
    waiting = deque(split(graphs, limits))
    results: dict[int, Outputs | ServingError] = {}
    succeeded = 0
    while waiting:
        batch = waiting.popleft()
        answers = attempt(answer, [graphs[number] for number in batch])
        if not isinstance(answers, ServingError):
            results.update(zip(batch, answers, strict=True))
            succeeded += 1
        elif (lost := recover()) is not None:
            results.update(dict.fromkeys([*batch, *(n for left in waiting for n in left)], lost))
            break
        elif len(batch) == 1:
            results[batch[0]] = answers
        else:
            half = len(batch) // 2
            waiting.extendleft((batch[half:], batch[:half]))
    return results, succeeded
