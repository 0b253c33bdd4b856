"""Start a server and wait until every model gives its golden answer."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import sys
from collections.abc import Sequence

from deploy.checks.launch import check_given, check_launch, check_shown_folders
from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.deployment import Deployment, load_deployment
from deploy.engines.base import Engine, describe_instances
from deploy.engines.choose import choose_engine, engine_named
from deploy.engines.ready_times import compared, remember
from deploy.errors import LaunchError
from deploy.failures.row import PORT_TAKEN
from deploy.health import examine
from deploy.options import add_deployment_options, deployment_words, overrides
from deploy.plan import LaunchPlan
from deploy.server.golden import golden_of
from deploy.server.start import slowest, starts_since
from deploy.shell import quote
from deploy.state import DeploymentFolder, DeploymentState
from deploy.tls.files import check_server_files

_PORT_ATTEMPTS = 3
_HEALTH_TIMEOUT_S = 10.0


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("up", "Start a server and wait until every model answers rightly.")
    add_deployment_options(flags)
    flags.add_argument("--dry-run", action="store_true", help="show what would be done, do nothing")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    return run(lambda options, console: _up(options, console, words), parser(), words)


def _up(options: argparse.Namespace, console: Console, words: Sequence[str]) -> int:
    deployment = load_deployment(options.file, overrides(options))
    check_shown_folders()
    check_given(deployment)
    if deployment.tls is not None:
        check_server_files(deployment.tls)
    choice = choose_engine(deployment)
    engine = choice.engine
    if options.dry_run:
        _show_plan(console, engine, engine.plan(deployment=deployment), words)
        return 0
    folder = DeploymentFolder(deployment.name)
    # Two that start the same deployment take turns; the second finds it running.
    with folder.taking_turns():
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
    for finding in check_launch(deployment, engine.name):
        remedy = f" ({finding.remedy})" if finding.remedy is not None else ""
        console.say(f"warning: {finding.detail}{remedy}")
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


def _show_plan(console: Console, engine: Engine, plan: LaunchPlan, words: Sequence[str]) -> None:
    prepare = ["python3", "deploy/prepare.py", *deployment_words(words)]
    if plan.deployment.engine == "auto":
        # What auto stands for may be another engine by then.
        prepare += ["--engine", engine.name]
    console.line(f"# first: {' '.join(map(quote, prepare))}")
    console.line(f"# which stages the model repository in {quote(str(plan.repository))}")
    console.line(f"# {describe_instances(plan)}")
    *command, last = map(quote, engine.command(plan))
    for number, word in enumerate(command):
        console.line(f"{'  ' if number else ''}{word} \\")
    console.line(f"  {last}")
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
        others = " and at the container's own address" if state.engine == "docker" else ""
        console.line(
            "gRPC has TLS. Triton has none for HTTP and metrics: they are on 127.0.0.1"
            f"{others} only"
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
