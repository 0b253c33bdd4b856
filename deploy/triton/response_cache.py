"""Triton's response cache: for which models its answers are right, and what memory it takes.

What Triton does was read in core (``cache_manager.cc``, ``dynamic_batch_scheduler.cc``) and seen
with 24.10. Its key is a hash of the model's name and version and of the inputs' names and bytes.
"""

from collections.abc import Iterable
from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import ENSEMBLE, ModelConfig, config_of
from numl_formats.repository import CONFIG, GOLDEN_FILE

CACHE_BYTES = 64 * 2**20
"""What the cache of a server takes at most, for all of its models together."""


def uses_cache(configs: Iterable[ModelConfig]) -> bool:
    return any(config.response_cache.enable for config in configs)


def check_cache(folder: Path, config: ModelConfig) -> None:
    """Refuse a response cache that could give a wrong answer, or hide a dead model.

    Raises:
        RepositoryError: Naming the configuration, and what to do instead.
    """
    if not config.response_cache.enable:
        return
    where = f"{folder / CONFIG}: response_cache"
    # A model's refusals are kept as well, and the next time have neither error nor outputs.
    if config.platform != ENSEMBLE:
        raise RepositoryError(
            f"{where} is of a model: once it refuses a request, Triton answers that with nothing",
            "give the cache to an ensemble whose only step is the model, as in "
            "gallery/sentence_cache",
        )
    # What is kept has the outputs that the first client asked for.
    if len(config.output) > 1:
        raise RepositoryError(
            f"{where}: {len(config.output)} outputs, of which a client gets those that another "
            "one asked for",
            "leave one output",
        )
    # The key has no shapes: [2, 3] and [3, 2] of the same values are the same to it.
    for tensor in config.input:
        if sum([config.max_batch_size > 0, *(dim < 0 for dim in tensor.dims)]) > 1:
            raise RepositoryError(
                f"{where}: inputs {tensor.name} of the same values are the same to Triton, "
                "whatever their shapes",
                "give it one dimension of any size at most, the batch included",
            )
    for step in config.ensemble_scheduling.step:
        places = (repository / step.model_name for repository in (folder.parent, MODEL_REPOSITORY))
        place = next((place for place in places if (place / CONFIG).is_file()), None)
        if place is None:
            continue  # refused as a model that is needed and not there
        # Nor has the key the number of a sequence.
        if config_of(place).HasField("sequence_batching"):
            cause = f"{where}: its step {step.model_name} answers by what came before"
            raise RepositoryError(cause, "leave the cache out")
        # An ensemble that answers from the cache says nothing of its steps.
        if not any(place.glob(f"*/{GOLDEN_FILE}")):
            raise RepositoryError(
                f"{where}: nothing would tell that its step {step.model_name} has died",
                f"a reference output for that: numlkit golden {step.model_name}",
            )
