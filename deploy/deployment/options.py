"""The flags that describe a deployment, for each command that makes or starts one."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

from deploy.deployment.deployment import EngineName, Ports, absolute_if_there
from deploy.host.cli import assignments
from deploy.host.command_line import Parser
from deploy.host.errors import DeploymentError

TRITON_HELP = (
    "the server: a release (24.10: from a wheel, others: NVIDIA's image), an image, an OCI folder, "
    "a file of docker save, or a folder like /opt/tritonserver (default: 24.10)"
)


def add_model_options(flags: Parser) -> None:
    add = flags.add_argument
    add("file", nargs="?", type=Path, help="a deployment file (TOML)")
    device = flags.add_mutually_exclusive_group()
    device.add_argument("--cpu", action="store_true", help="run on CPUs (the default)")
    gpus = "run on GPUs: those named, by number or UUID, or all that are usable"
    device.add_argument("--gpu", nargs="?", const="", metavar="0,1", help=gpus)
    models = "models to serve, comma separated (default: the kit's three, and all of --models-dir)"
    add("--models", help=models)
    own = "your own weights: a Lightning checkpoint, or a folder with weights.safetensors"
    add("--checkpoint", action="append", metavar="MODEL=PATH", help=own)
    norm = "feature normalisation, for a checkpoint without its own (JSON, HDF5 or npz)"
    add("--norm", action="append", metavar="MODEL=FILE", help=norm)


def add_deployment_options(flags: Parser, *, batch: bool = False) -> None:
    """Add the deployment file and the flags that override it to a parser with ``--name``.

    Args:
        batch: Whether ``--engine`` may also name a batch system.
    """
    flags.set_defaults(name=None)  # so that the file's name counts where none is given
    add_model_options(flags)
    add = flags.add_argument
    engines = ("auto", *get_args(EngineName))
    runs = "what runs the server (default: auto)"
    if batch:
        runs = f"{', '.join(engines)}; slurm, htcondor, or a TOML file such as "
        runs += "deploy/sites/batch/slurm.toml"
        engine = add("--engine", metavar="NAME|FILE", help=runs)
        # What a shell completes: choices would refuse a file.
        engine.completer = lambda **_: [*engines, "slurm", "htcondor"]  # type: ignore[attr-defined]
    else:
        add("--engine", choices=engines, help=runs)
    own = "your own model repository, served beside the kit's; nothing in it is changed"
    add("--models-dir", type=Path, metavar="DIR", help=own)
    add("--listen", help="address to listen on (default: 127.0.0.1)")
    http = (
        "address for HTTP and metrics, for clients that you trust (default: that of --listen if "
        "only this host reaches it, else 127.0.0.1)"
    )
    add("--listen-http", metavar="ADDRESS", help=http)
    add("--ports", metavar="HTTP,GRPC,METRICS", help="default: 8000,8001,8002, or any three free")
    for flag, what in (
        ("--tls-cert", "encrypt gRPC with this certificate (PEM); HTTP stays on 127.0.0.1"),
        ("--tls-key", "its private key (PEM)"),
        ("--tls-ca", "accept only clients with a certificate of this authority (mutual TLS)"),
    ):
        add(flag, type=Path, metavar="FILE", help=what)
    add("--image", help="the image, or the .sif (default: the one numlkit build made)")
    add(
        "--env",
        choices=("unpacked", "packed"),
        help="packed: a stock Triton image (--image; default: NVIDIA's) with the packed "
        "environment, extracted at every start (default: unpacked, in the kit's image)",
    )
    add("--triton", metavar="RELEASE|IMAGE|PATH", help=TRITON_HELP)
    add("--archive", type=Path, help="the packed environment (default: the newest one built)")
    for flag, what in (
        (
            "--instances",
            "instances of each model (default: one per core, or one on each GPU); on CPUs at least "
            "3, unless [limits] leaves the queue unbounded",
        ),
        ("--threads", "threads per instance of your own models; the kit's use one (1)"),
        ("--cpus", "cores the server may use (default: all)"),
        ("--timeout", "seconds the server may take to become ready (default: 120)"),
    ):
        add(flag, type=as_number, help=what)
    add("--memory", help="memory the server may use, such as 4g (default: no limit)")
    add("--shm-size", help="shared memory of a Docker container (default: 1g)")
    add(
        "--shared-memory",
        action="store_const",
        const=True,
        help="let clients pass tensors in shared memory: of this host (engine local), or of the "
        "server's container (docker). Any process that can reach the port may then have the server "
        "read and write POSIX shared memory there",
    )
    going = "serve the models that can be served, and report the others; without it, none is served"
    add("--keep-going", action="store_const", const=True, help=going)
    no_heal = "do not restart crashed processes"
    add("--no-heal", action="store_const", const=False, dest="heal", help=no_heal)


def add_tls_options(flags: Parser) -> None:
    """Add the files of a client that encrypts its connection."""
    add = partial(flags.add_argument, type=Path, metavar="FILE")
    add("--ca", help="PEM file of the authority to trust")
    add("--cert", help="PEM file of your certificate, for mutual TLS")
    add("--key", help="PEM file of its private key")


def tls_files(options: argparse.Namespace) -> dict[str, Any]:
    return {"ca": options.ca, "cert": options.cert, "key": options.key}


def as_number(text: str) -> int | float | str:
    """Return ``text`` as a number if it is one; else unchanged, for the deployment to refuse."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def deployment_words(words: Sequence[str], *without: str) -> list[str]:
    """Return the words of ``up``'s command line that describe a deployment, in their order.

    Args:
        without: Flags with a value to leave out, too.
    """
    others = Parser(add_help=False)
    for flag in ("--dry-run", "--json", "--quiet"):
        others.add_argument(flag, action="store_true")
    for flag in without:
        others.add_argument(flag)
    return others.parse_known_args(words)[1]


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    ports = None
    if options.ports is not None:
        numbers = options.ports.split(",")
        if len(numbers) != 3:
            cause = f"--ports: {options.ports!r} is not three numbers"
            raise DeploymentError(cause, "--ports HTTP,GRPC,METRICS, as in 8000,8001,8002")
        ports = dict(zip(Ports.model_fields, map(as_number, numbers), strict=True))
    tls = {"cert": options.tls_cert, "key": options.tls_key, "ca": options.tls_ca}
    tls = {use: path.absolute() for use, path in tls.items() if path is not None}
    named = (
        "name", "engine", "image", "env", "listen", "listen_http", "instances", "threads", "cpus",
        "memory",
        "shm_size", "shared_memory", "heal", "keep_going", "timeout",
    )  # fmt: skip
    return {
        **model_overrides(options),
        **{field: getattr(options, field) for field in named},
        **{
            field: path.absolute()
            for field in ("archive", "models_dir")
            if (path := getattr(options, field)) is not None
        },
        "triton": absolute_if_there(options.triton, Path()) if options.triton else None,
        "ports": ports,
        "tls": tls or None,
    }


def model_overrides(options: argparse.Namespace) -> dict[str, Any]:
    return {
        **_device(options),
        "models": tuple(options.models.split(",")) if options.models is not None else None,
        "checkpoints": assignments(options.checkpoint, "--checkpoint"),
        "norms": assignments(options.norm, "--norm"),
    }


def _device(options: argparse.Namespace) -> dict[str, Any]:
    if options.cpu:
        return {"flavour": "cpu", "devices": ()}
    if options.gpu is None:
        return {}
    names = options.gpu.split(",") if options.gpu else ()
    return {"flavour": "gpu", "devices": tuple(name.strip() for name in names)}
