"""Run the benchmark of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as Folder

from numl_serving.compile import compile_model
from numl_serving.compiled import CompiledError
from numl_serving.golden import disagreements
from numl_serving.runtime import Runtime

from .events import Tensors, events_of_size
from .measure import Path, measure
from .paths import COMPILED, EAGER, GRADIENTS_OFF, reference_paths, serving_path
from .reference import describe
from .report import Case

_MIN_ROUNDS = 8


def compare(
    name: str,
    directory: Folder,
    *,
    hits: Sequence[int],
    events: int,
    seed: int,
    seconds: float,
    compiled: Folder | None,
    say: Callable[[str], None],
) -> Iterator[Case]:
    """Compare reference and serving path of a model on events of several sizes.

    Args:
        name: What to call the model.
        directory: Folder with its ``model.json`` and weights.
        hits: Sizes of events.
        events: Number of events of each size.
        seed: Seed of the events.
        seconds: How long to measure each size.
        compiled: Folder of compiled networks, to which this model's is added, or None for none.
        say: Is told what happens.

    Yields:
        One case per size.
    """
    paths = [*reference_paths(directory), serving_path(EAGER, Runtime.load(directory))]
    if compiled is not None:
        try:
            say(f"{name}: compiling, unless it is compiled already")
            compile_model(directory, compiled)
            paths.append(serving_path(COMPILED, Runtime.load(directory, compiled=compiled)))
        except CompiledError as error:
            say(f"{name}: only eager: {error}")
    for size in hits:
        say(f"{name}: simulating {events} events of about {size} hits")
        requests = events_of_size(size, events, seed)
        differences = _differences(paths, requests)
        say(f"{name}: measuring for {seconds:.0f} s")
        times = measure(paths, requests, seconds=seconds, min_rounds=_MIN_ROUNDS)
        yield Case(
            model=name,
            network=describe(directory),
            hits=size,
            sizes=[
                (len(r["hit_table_hit_id"]), len(r["spacepoint_table_hit_id_u"])) for r in requests
            ],
            times=times,
            differences=differences,
        )


def _differences(paths: Sequence[Path], requests: Sequence[Tensors]) -> list[str]:
    (reference,) = (path for path in paths if path.name == GRADIENTS_OFF)
    found = []
    for number, tensors in enumerate(requests):
        expected = reference.answer(tensors).outputs
        for path in paths:
            for fault in disagreements(expected, path.answer(tensors).outputs):
                found.append(f"event {number}, {path.name}: {fault}")
    return found
