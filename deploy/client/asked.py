"""The server that the flags of a command name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint, ProtocolName
from deploy.client.pool import Transport
from deploy.client.registry import Registry
from deploy.client.transport import ServedModel
from deploy.deployment.options import add_tls_options, tls_files
from deploy.deployment.state import DeploymentFolder, default_endpoint
from deploy.host.command_line import Parser, as_name, as_seconds, count_to
from deploy.host.errors import (
    ClientError,
    DeploymentError,
    NotRunningError,
    ServerAwayError,
)

_DIAGNOSIS_SECONDS = 5.0
_NO_SERVER = "numlkit up, or name a server with --url"


def add_server_options(flags: Parser) -> None:
    """Add the flags that name a server and say how to ask it; not the model's."""
    add = flags.add_argument
    server = flags.add_mutually_exclusive_group()
    where = "[http|https|grpc|grpcs://]host[:port] (default: the running deployment)"
    server.add_argument("--url", action="append", help=f"{where}; repeat it for several servers")
    server.add_argument("--name", type=as_name, help="the deployment to ask, if several run")
    add_servers_option(server)
    add("--protocol", choices=("http", "grpc"), help="for a URL without a scheme (default: http)")
    add(
        "--ssl",
        action="store_true",
        help="encrypt the connection (implied by the next three options)",
    )
    add_tls_options(flags)
    add("--concurrency", type=count_to(1024), default=4, metavar="N", help="requests in flight (4)")
    add("--timeout", type=as_seconds, default=60.0, metavar="S", help="seconds per request (60)")


def add_servers_option(group: argparse._ActionsContainer) -> None:
    folder = "the folder that names the servers of numlkit up --engine slurm"
    group.add_argument("--servers", type=Path, metavar="FOLDER", help=folder)


def asked_endpoints(options: argparse.Namespace) -> list[Endpoint]:
    """Return where the servers are; NotRunningError if none is named and none runs."""
    protocol: ProtocolName = options.protocol or "http"
    urls = options.url
    if options.servers is not None:
        if options.ssl or options.protocol == "http":
            cause = "--servers names servers by their gRPC addresses, with TLS where they have it"
            raise DeploymentError(cause, "leave out --ssl and --protocol")
        urls = Registry(options.servers).urls()
    if options.name is not None:
        urls = [DeploymentFolder(options.name).require_state().url(protocol)]
    return [
        Endpoint.parse(url, protocol=options.protocol, tls=options.ssl, **tls_files(options))
        for url in urls or default_urls(protocol)
    ]


def default_urls(protocol: ProtocolName) -> tuple[str, ...]:
    """Return the servers where none are named: a job's own, or the running deployment."""
    given = tuple(filter(None, os.environ.get(f"NUML_{protocol.upper()}_URL", "").split(",")))
    if given:
        return given
    url = default_endpoint(protocol)
    if url is None:
        raise NotRunningError("no deployment is running", _NO_SERVER)
    return (url,)


def describe(connect: Callable[[], Transport], name: str, endpoint: Endpoint) -> ServedModel:
    """Return a model as its server describes it; ClientError says why it cannot be asked."""
    try:
        with closing(connect()) as transport:
            return transport.describe(name)
    except ServerAwayError as error:
        known = why_unreachable(endpoint, timeout=_DIAGNOSIS_SECONDS)
        if known is None and error.remedy:
            raise
        raise known or ClientError(f"no server answers at {error.cause}", _NO_SERVER) from error
