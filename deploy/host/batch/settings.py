"""What a site or a user asks of a batch system, from a TOML file or by its name alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from deploy.host.batch.htcondor import HTCondor
from deploy.host.batch.jobs import BatchSystem, Resources
from deploy.host.batch.slurm import Slurm
from deploy.host.errors import DeploymentError
from deploy.host.toml import read_toml

SystemName = Literal["slurm", "htcondor"]
SYSTEMS: Mapping[str, type[BatchSystem]] = {"slurm": Slurm, "htcondor": HTCondor}


class BatchSettings(Resources, frozen=True, extra="forbid"):
    """How much is asked of which batch system.

    Attributes:
        jobs: The most that run at once.
        retries: How often what a job did not finish is submitted again.
    """

    engine: SystemName
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 10
    retries: Annotated[int, Field(ge=0, le=100)] = 2


def load_settings(
    engine: str, overrides: Mapping[str, Any], others: Sequence[str] = ()
) -> BatchSettings:
    """Read settings: a batch system's name, or a TOML file whose keys are the fields.

    Args:
        others: Engines that the same flag takes, besides batch systems.

    Raises:
        DeploymentError: Naming the file or the flag, and what is wrong with it.
    """
    names = get_args(SystemName)
    values: dict[str, Any] = {"engine": engine}
    if engine not in names:
        known = ", ".join((*others, *names))
        values = read_toml(Path(engine), "--engine", f"one of {known}, or a TOML file")
    try:
        return BatchSettings.model_validate(
            {**values, **{key: value for key, value in overrides.items() if value is not None}}
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = f"no such key (valid keys: {', '.join(BatchSettings.model_fields)})"
        raise DeploymentError(f"{engine}: {where}: {said}") from None
