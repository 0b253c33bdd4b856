"""Ask a server, here or elsewhere, for all that its clients rely on, and compare the values."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.arguments import as_seconds
from deploy.cli import DEFAULT_NAME, Parser, make_parser, run
from deploy.client.endpoint import Endpoint, client_tls
from deploy.console import Console
from deploy.deployment import DEFAULT_MODELS
from deploy.errors import DeploymentError, KitError, RepositoryError
from deploy.paths import MODEL_REPOSITORY
from deploy.server.service import ExpectedModel, ServiceCheck, check_service
from deploy.state import DeploymentFolder, DeploymentState
from deploy.tls.files import read_pair

_MOST_REPEATS = 10_000


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser(
        "smoke",
        "Check readiness, tensors and values of each model, with one event; show how long it took.",
    )
    flags.set_defaults(name=None)  # so that one that is given beside --url is seen
    add = flags.add_argument
    add(
        "--url", help="http[s]://host:port or grpc[s]://host:port (default: the deployment's, both)"
    )
    add("--ca", type=Path, metavar="FILE", help="PEM file of the authority to trust")
    add("--cert", type=Path, metavar="FILE", help="PEM file of your certificate, for mutual TLS")
    add("--key", type=Path, metavar="FILE", help="PEM file of its private key")
    add("--models", "--model", help="models to ask, comma separated")
    add(
        "--repository",
        type=Path,
        help="model repository with the golden answers (default: the deployment's, or the kit's)",
    )
    add("--timeout", type=as_seconds, default=10.0, help="seconds for one answer (default: 10)")
    add("--repeat", type=_count, default=5, help="inferences of each model, for the times (5)")
    return flags


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_REPEATS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST_REPEATS}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if nothing is wrong, 2 for wrong usage."""
    return run(_smoke, parser(), argv)


def _smoke(options: argparse.Namespace, console: Console) -> int:
    names: Sequence[str] = DEFAULT_MODELS
    repository = MODEL_REPOSITORY
    if options.url is not None and options.name is not None:
        raise DeploymentError("--url and --name both say which server: leave one of them out")
    if options.url is not None:
        files = {"ca": options.ca, "cert": options.cert, "key": options.key}
        endpoints = [Endpoint.parse(options.url, **files)]
    else:
        folder = DeploymentFolder(options.name or DEFAULT_NAME)
        state = folder.require_state()
        names, repository = state.models, folder.repository
        endpoints = [Endpoint.parse(state.url("http")), _own_grpc(state, options)]
    if options.models is not None:
        names = options.models.split(",")
    if options.repository is not None and not options.repository.is_dir():
        raise RepositoryError(
            f"model repository {options.repository}: no such folder",
            "--repository with a folder that holds the models' folders",
        )
    repository = options.repository or repository
    models = {name: ExpectedModel.read(repository, name) for name in names}
    checks = [
        check_service(endpoint, models, timeout=options.timeout, repeat=options.repeat)
        for endpoint in endpoints
    ]
    _show(checks, console)
    console.answer(_document(checks))
    return 0 if all(check.ok for check in checks) else 1


def _own_grpc(state: DeploymentState, options: argparse.Namespace) -> Endpoint:
    """Return where a deployment of this host speaks gRPC.

    Its own certificate is what is trusted, under a name that it holds: which authority a
    site's clients trust, and by which name they ask, is not known here.
    """
    endpoint = Endpoint.parse(state.url("grpc"))
    if state.tls is None:
        return endpoint
    tls = client_tls(options.ca, options.cert, options.key)
    certificate = read_pair(state.tls.cert, state.tls.key, role="server")
    name = None if endpoint.host in certificate.names else certificate.host
    tls = dataclasses.replace(tls, ca=tls.ca or state.tls.cert, server_name=name)
    return dataclasses.replace(endpoint, tls=tls)


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


if __name__ == "__main__":
    raise SystemExit(main())
