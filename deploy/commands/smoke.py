"""Check a server, here or elsewhere: readiness, tensors and the values of its answers."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from deploy.artefacts.keys import Signer, read_signer
from deploy.client.asked import add_servers_option
from deploy.client.diagnosis import certificate_of
from deploy.client.endpoint import Endpoint, client_tls
from deploy.client.registry import Registry
from deploy.client.service import ExpectedModel, ServiceCheck, check_service
from deploy.client.tls import read_pair
from deploy.client.watch import Target, Watch
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.deployment.options import add_tls_options, tls_files
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_address, as_seconds, count_to
from deploy.host.console import Console
from deploy.host.errors import (
    ClientError,
    DeploymentError,
    KitError,
    NotRunningError,
    RepositoryError,
    SignatureError,
)
from deploy.host.paths import DEFAULT_NAME, MODEL_REPOSITORY

_WATCH_S = 30.0
_METRICS = ("127.0.0.1", 9464)


def parser() -> Parser:
    what = "Check readiness, tensors and values of each model with one event, and show the times."
    flags = make_parser("smoke", what)
    flags.set_defaults(name=None)  # so that one given together with --url is noticed
    add = flags.add_argument
    url = (
        "http[s]://host:port or grpc[s]://host:port; repeat for more servers (default: the "
        "deployment's, both)"
    )
    add("--url", action="append", help=url)
    add_servers_option(flags)
    add_tls_options(flags)
    add("--models", "--model", help="models to check, comma separated")
    where = "model repository with the reference events (default: the deployment's, or the kit's)"
    add("--repository", type=Path, help=where)
    signed = "also check that the deployment runs an image or a .sif signed with this public key"
    add("--verify", type=Path, metavar="KEY", help=signed)
    add("--timeout", type=as_seconds, default=10.0, help="seconds for one answer (default: 10)")
    repeat = "inferences per model, for the timings (5; 1 with --watch)"
    add("--repeat", type=count_to(10_000), help=repeat)
    watch = (
        f"repeat the check every SECONDS ({_WATCH_S:g}) until interrupted, and export the results "
        "as Prometheus metrics"
    )
    add("--watch", type=as_seconds, nargs="?", const=_WATCH_S, metavar="SECONDS", help=watch)
    exported = f"where --watch exports them (default: {_METRICS[0]}:{_METRICS[1]})"
    add("--metrics", type=as_address, metavar="[ADDRESS:]PORT", help=exported)
    return flags


def _smoke(options: argparse.Namespace, console: Console) -> int:
    _check_flags(options)
    if options.verify is not None:
        folder, state = _deployment(options)
        _verify(folder, state, read_signer(options.verify))
    if options.watch is not None:
        _watch(partial(_target, options), options, console)
    asked = _target(options)
    ask = partial(
        check_service,
        timeout=options.timeout,
        repeat=options.repeat or 5,
        identity=asked.identity,
    )
    checks = [ask(endpoint, asked.expected) for endpoint in asked.endpoints]
    _show(checks, console)
    console.answer(_document(checks))
    return 0 if all(check.ok for check in checks) else 1


def _deployment(options: argparse.Namespace) -> tuple[DeploymentFolder, DeploymentState]:
    folder = DeploymentFolder(options.name or DEFAULT_NAME)
    return folder, folder.require_state()


def _target(options: argparse.Namespace) -> Target:
    """Return what is checked, as it is now: a deployment may be another one by the next check."""
    names: Sequence[str] = DEFAULT_MODELS
    repository, plan = options.repository or MODEL_REPOSITORY, None
    if options.url is not None or options.servers is not None:
        urls = list(options.url or ())
        if options.servers is not None:
            urls += Registry(options.servers).urls()
        found = [Endpoint.parse(url, **tls_files(options)) for url in urls]
        endpoints = list({endpoint.url: endpoint for endpoint in found}.values())
    else:
        folder, state = _deployment(options)
        plan = folder.plan()
        names, repository = state.models, options.repository or folder.repository
        endpoints = [Endpoint.parse(state.url("http")), _own_grpc(state, options)]
    if options.models is not None:
        names = options.models.split(",")
    expected = {name: ExpectedModel.read(repository, name) for name in names}
    return Target(endpoints, expected, None if plan is None else plan.identity)


def _check_flags(options: argparse.Namespace) -> None:
    if options.metrics is not None and options.watch is None:
        raise DeploymentError("--metrics needs --watch: use both or neither")
    if options.watch is not None and options.json:
        raise DeploymentError("--watch never ends, but --json prints one document: leave one out")
    where = "--servers" if options.servers is not None else "--url"
    given = options.url is not None or options.servers is not None
    if given and options.name is not None:
        raise DeploymentError(f"{where} and --name both choose the server: leave one out")
    if given and options.verify is not None:
        cause = f"--verify checks a deployment's image, but {where} names a server"
        raise DeploymentError(cause, "--name")
    if options.repository is not None and not options.repository.is_dir():
        cause = f"model repository {options.repository}: no such folder"
        raise RepositoryError(cause, "--repository with a folder that holds the models' folders")


def _verify(folder: DeploymentFolder, state: DeploymentState, signer: Signer) -> None:
    """Check that what a deployment was started from is signed and has not changed since."""
    # Engines take long to import, and nothing else here needs them.
    from deploy.engines.baked import as_started

    plan = folder.plan()
    if plan is None:
        raise NotRunningError(f"deployment {state.name} has no plan, so what it runs is not known")
    if as_started(plan, signer).artefact() != plan.artefact:
        cause = f"deployment {state.name} was started from something that has changed since"
        remedy = (
            f"numlkit down --name {state.name}, then numlkit up with the same file and flags, and "
            f"--verify {signer.path}"
        )
        raise SignatureError(cause, remedy)


def _watch(target: Callable[[], Target], options: argparse.Namespace, console: Console) -> NoReturn:
    """Repeat the check until interrupted or terminated; both end it with success."""
    watch = Watch(
        target,
        interval=options.watch,
        timeout=options.timeout,
        repeat=options.repeat or 1,
        say=console.say,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: watch.stop())
    host, port = options.metrics or _METRICS
    watch.run(host, port)
    # Python's own end would wait for a check that hangs in gRPC's library.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _own_grpc(state: DeploymentState, options: argparse.Namespace) -> Endpoint:
    """Return the gRPC endpoint of a deployment on this host.

    Its own certificate is trusted, under a name that it covers: which authority a site's clients
    trust, and which name they use, is not known here.
    """
    if state.tls is None:
        return Endpoint.parse(state.url("grpc"), **tls_files(options))
    endpoint = Endpoint.parse(state.url("grpc"))
    tls = client_tls(options.ca, options.cert, options.key)
    certificate = read_pair(state.tls.cert, state.tls.key, role="server")
    name = None if endpoint.host in certificate.names else certificate.host
    trusting = dataclasses.replace(tls, ca=tls.ca or state.tls.cert, server_name=name)
    endpoint = dataclasses.replace(endpoint, tls=trusting)
    if tls.ca is None:
        served = certificate_of(endpoint, timeout=options.timeout)
        if served not in (None, certificate):
            cause = f"deployment {state.name} serves another certificate than {state.tls.cert}"
            remedy = "if it was renewed, numlkit down and up take it; or --ca FILE for both"
            raise ClientError(f"{cause} has now", remedy)
    return endpoint


def _show(checks: Sequence[ServiceCheck], console: Console) -> None:
    rows = []
    for check in checks:
        for model in check.models:
            times = ["", "", ""]
            if model.latency is not None:
                seconds = (model.latency.median_s, model.latency.worst_s)
                times = [f"{1e3 * s:.0f} ms" for s in seconds] + [str(model.latency.requests)]
            right = "ok" if model.latency is not None else "ready, values not known"
            rows.append([check.url, model.model, right if model.ok else "FAILED", *times])
    if rows:
        columns = ("server", "model", "result", "median", "worst", "requests")
        console.table("smoke inference", columns, rows)
    for check in checks:
        if check.health is not None:
            console.line(f"{check.url}: gRPC health: {check.health}")
    if console.mode != "json":
        for problem in _problems(checks):
            console.error(problem)


def _problems(checks: Sequence[ServiceCheck]) -> list[KitError]:
    problems = []
    for check in checks:
        # A model's fault is often why the server says that it is not ready.
        found = [(m.error, m.remedy) for m in check.models] + [(check.error, check.remedy)]
        problems += [KitError(error, remedy) for error, remedy in found if error is not None]
    return problems


def _document(checks: Sequence[ServiceCheck]) -> dict[str, Any]:
    problems = _problems(checks)
    servers, results = [], []
    for check in checks:
        server = dataclasses.asdict(check)
        del server["models"]
        servers.append({**server, "ok": check.ok})
        results += [{"url": check.url, **dataclasses.asdict(m), "ok": m.ok} for m in check.models]
    document: dict[str, Any] = {"ok": not problems, "servers": servers, "results": results}
    if problems:
        document |= {"error": problems[0].cause, "remedy": problems[0].remedy}
    return document


main = partial(run, _smoke, parser)
