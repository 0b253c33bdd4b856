"""Start a server and wait until every model gives its golden answer."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.checks.launch import check_launch
from deploy.cli import Parser, assignments, make_parser, run
from deploy.console import Console
from deploy.deployment import Deployment, Ports, load_deployment
from deploy.engines.base import Engine, describe_instances
from deploy.engines.choose import choose_engine, engine_named
from deploy.engines.ready_times import compared, remember
from deploy.errors import DeploymentError, LaunchError
from deploy.failures.row import PORT_TAKEN
from deploy.files import locked
from deploy.hardware.plan import device_names
from deploy.health import examine
from deploy.plan import LaunchPlan
from deploy.server.golden import golden_of
from deploy.server.start import slowest, starts_since
from deploy.state import DeploymentFolder, DeploymentState
from deploy.tls.files import check_server_files

_PORT_ATTEMPTS = 3
_HEALTH_TIMEOUT_S = 10.0


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("up", "Start a server and wait until every model answers rightly.")
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
        type=int,
        help="instances of each model, on each GPU if it runs there (default: cores; 1 on a GPU)",
    )
    flags.add_argument("--cpus", type=int, help="cores the server may use (default: all)")
    flags.add_argument("--memory", help="memory it may use, as in 4g (default: no limit)")
    flags.add_argument("--shm-size", help="shared memory of a Docker container (default: 1g)")
    flags.add_argument("--threads", type=int, help="torch threads per instance (default: 1)")
    flags.add_argument(
        "--no-heal",
        action="store_const",
        const=False,
        dest="heal",
        help="do not replace what dies",
    )
    flags.add_argument("--timeout", type=float, help="seconds to become ready (default: 120)")
    flags.add_argument("--dry-run", action="store_true", help="show what would be done, do nothing")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(_up, parser(), argv)


def _up(options: argparse.Namespace, console: Console) -> int:
    deployment = load_deployment(options.file, _overrides(options))
    if deployment.tls is not None:
        check_server_files(deployment.tls)
    choice = choose_engine(deployment)
    engine = choice.engine
    if options.dry_run:
        _show_plan(console, engine, engine.plan(deployment=deployment))
        return 0
    folder = DeploymentFolder(deployment.name)
    # Two that start the same deployment take turns; the second finds it running.
    with locked(folder.path / "launch.lock"):
        state = folder.state_here()
        if state is not None and state.supervisor.process() is not None:
            _check_same(deployment, engine_named(state.engine), folder, state)
            console.say(f"deployment {deployment.name} is running already")
        else:
            if choice.reason is not None:
                console.say(f"engine: {engine.name} ({choice.reason})")
            state = _launch(deployment, engine, folder, console)
            plan = folder.plan()
            if plan is not None and state.seconds_to_ready is not None:
                remember(plan, state.seconds_to_ready)
    _show(console, folder, state)
    return 0


def _launch(
    deployment: Deployment, engine: Engine, folder: DeploymentFolder, console: Console
) -> DeploymentState:
    check_launch(deployment, engine.name)
    with console.step("prepare") as say:
        engine.prepare(deployment=deployment, say=say)
    stale = folder.state_here()
    if stale is not None:
        # A supervisor that was killed leaves its server behind, which then serves unwatched.
        engine_named(stale.engine).stop(folder=folder, state=stale)
    with console.step("start") as say:
        for _ in range(_PORT_ATTEMPTS):
            plan = engine.plan(deployment=deployment)
            try:
                return engine.launch(plan=plan, say=say)
            except LaunchError as error:
                # Ports that were found, not asked for, may be lost to another start meanwhile.
                if deployment.ports is not None or PORT_TAKEN not in error.cause:
                    raise
                say("another program has taken a port: trying others")
        return engine.launch(plan=engine.plan(deployment=deployment), say=say)


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    ports = None
    if options.ports is not None:
        numbers = options.ports.split(",")
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            raise DeploymentError(f"--ports {options.ports!r}: expected HTTP,GRPC,METRICS")
        ports = dict(zip(Ports.model_fields, map(int, numbers), strict=True))
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


def _check_same(
    deployment: Deployment, engine: Engine, folder: DeploymentFolder, state: DeploymentState
) -> None:
    problems = examine(folder, state, timeout=_HEALTH_TIMEOUT_S).problems
    if problems:
        raise LaunchError(
            f"deployment {deployment.name} is there, but not healthy: {problems[0]}",
            f"python3 deploy/status.py --name {deployment.name}",
        )
    plan = folder.plan()
    changed = None
    if plan is None or plan.deployment != deployment:
        changed = "other settings"
    elif plan.artefact != engine.artefact(deployment=deployment):
        changed = "an environment, weights or configuration that have changed since"
    if changed is not None:
        raise LaunchError(
            f"deployment {deployment.name} is running with {changed}",
            f"python3 deploy/down.py --name {deployment.name}, or another --name",
        )


def _show_plan(console: Console, engine: Engine, plan: LaunchPlan) -> None:
    console.line(f"# model repository staged in {plan.repository}")
    console.line(f"# {describe_instances(plan)}")
    console.line(" \\\n  ".join(map(shlex.quote, engine.command(plan))))
    console.answer({"ok": True, "plan": plan.model_dump(mode="json")})


def _show(console: Console, folder: DeploymentFolder, state: DeploymentState) -> None:
    rows = [
        [
            model,
            "ready",
            "golden answer given" if golden_of(folder.repository / model) else "no golden.npz",
        ]
        for model in state.models
    ]
    title = f"deployment {state.name} (Triton, {state.engine})"
    console.table(title, ("model", "state", "smoke inference"), rows)
    console.line(f"{state.url('http')}  {state.url('grpc')}")
    if state.tls is not None:
        console.line(
            "gRPC has TLS. Triton has none for HTTP and metrics: they are on 127.0.0.1 only"
        )
    console.line(f"log: {state.log}")
    starts = starts_since(state.log, state.log_start)
    if state.seconds_to_ready is not None and starts:
        console.line(f"ready in {state.seconds_to_ready:.1f} s; {slowest(starts)}")
    plan = folder.plan()
    if plan is not None and state.seconds_to_ready is not None:
        comparison = compared(plan, state.seconds_to_ready)
        if comparison is not None:
            console.line(comparison)
    console.answer({"ok": True, **state.model_dump(mode="json")})


if __name__ == "__main__":
    raise SystemExit(main())
