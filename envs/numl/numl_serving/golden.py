"""The event of a golden file, as a model's runtime takes it."""

from __future__ import annotations

from pathlib import Path

from numl_formats.cardfile import read_card
from numl_formats.golden import read_inputs
from numl_formats.repository import CARD_FILE
from numl_serving.errors import EventError, ModelFilesError, of_model_files
from numl_serving.event import Event


def read_event(path: Path) -> Event:
    """Read the event of a golden file.

    Raises:
        ModelFilesError: The file is missing, damaged or has no event of the model whose card
            lies beside it.
    """
    with of_model_files():
        schema, inputs = read_card(path.with_name(CARD_FILE)).schema, read_inputs(path)
    try:
        return Event.from_tensors(inputs, schema)
    except EventError as error:
        raise ModelFilesError(f"{path} has no event of this model: {error}") from None
