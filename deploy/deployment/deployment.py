"""A deployment: a frozen, typed description, from a TOML file and flags."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from deploy.deployment.fields import Port, Size, number
from deploy.deployment.limits import Limits
from deploy.host.cores import usable_cores
from deploy.host.errors import DeploymentError, RepositoryError
from deploy.host.paths import DEFAULT_NAME
from deploy.host.toml import read_toml
from numl_formats.repository import CONFIG

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,39}$"
MODEL_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DEVICE_PATTERN = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9a-f-]+", re.IGNORECASE)
RELEASE_PATTERN = re.compile(r"[0-9]{2}\.[0-9]{2}")
DEFAULT_MODELS = ("nugraph2", "nugraph2_cpu", "nugraph3")

EngineName = Literal["local", "docker", "apptainer"]


class Ports(BaseModel, frozen=True, extra="forbid"):
    """The three ports of a Triton server."""

    http: Port = 8000
    grpc: Port = 8001
    metrics: Port = 8002

    @model_validator(mode="after")
    def _different(self) -> "Ports":
        if len({self.http, self.grpc, self.metrics}) != 3:
            raise ValueError("the three ports must differ")
        return self


class Tls(BaseModel, frozen=True, extra="forbid"):
    """The files with which a server encrypts gRPC; only the server reads their content.

    Attributes:
        cert: PEM file of the server's certificate, with the intermediate ones after it.
        key: PEM file of its private key.
        ca: PEM file of the authority that must have signed clients' certificates; None: anyone
            may connect.
    """

    cert: Path
    key: Path
    ca: Path | None = None


class Batch(BaseModel, frozen=True, extra="forbid"):
    """How waiting requests are batched into one run of a network; each gets its own answer.

    Attributes:
        max_events: The most events in one run; 1: no batching.
        wait_ms: The longest that an event waits for others, in milliseconds.
    """

    max_events: Annotated[int, number(1, 1024)] = 16
    wait_ms: Annotated[float, number(0, 1000, float)] = 0.0


class Deployment(BaseModel, frozen=True, extra="forbid"):
    """A server to start. Most fields are flags of ``numlkit up``, whose help explains them.

    Attributes:
        flavour: Where the models run, and which lock the environment is made from.
        devices: GPUs, by number or UUID; none named: all that can be used.
        checkpoints: The user's own weights by model: a Lightning checkpoint, or a folder
            with ``weights.safetensors`` and ``model.json``.
        norms: Feature normalisation by model, for checkpoint files that carry none.
        listen_http: Address for HTTP and metrics; None: that of gRPC, or 127.0.0.1 where opening
            it to others would be a risk.
        tls: How gRPC is encrypted; None: not at all.
        batch: How requests are batched; None: as the model's configuration says, by default on
            GPUs only.
        repository_index: Whether clients may list the models, as CMS's do; none can load any.
        limits: What the kit's models accept; a site's own have the queue that they configure.
        keep_going: Whether models that can be served are, where others cannot.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = DEFAULT_NAME
    engine: Literal["auto", EngineName] = "auto"
    flavour: Literal["cpu", "gpu"] = "cpu"
    devices: tuple[str, ...] = ()
    image: str | None = None
    env: Literal["unpacked", "packed"] = "unpacked"
    archive: Path | None = None
    triton: str = "24.10"
    models_dir: Path | None = None
    models: tuple[str, ...] = DEFAULT_MODELS
    checkpoints: dict[str, Path] = Field(default_factory=dict)
    norms: dict[str, Path] = Field(default_factory=dict)
    listen: str = "127.0.0.1"
    listen_http: str | None = None
    tls: Tls | None = None
    ports: Ports | None = None
    instances: Annotated[int, number(1, 256)] | None = None
    threads: Annotated[int, number(1, 256)] = 1
    batch: Batch | None = None
    limits: Limits = Limits()
    cpus: Annotated[int, number(1, 1024)] | None = None
    memory: Size | None = None
    shm_size: Size | None = None
    shared_memory: bool = False
    repository_index: bool = False
    heal: bool = True
    keep_going: bool = False
    timeout: Annotated[float, number(0.001, 3600, float)] = 120.0

    @field_validator("models")
    @classmethod
    def _model_names(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if not models:
            raise ValueError("name at least one model")
        for model in models:
            if not MODEL_PATTERN.fullmatch(model):
                raise ValueError(f"{model!r} is not a model name")
        if len(set(models)) != len(models):
            raise ValueError("a model is named twice")
        return models

    @field_validator("devices")
    @classmethod
    def _device_names(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for device in devices:
            if not DEVICE_PATTERN.fullmatch(device):
                what = "neither the number nor the UUID of a GPU (nvidia-smi -L lists them)"
                raise ValueError(f"{device!r} is {what}")
        return devices

    @field_validator("triton")
    @classmethod
    def _release(cls, triton: str) -> str:
        return named_triton(triton)

    @field_validator("image")
    @classmethod
    def _no_option(cls, image: str | None) -> str | None:
        # In a pasted command it would be taken for a flag.
        if image is not None and (image.startswith("-") or not image or not image.isprintable()):
            raise ValueError(f"{image!r} is neither an image's name nor a path")
        return image

    @field_validator("listen", "listen_http")
    @classmethod
    def _address(cls, listen: str | None) -> str | None:
        if listen is None:
            return None
        # Triton accepts a name as an address and then listens somewhere else.
        try:
            address = str(ip_address("127.0.0.1" if listen == "localhost" else listen))
        except ValueError:
            address = ""
        # The zone of an IPv6 address (fe80::1%eth0) may be anything to ip_address.
        if not address or not address.isprintable() or " " in address:
            raise ValueError(f"{listen!r} is not an IP address")
        return address

    @model_validator(mode="after")
    def _what_is_given_has_a_use(self) -> "Deployment":
        if self.devices and self.flavour == "cpu":
            raise ValueError("devices name GPUs, but flavour is cpu")
        if self.archive is not None and self.env != "packed":
            raise ValueError("archive given without env packed")
        for option, given in (("checkpoint", self.checkpoints), ("norm", self.norms)):
            for model in given:
                if model not in self.models:
                    raise ValueError(f"{option} given for {model}, which is not among the models")
        for model in self.norms:
            checkpoint = self.checkpoints.get(model)
            if checkpoint is None or checkpoint.is_dir():
                # Weights already imported have their normalisation in model.json.
                raise ValueError(f"norm given for {model}, which has no checkpoint file")
        return self

    @property
    def container_shm_bytes(self) -> int:
        return int(self.shm_size or 10**9)

    def instance_count(self) -> int:
        """Return the instances of each model on CPUs: as asked for, else one per usable core."""
        usable = usable_cores()
        return self.limits.instances(self.instances or min(self.cpus or usable, usable))


# Flags whose name differs from the key they set.
_OPTIONS = {
    "ports": "--ports",
    "devices": "--gpu",
    "checkpoints": "--checkpoint",
    "norms": "--norm",
    "listen_http": "--listen-http",
}
_TABLES: Mapping[str, type[BaseModel]] = {
    table.__name__.lower(): table for table in (Ports, Tls, Batch, Limits)
}
_A_NAME = "at most 40 lower-case letters, digits, '.', '_' and '-', a letter or digit first"
_A_SIZE = "a size like 512m or 4g (1m is the least)"
# What is wanted instead, by pydantic's name for the error.
_WANTED = {
    **dict.fromkeys(("byte_size", "byte_size_unit", "greater_than_equal"), _A_SIZE),
    "string_pattern_mismatch": _A_NAME,
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "path_type": "a path",
}


def load_deployment(file: Path | None, overrides: Mapping[str, Any]) -> Deployment:
    """Read a deployment file and apply flags over it.

    Args:
        file: A TOML file whose keys are :class:`Deployment`'s fields, or None. Paths
            in it are relative to the file.
        overrides: Values from flags; None means "not given".

    Raises:
        DeploymentError: Naming the file or flag and what is wrong with it.
    """
    values: dict[str, Any] = {}
    if file is not None:
        remedy = "a TOML file such as deploy/sites/cpu-node.toml, or none"
        values = read_toml(file, "deployment file", remedy)
        for path in ("archive", "models_dir"):
            if isinstance(values.get(path), str):
                values[path] = (file.parent / values[path]).absolute()
        if str(values.get("image")).endswith(".sif"):  # any other is one of a registry
            values["image"] = str((file.parent / values["image"]).absolute())
        if isinstance(values.get("triton"), str):
            values["triton"] = absolute_if_there(values["triton"], file.parent)
        for table in ("checkpoints", "norms", "tls"):
            # Absolute: a server is started, and started again, from another folder.
            if isinstance(values.get(table), dict):
                paths = ((key, file.parent / str(path)) for key, path in values[table].items())
                values[table] = {key: path.absolute() for key, path in paths}
    given = {key: value for key, value in overrides.items() if value is not None}
    if isinstance(values.get("tls"), dict) and "tls" in given:
        given["tls"] = {**values["tls"], **given["tls"]}
    values.update(given)
    if isinstance(values.get("models_dir"), Path):
        _add_site_models(values)
    try:
        deployment = Deployment.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "deployment"
        key = where.split(".")[0]
        if key in given:
            option = _OPTIONS.get(key, f"--{where.replace('.', '-').replace('_', '-')}")
            raise DeploymentError(f"{option}: {_in_words(first)}") from None
        origin = f" (in {file})" if file is not None else ""
        raise DeploymentError(f"{where}: {_in_words(first)}{origin}") from None
    try:
        deployment.model_dump_json()
    except ValueError:  # before hours of work: the launch's plan is JSON
        cause = "a path of the deployment is not UTF-8, as what a server is told must be"
        raise DeploymentError(cause, "rename it") from None
    return deployment


def named_triton(name: str) -> str:
    """Return what names a Triton; ValueError if nothing can be called so."""
    # An image has a repository, a path a folder: both have a slash.
    is_place = "/" in name and name.isprintable() and not name.startswith("-")
    if not is_place and not RELEASE_PATTERN.fullmatch(name):
        image = "an image like HOST/REPOSITORY:TAG"
        raise ValueError(f"{name!r} is neither a release like 24.10, nor {image}, nor a path")
    return name


def absolute_if_there(name: str, folder: Path) -> str:
    """Return the absolute path of a file or folder of that name; the name if there is none."""
    path = folder / name
    return str(path.absolute()) if name and path.exists() else name


def _in_words(error: ErrorDetails) -> str:
    """Return what is wrong with a value, in the kit's words."""
    kind = error["type"]
    *keys, last = _TABLES.get(str(error["loc"][0]) if error["loc"] else "", Deployment).model_fields
    if kind in _WANTED:
        return f"{error['input']!r} is not {_WANTED[kind]}"
    if kind == "literal_error":
        return f"{error['input']!r} is not {error['ctx']['expected']}"
    if kind == "extra_forbidden":
        return f"no such key (valid keys: {', '.join([*keys, last])})"
    if kind == "missing":
        return "missing: TLS needs a certificate and its private key"
    if kind in ("model_type", "dataclass_type"):
        return f"expected a table with {', '.join(keys)} and {last}"
    return error["msg"].removeprefix("Value error, ")


def _add_site_models(values: dict[str, Any]) -> None:
    """Add a site's models to the kit's, where none are named."""
    try:
        there = find_site_models(values["models_dir"])
    except RepositoryError as error:
        raise DeploymentError(f"models_dir: {error.cause}", error.remedy) from None
    for option in ("checkpoints", "norms"):
        own = values.get(option)
        for model in own if isinstance(own, dict) else ():
            if model in there:
                cause = f"{option} names {model}, which {values['models_dir']} has"
                raise DeploymentError(f"{cause}: own weights are only for the kit's models")
    # All present now: one added later is not served by a running deployment.
    values.setdefault("models", (*DEFAULT_MODELS, *(m for m in there if m not in DEFAULT_MODELS)))


def check_model_name(name: str) -> None:
    if not MODEL_PATTERN.fullmatch(name):
        raise DeploymentError(f"{name!r} is not a model name", "use letters, digits, '_' and '-'")


def find_site_models(repository: Path) -> tuple[str, ...]:
    """Return the names of the models in a site's repository: folders with a ``config.pbtxt``.

    Raises:
        RepositoryError: If it cannot be read, or has none.
    """
    remedy = "name the folder that holds the models' folders"
    try:
        names = tuple(sorted(p.name for p in repository.iterdir() if (p / CONFIG).is_file()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RepositoryError(f"{repository}: {why}", remedy) from None
    if not names:
        cause = f"{repository} is not a model repository: no folder in it has a {CONFIG}"
        raise RepositoryError(cause, remedy)
    return names
