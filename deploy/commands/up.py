"""Start a server and wait until every model gives its reference output."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

from deploy.artefacts.keys import UNVERIFIED, read_signer
from deploy.checks.launch import check_given, check_launch
from deploy.deployment.deployment import Deployment, EngineName, Ports, load_deployment
from deploy.deployment.options import add_deployment_options, deployment_words, overrides
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import DeploymentFolder, DeploymentState, is_loopback
from deploy.engines.base import Engine, describe_instances
from deploy.engines.choose import choose_engine, engine_named
from deploy.engines.farm import Farm, await_servers, read_farm, start_farm
from deploy.engines.health import examine
from deploy.engines.resolved import Resolved
from deploy.host.batch.settings import load_settings
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import count_to, for_this_user, quote
from deploy.host.console import Console, Say, counted
from deploy.host.errors import DeploymentError, LaunchError, ModelError
from deploy.host.failures import PORT_TAKEN
from deploy.host.finding import Finding
from deploy.triton.golden import golden_of
from deploy.triton.release import RELEASES
from deploy.triton.start import read_starts, slowest

_HEALTH_TIMEOUT_S = 10.0
# Of any release, seen on 2.51 and 2.73 (docs/operating.md).
_HTTP_RISK = "crafted requests can crash or block any Triton"


def parser() -> Parser:
    flags = make_parser("up", __doc__)
    add_deployment_options(flags, batch=True)
    add_verify_option(flags)
    servers = "with a batch system: how many servers, each a job that is renewed (1)"
    flags.add_argument("--servers", type=count_to(10_000), metavar="N", help=servers)
    dry = "show what would be done, and do nothing"
    flags.add_argument("--dry-run", action="store_true", help=dry)
    return flags


def add_verify_option(flags: Parser) -> None:
    signed = "start only an image or a .sif signed with this public key (docs/supply-chain.md)"
    flags.add_argument("--verify", type=Path, metavar="KEY", help=signed)


def _up(options: argparse.Namespace, console: Console) -> int:
    if options.engine not in (None, "auto", *get_args(EngineName)):
        return _up_farm(options, console)
    if options.servers is not None:
        raise DeploymentError("--servers needs --engine with a batch system")
    resolved = Resolved.of(load_deployment(options.file, overrides(options)))
    deployment = resolved.deployment
    fetch_triton(deployment, console)
    warnings = check_given(resolved)
    if options.dry_run:
        engine, _ = chosen(options, resolved, console)
        _show_plan(console, engine, options.words)
        return 0
    folder = DeploymentFolder(deployment.name)
    # Two commands that start the same deployment take turns; the second finds it running. From here
    # on down ends this one, too.
    with folder.starting():
        if read_farm(deployment.name) is not None:
            # What it keeps in this folder goes with the farm.
            remedy = f"another --name, or numlkit down --name {deployment.name} first"
            raise DeploymentError(f"{deployment.name} is a farm of batch jobs", remedy)
        engine, reason = chosen(options, resolved, console)
        state = folder.state_here()
        if state is not None and state.supervisor.process() is not None:
            if engine.name != state.engine:
                engine = engine_named(state.engine)(engine.resolved)
            _check_same(engine, folder, state)
            console.say(f"deployment {deployment.name} is already running")
        else:
            if reason is not None:
                console.say(f"engine: {engine.name} ({reason})")
            state = launch(engine, folder, console, warnings)
    _show(console, folder, state)
    return 0


def _up_farm(options: argparse.Namespace, console: Console) -> int:
    """Start servers as batch jobs, and wait until they are there."""
    settings = load_settings(options.engine, {}, get_args(EngineName))
    given = load_deployment(options.file, {**overrides(options), "engine": None})
    if is_loopback(given.listen):
        cause = f"servers on nodes would listen on {given.listen} only, where no other host is"
        raise DeploymentError(cause, "--listen 0.0.0.0, on a network that you trust, or with TLS")
    words = deployment_words(options.words, "--engine", "--servers", "--name")
    if given.engine == "auto" and given.image is not None:
        words += ["--engine", "apptainer"]
    farm = Farm(
        name=given.name,
        job=f"numl-{given.name}-{secrets.token_hex(3)}",
        settings=settings,
        servers=options.servers or 1,
        words=tuple(words),
        place=Path.cwd(),
        models=given.models,
    )
    if options.dry_run:
        keeper = farm.keeper()
        rendered = farm.system.render(farm.to_submit(farm.servers, "0"))
        if keeper is not None:
            beside = farm.system.render(keeper)
            rendered |= {f"keeper/{name}": text for name, text in beside.items()}
        for name, text in rendered.items():
            console.text(f"# {name}\n{text}\n")
        console.answer({"ok": True, "files": rendered})
        return 0
    with console.step(f"start {counted(farm.servers, 'server')}") as say:
        farm = start_farm(farm)
        there = await_servers(farm, seconds=given.timeout, say=say)
    urls = [entry.url for entry in farm.registry.entries()]
    for url in urls:
        console.line(url)
    console.line(f"clients find them by --servers {quote(str(farm.registry.folder))}")
    if there < farm.servers:
        console.say(f"{there} of {farm.servers} are there; the others wait (numlkit status)")
    console.answer({"ok": there > 0, "servers": urls, "registry": str(farm.registry.folder)})
    return 0 if there else 1


def fetch_triton(deployment: Deployment, console: Console) -> None:
    """Fetch a Triton that comes from an image, and say so: everything else depends on it."""
    if deployment.triton not in RELEASES:
        from deploy.artefacts.triton import find_triton  # takes long, and few need it

        with console.step("Triton") as say:
            find_triton(deployment.triton, say)


def chosen(
    options: argparse.Namespace, resolved: Resolved, console: Console
) -> tuple[Engine, str | None]:
    """Return the engine, for an image that is verified if that is asked for; why it was chosen."""
    engine, reason = choose_engine(resolved)
    if options.verify is not None:
        signer = read_signer(options.verify)
        engine, image = engine.verified(signer)
        console.say(f"signed by {signer}: {image}")
    elif engine.contained and engine.deployment.image is not None:
        console.say(f"{UNVERIFIED} of {engine.deployment.image}: no key is given (--verify)")
    return with_own_models(engine), reason


def with_own_models(engine: Engine) -> Engine:
    """Return the engine that also serves what its image has of a site's models."""
    if engine.contained and engine.deployment.image is not None:
        from deploy.engines.baked import with_models_of_image  # imports the docker SDK

        return with_models_of_image(engine)
    return engine


def launch(
    engine: Engine,
    folder: DeploymentFolder,
    console: Console,
    warnings: list[Finding],
    *,
    parent: int | None = None,
) -> DeploymentState:
    """Prepare and start a server, which ends with the process ``parent`` if one is given."""
    for finding in [*warnings, *check_launch(engine)]:
        remedy = for_this_user(finding.remedy)
        remedy = f" ({remedy})" if remedy is not None else ""
        console.say(f"warning: {finding.detail}{remedy}")
    with console.step("prepare") as say:
        engine = prepared(engine, say)
    stale = folder.state_here()
    if stale is not None:
        # A killed supervisor leaves its server behind, serving unwatched.
        engine_named(stale.engine).stop(folder, stale)
    with console.step("start") as say:
        state = start(engine, say, parent=parent)
    if parent is None and engine.deployment.ports is None and state.ports != Ports():
        usual, ports = (
            ", ".join(map(str, p.model_dump().values())) for p in (Ports(), state.ports)
        )
        console.say(f"ports {usual} are not all free: using {ports}")
    return state


def prepared(engine: Engine, say: Say) -> Engine:
    """Prepare a launch; return the engine for the models that can be served."""
    while True:
        try:
            engine.prepare(say)
            return engine
        except ModelError as error:
            if not engine.deployment.keep_going:
                raise
            engine = engine.without(error)


def start(engine: Engine, say: Say, *, parent: int | None = None) -> DeploymentState:
    """Start a server; again where ports that were found are lost to another start meanwhile."""
    left = 3 if engine.deployment.ports is None else 0
    while True:
        try:
            return engine.launch(plan=engine.plan(parent=parent), say=say)
        except LaunchError as error:
            if not left or PORT_TAKEN not in error.cause:
                raise
            left -= 1
            say(f"{error.cause}; starting again")


def _check_same(engine: Engine, folder: DeploymentFolder, state: DeploymentState) -> None:
    deployment = engine.deployment
    problems = examine(folder, state, timeout=_HEALTH_TIMEOUT_S).problems
    if problems:
        cause = f"deployment {deployment.name} is running but not healthy: {problems[0]}"
        raise LaunchError(cause, f"numlkit status --name {deployment.name}")
    plan = folder.plan()
    left_out = plan.broken if plan is not None else {}
    for model in left_out.keys() - engine.resolved.broken.keys():
        engine = engine.without(ModelError(model, left_out[model].cause))
    if plan is None or plan.deployment != deployment:
        changed = "different settings"
    elif plan.artefact != engine.artefact():
        changed = "an environment, weights or configuration that have changed since"
    else:
        return
    cause = f"deployment {deployment.name} is running with {changed}"
    raise LaunchError(cause, f"numlkit down --name {deployment.name}, or another --name")


def _show_plan(console: Console, engine: Engine, words: Sequence[str]) -> None:
    plan = engine.plan()
    prepare = ["numlkit", "prepare", *deployment_words(words, "--verify")]
    if plan.deployment.engine == "auto":
        # By then auto may choose another engine.
        prepare += ["--engine", engine.name]
    console.line(f"# first: {' '.join(map(quote, prepare))}")
    console.line(f"# which stages the model repository in {quote(str(plan.repository))}")
    console.line(f"# {describe_instances(plan)}")
    *command, last = map(quote, engine.command(plan))
    for number, word in enumerate(command):
        console.line(f"{'  ' if number else ''}{word} \\")
    console.line(f"  {last}")
    console.answer({"ok": True, "plan": plan.model_dump(mode="json")})


def _about_http(plan: LaunchPlan) -> Iterator[str]:
    """Yield who can reach HTTP and metrics, where others than this host's may expect to."""
    deployment = plan.deployment
    if is_loopback(plan.http_listen):
        if deployment.listen == plan.http_listen:
            return
        also = " and on the container's own address" if engine_named(plan.engine).isolated else ""
        why = "Triton cannot encrypt them" if deployment.tls is not None else _HTTP_RISK
        yield f"HTTP and metrics listen on 127.0.0.1{also} only: {why} (--listen-http opens them)"
        return
    clear = ", and they are not encrypted" if deployment.tls is not None else ""
    yield (
        f"warning: HTTP and metrics listen on {plan.http_listen}{clear}: {_HTTP_RISK}; "
        "open them to clients that you trust only"
    )


def _show(console: Console, folder: DeploymentFolder, state: DeploymentState) -> None:
    rows = []
    for model in state.models:
        golden = golden_of(folder.repository / model)
        rows.append([model, "ready", "matches the reference" if golden else "no golden.npz"])
    rows += [[model, "left out", why.cause] for model, why in state.broken.items()]
    title = f"deployment {state.name} (Triton, {state.engine})"
    console.table(title, ("model", "state", "smoke inference"), rows)
    console.line(f"{state.url('http')}  {state.url('grpc')}")
    plan = folder.plan()
    if plan is not None:
        for line in _about_http(plan):
            console.line(line)
    if state.runs is not None:
        console.line(f"runs {state.runs}")
    console.line(f"log: {state.log}")
    said = b""
    with suppress(FileNotFoundError):  # of one that runs already, someone may have removed it
        said = state.log.read_bytes()[state.log_start :]
    starts = read_starts(said.decode(errors="replace"))
    if state.seconds_to_ready is not None:
        phases = f"; {slowest(starts)}" if starts else ""
        console.line(f"ready in {state.seconds_to_ready:.1f} s{phases}")
    if plan is not None and plan.container is not None and plan.container.extracted_bytes:
        extracted = f"{plan.container.extracted_bytes / 1e6:.0f} MB is extracted at every start"
        console.line(f"{extracted}; the kit's image (no --env packed) has it unpacked")
    console.answer({"ok": True, **state.model_dump(mode="json")})


main = partial(run, _up, parser)
