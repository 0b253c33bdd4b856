"""The server that the flags of a command name."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from deploy.client.diagnosis import why_unreachable
from deploy.client.endpoint import Endpoint, ProtocolName
from deploy.client.transport import ServedModel, TritonTransport
from deploy.deployment.options import add_tls_options, tls_files
from deploy.deployment.state import DeploymentFolder, default_endpoint
from deploy.host.command_line import Parser, as_seconds, count_to
from deploy.host.errors import ClientError, NotRunningError, ServerAwayError

_DIAGNOSIS_SECONDS = 5.0
_NO_SERVER = "numlkit up, or name a server with --url"


def add_server_options(flags: Parser) -> None:
    """Add the flags that name a server and say how to ask it; not the model's."""
    add = flags.add_argument
    server = flags.add_mutually_exclusive_group()
    where = "[http|https|grpc|grpcs://]host[:port] (default: the running deployment)"
    server.add_argument("--url", help=where)
    server.add_argument("--name", help="the deployment to ask, if several are running")
    add("--protocol", choices=("http", "grpc"), help="for a URL without a scheme (default: http)")
    add(
        "--ssl",
        action="store_true",
        help="encrypt the connection (implied by the next three options)",
    )
    add_tls_options(flags)
    add("--concurrency", type=count_to(1024), default=4, metavar="N", help="requests in flight (4)")
    add("--timeout", type=as_seconds, default=60.0, metavar="S", help="seconds per request (60)")


def asked_endpoint(options: argparse.Namespace) -> Endpoint:
    """Return where the server is; NotRunningError if none is named and none runs."""
    protocol: ProtocolName = options.protocol or "http"
    if options.url is not None:
        url = options.url
    elif options.name is not None:
        url = DeploymentFolder(options.name).require_state().url(protocol)
    else:
        url = default_endpoint(protocol)
        if url is None:
            raise NotRunningError("no deployment is running", _NO_SERVER)
    return Endpoint.parse(url, protocol=options.protocol, tls=options.ssl, **tls_files(options))


def describe(connect: Callable[[], TritonTransport], name: str, endpoint: Endpoint) -> ServedModel:
    """Return a model as its server describes it; ClientError says why it cannot be asked."""
    transport = connect()
    try:
        return transport.describe(name)
    except ServerAwayError as error:
        known = why_unreachable(endpoint, timeout=_DIAGNOSIS_SECONDS)
        if known is None and error.remedy:
            raise
        raise known or ClientError(f"no server answers at {error.cause}", _NO_SERVER) from error
    finally:
        transport.close()
