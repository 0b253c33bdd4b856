"""Load a server with events that do not wait for answers; say what clients get in time."""

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deploy.client.asked import describe
from deploy.client.endpoint import Endpoint, ProtocolName
from deploy.client.load.connection import Connections, Request, as_request
from deploy.client.load.open_loop import Round, capacity, offer
from deploy.client.load.plot import write_plot
from deploy.client.load.summary import COLUMNS, all_figures, document, row
from deploy.client.load.traffic import Patience, Tenant, simulated_event
from deploy.client.transport import ServedModel, TritonTransport
from deploy.deployment.options import add_tls_options, tls_files
from deploy.deployment.state import DeploymentFolder, default_endpoint
from deploy.events.files import EventFile
from deploy.host.cli import Parser, check_picture, make_parser, run
from deploy.host.command_line import as_name, as_seconds, count_to, number
from deploy.host.console import Console
from deploy.host.errors import ClientError, DeploymentError, NotRunningError

_RATES = "0.5x,1x,2x,5x,10x"
_HITS, _MOST_HITS = 1300, 1_000_000
_DIFFERENT, _DIFFERENT_HITS = 16, 100_000
"""Events that are sent in turn, and the most hits of all of them, unless one has more."""
_PROBING_S, _FEWEST_CLIENTS, _MORE = 5.0, 8, 1.1
"""Twice as many clients are tried, each time for so long, while they get so many times as much."""
_WAITS_S = 60.0
"""How long a server without load may take for an event."""
_BEHIND_S = 0.05
_MAIN = "clients"


def parser() -> Parser:
    flags = make_parser("load", __doc__, deployment=False)
    add = flags.add_argument
    pause = number("a number of seconds from 0 on", lambda value: 0 <= value < 1e6)
    add(
        "files", nargs="*", type=Path, metavar="FILE.h5", help="events to send (default: simulated)"
    )
    server = flags.add_mutually_exclusive_group()
    server.add_argument("--url", help="grpc[s]://HOST[:PORT] (default: the running deployment)")
    server.add_argument("--name", type=as_name, help="the deployment to load, if several run")
    add_tls_options(flags)
    add("--model", default="nugraph3", help="the model to ask (default: %(default)s)")
    add(
        "--hits", type=count_to(_MOST_HITS), default=_HITS, metavar="N",
        help="hits of a simulated event (default: %(default)s)",
    )  # fmt: skip
    add(
        "--rates", type=_rates, default=_RATES, metavar="R,R,...",
        help="events per second to offer, one after the other; 2x is twice what the server can "
        "answer, which is measured first (default: %(default)s)",
    )  # fmt: skip
    add("--seconds", type=as_seconds, default=10.0, metavar="S", help="for each rate (10)")
    add(
        "--tenant", type=_tenant, action="append", default=[], metavar="NAME:RATE[:HITS]",
        help="further clients, who send at their own rate beside; may be repeated",
    )  # fmt: skip
    add("--deadline", type=as_seconds, default=2.0, metavar="S", help="of each request (2)")
    add(
        "--retries", type=count_to(1000, least=0), default=2, metavar="N",
        help="of a refused or late request (2)",
    )  # fmt: skip
    add(
        "--pause", type=pause, default=0.0, metavar="S",
        help="before a request is sent again (0, as existing clients do it)",
    )  # fmt: skip
    add("--connections", type=count_to(1024), default=4, metavar="N", help="to the server (4)")
    add("--plot", type=Path, metavar="FILE.png", help="draw goodput against offered load")
    return flags


def _rates(text: str) -> list[tuple[float, bool]]:
    """Parse rates: each with whether it is a multiple of the capacity."""
    try:
        found = [(float(each.removesuffix("x")), each.endswith("x")) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or any(not 0 < rate < 1e6 for rate, _ in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of rates such as 0.5x,1x,200")
    return found


def _tenant(text: str) -> Tenant:
    name, _, rest = text.partition(":")
    rate, _, hits = rest.partition(":")
    try:
        tenant = Tenant(name, float(rate), count_to(_MOST_HITS)(hits or str(_HITS)))
    except (ValueError, argparse.ArgumentTypeError):
        tenant = Tenant("", 0.0, 0)
    if not tenant.name or tenant.name == _MAIN or not 0 < tenant.rate < 1e6:
        form = f"NAME:RATE or NAME:RATE:HITS, with 1 to {_MOST_HITS} hits"
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return tenant


def _load(options: argparse.Namespace, console: Console) -> int:
    plot: Path | None = options.plot
    if plot is not None:
        check_picture(plot)
    names = [each.name for each in options.tenant]
    for name in names:
        if names.count(name) > 1:
            cause = f"--tenant {name} is given twice"
            raise DeploymentError(cause, "a name for each, such as light-1 and light-2")
    endpoint = _endpoint(options)
    connect = partial(TritonTransport, endpoint, timeout=_WAITS_S)
    model = describe(connect, options.model, endpoint)
    tenant = Tenant(_MAIN, 0.0, None if options.files else options.hits)
    traffic = {tenant: _requests(model, options.files, options.hits)}
    for each in options.tenant:
        traffic[each] = _requests(model, (), each.hits)
    patience = Patience(options.deadline, options.retries, options.pause)
    found, rounds = asyncio.run(_offered(endpoint, traffic, patience, options, console))
    facts: dict[str, Any] = {
        "endpoint": endpoint.url,
        "model": model.title,
        "capacity": None if found is None else round(found, 2),
        "seconds": options.seconds,
        "deadline_s": patience.deadline_s,
        "retries": patience.retries,
        "pause_s": patience.pause_s,
    }
    told = document(rounds, **facts)
    _show(told, rounds, console)
    if plot is not None:
        write_plot({"goodput": told}, plot)
        console.line(f"  picture  {plot}")
    console.answer(told)
    return 0 if told["ok"] else 1


def _endpoint(options: argparse.Namespace) -> Endpoint:
    if options.url is not None:
        url = options.url
    elif options.name is not None:
        url = DeploymentFolder(options.name).require_state().url("grpc")
    else:
        url = default_endpoint("grpc")
        if url is None:
            raise NotRunningError("no deployment is running", "numlkit up, or --url grpc://HOST")
    protocol: ProtocolName | None = None if "://" in url else "grpc"
    endpoint = Endpoint.parse(url, protocol=protocol, **tls_files(options))
    if endpoint.protocol != "grpc":
        raise DeploymentError(
            f"--url {url}: events are sent over gRPC", "--url grpc[s]://HOST:PORT"
        )
    return endpoint


def _requests(model: ServedModel, files: Sequence[Path], hits: int | None) -> list[Request]:
    if not files:
        size = hits or _HITS
        random = np.random.default_rng(size)
        count = max(1, min(_DIFFERENT, _DIFFERENT_HITS // size))
        events = [simulated_event(model.inputs, size, random) for _ in range(count)]
        return [Request(as_request(model, event), size) for event in events]
    requests = []
    for path in files:
        with EventFile(path, model.inputs, model.optional) as file:
            for index in range(len(file)):
                event = file.read(index)
                requests.append(Request(as_request(model, event.tensors), event.hits))
    if not requests:
        raise ClientError(f"{', '.join(map(str, files))}: no events")
    return requests


async def _offered(
    endpoint: Endpoint,
    traffic: dict[Tenant, list[Request]],
    patience: Patience,
    options: argparse.Namespace,
    console: Console,
) -> tuple[float | None, list[Round]]:
    """Measure the capacity, offer each rate, and return both."""
    async with Connections(endpoint, count=options.connections) as connections:
        with console.step("ask for each event alone"):
            known = {
                tenant: await connections.references(requests, _WAITS_S)
                for tenant, requests in traffic.items()
            }
        main, *others = known
        if not any(request.answer for request in known[main]):
            cause = f"{endpoint.url} refuses the events of {main.name}"
            raise ClientError(cause, "events with fewer hits (--hits), or a higher limit")
        with console.step("measure what the server can answer"):
            most = await _capacity(connections, known[main])
        if not most:
            raise ClientError(f"{endpoint.url} no longer answers", "numlkit status, numlkit logs")
        rounds = []
        for number, (rate, relative) in enumerate(options.rates):
            offered = Tenant(main.name, rate * most if relative else rate, main.hits)
            with console.step(f"offer {offered.rate:.1f} events/s"):
                rounds.append(
                    await offer(
                        connections,
                        [(offered, known[main]), *((each, known[each]) for each in others)],
                        patience,
                        seconds=options.seconds,
                        seed=number,
                    )
                )
        return most, rounds


async def _capacity(connections: Connections, requests: Sequence[Request]) -> float:
    """Return how many events per second a server can answer, however many instances it has."""
    most, clients = 0.0, _FEWEST_CLIENTS
    ask = partial(capacity, connections, requests, seconds=_PROBING_S)
    while (found := await ask(clients=clients)) > _MORE * most:
        most, clients = found, 2 * clients
    return max(most, found)


def _show(told: dict[str, Any], rounds: Sequence[Round], console: Console) -> None:
    title = f"{told['model']} at {told['endpoint']}; it can answer {told['capacity']:.1f} events/s"
    found = all_figures(rounds)
    console.table(title, COLUMNS, [row(figure) for each in found for figure in each])
    reasons = {f.reason: f.statuses for each in found for f in each if f.reason}
    for reason in reasons:
        console.line(f"  refused: {reason}")
    behind = max(each.behind_s for each in rounds)
    if behind > _BEHIND_S:
        console.line(
            f"  this client was up to {behind:.2g} s behind: run it on another host, or offer less"
        )
    if not told["ok"]:
        console.line("  some answers were wrong")


main = partial(run, _load, parser)
