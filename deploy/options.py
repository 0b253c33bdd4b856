"""The flags that describe a deployment, for each command that makes or starts one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.arguments import Parser
from deploy.cli import assignments
from deploy.deployment import Ports
from deploy.errors import DeploymentError
from deploy.hardware.plan import device_names


def add_deployment_options(flags: Parser) -> None:
    """Add the deployment file and the flags that are laid over it to a parser with ``--name``."""
    flags.set_defaults(name=None)  # so that the file's name counts where none is given
    flags.add_argument("file", nargs="?", type=Path, help="a deployment file (TOML)")
    flags.add_argument(
        "--engine",
        choices=("auto", "local", "docker", "apptainer"),
        help="what starts it (default: auto)",
    )
    device = flags.add_mutually_exclusive_group()
    device.add_argument("--cpu", action="store_true", help="on CPUs (the default)")
    device.add_argument(
        "--gpu",
        nargs="?",
        const="",
        metavar="0,1",
        help="on GPUs: those named, by number or UUID, or all that can be used",
    )
    flags.add_argument(
        "--models",
        help="models to serve, comma separated (default: the kit's three, and all of --models-dir)",
    )
    flags.add_argument(
        "--models-dir",
        type=Path,
        metavar="DIR",
        help="a model repository of your own, served beside the kit's; nothing in it is changed",
    )
    flags.add_argument(
        "--checkpoint",
        action="append",
        metavar="MODEL=PATH",
        help="own weights: a Lightning checkpoint, or a folder with weights.safetensors",
    )
    flags.add_argument(
        "--norm",
        action="append",
        metavar="MODEL=FILE",
        help="feature normalisation for a checkpoint that carries none (JSON, HDF5 or npz)",
    )
    flags.add_argument("--listen", help="address to listen on (default: 127.0.0.1)")
    flags.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="encrypt gRPC with this certificate (PEM); HTTP and metrics stay on 127.0.0.1",
    )
    flags.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key (PEM)")
    flags.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="let in only clients that this authority has signed (mutual TLS)",
    )
    flags.add_argument(
        "--ports", metavar="HTTP,GRPC,METRICS", help="ports (default: the first free three)"
    )
    flags.add_argument("--image", help="the image, or the .sif (default: what build.py has made)")
    flags.add_argument(
        "--env",
        choices=("unpacked", "packed"),
        help="packed: a stock image of Triton (--image; default: NVIDIA's) with the packed "
        "environment, extracted at every start (default: unpacked, in the kit's image)",
    )
    flags.add_argument(
        "--archive", type=Path, help="the packed environment (default: what build.py has made)"
    )
    flags.add_argument(
        "--instances",
        type=_number,
        help="instances of each model, on each GPU if it runs there (default: cores; 1 on a GPU)",
    )
    flags.add_argument("--cpus", type=_number, help="cores the server may use (default: all)")
    flags.add_argument("--memory", help="memory it may use, as in 4g (default: no limit)")
    flags.add_argument("--shm-size", help="shared memory of a Docker container (default: 1g)")
    flags.add_argument(
        "--threads",
        type=_number,
        help="threads of the numerical libraries that models of your own use, per instance; the "
        "kit's models have one (default: 1)",
    )
    flags.add_argument(
        "--no-heal",
        action="store_const",
        const=False,
        dest="heal",
        help="do not replace what dies",
    )
    flags.add_argument("--timeout", type=_number, help="seconds to become ready (default: 120)")


def _number(text: str) -> int | float | str:
    """Return the number that ``text`` is; else ``text``, which the deployment then refuses."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def deployment_words(words: Sequence[str]) -> list[str]:
    """Return the words of ``up``'s command line that describe a deployment, in their order."""
    others = Parser(add_help=False)
    for flag in ("--dry-run", "--json", "--quiet"):
        others.add_argument(flag, action="store_true")
    return others.parse_known_args(words)[1]


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say, for :func:`deploy.deployment.load_deployment`.

    Raises:
        DeploymentError: If one is not of its form.
    """
    ports = None
    if options.ports is not None:
        numbers = options.ports.split(",")
        if len(numbers) != 3:
            raise DeploymentError(
                f"--ports: {options.ports!r} is not three numbers, HTTP,GRPC,METRICS"
            )
        ports = dict(zip(Ports.model_fields, map(_number, numbers), strict=True))
    named = (
        "name", "engine", "image", "env", "listen", "instances", "threads", "cpus", "memory",
        "shm_size", "heal", "timeout",
    )  # fmt: skip
    return {
        **{field: getattr(options, field) for field in named},
        **_device(options),
        **{
            field: path.absolute()
            for field in ("archive", "models_dir")
            if (path := getattr(options, field)) is not None
        },
        "ports": ports,
        "tls": _tls_files(options),
        "models": tuple(options.models.split(",")) if options.models is not None else None,
        "checkpoints": assignments(options.checkpoint, "--checkpoint"),
        "norms": assignments(options.norm, "--norm"),
    }


def _device(options: argparse.Namespace) -> dict[str, Any]:
    """Return what ``--cpu`` and ``--gpu`` say."""
    if options.cpu:
        return {"flavour": "cpu", "devices": ()}
    if options.gpu is None:
        return {}
    return {"flavour": "gpu", "devices": device_names(options.gpu) if options.gpu else ()}


def _tls_files(options: argparse.Namespace) -> dict[str, Path] | None:
    given = {"cert": options.tls_cert, "key": options.tls_key, "ca": options.tls_ca}
    return {use: path.absolute() for use, path in given.items() if path is not None} or None
