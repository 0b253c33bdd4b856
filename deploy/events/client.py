"""The client of notebooks and scripts: events in, labels out, from one server or several.

``numlkit`` exports it: ``from numlkit import Client``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from deploy.client.asked import default_urls, describe
from deploy.client.endpoint import Endpoint
from deploy.client.pool import Balancer, PooledTransport
from deploy.client.registry import Registry
from deploy.client.transport import ServedModel, TritonTransport
from deploy.events.bulk import weights_of
from deploy.events.files import ALWAYS, EventTensors, as_sent
from deploy.events.graphs import open_events
from deploy.events.grouping import EventId
from deploy.events.inference import (
    PATIENCE_S,
    Answer,
    Failure,
    as_kit_error,
    ask,
    infer,
    read_event,
)
from deploy.events.labelled import Labelled
from deploy.events.tables import EventFileError
from deploy.host.console import Console
from deploy.host.errors import ClientError, DeploymentError, KitError, RequestError
from deploy.triton.config import WEIGHTS_DIGEST
from numl_formats.contract import HIT_ID, HITS, PLANE, SPACEPOINTS

_LOOK_S = 1.0
_NO_ID: EventId = (0, 0, 0)
_CLOSED = "the client is closed"
_NO_EVENT = "an event is a mapping of columns by their names"
Event = EventTensors | Failure | Mapping[str, Any]
"""Of `Client.read`, or columns by the names of the inputs; ``hit_table_`` may be left out."""


class Client:
    """Labels events; a context manager. Its methods may be called by several threads.

    Args:
        urls: Servers, as ``grpc://host:8001`` or ``https://host``; none: those of ``servers``, or
            of ``$NUML_GRPC_URL`` (comma separated), or the running deployment.
        servers: The folder that names the servers of ``numlkit up --engine slurm``. Those that come
            are used, those that leave are not asked any more.
        model: The model to ask.
        timeout: Seconds that one request may take.
        patience: Seconds that an event waits for servers that are away.
        concurrency: Requests in flight.
        ca: PEM file of the authority to trust.
        cert: PEM file of a client certificate, for mutual TLS.
        key: PEM file of its private key.

    Raises:
        ClientError: No server answers, or they do not serve the model.
    """

    def __init__(
        self,
        *urls: str | Endpoint,
        servers: Path | None = None,
        model: str = "nugraph3",
        timeout: float = 60.0,
        patience: float = PATIENCE_S,
        concurrency: int = 4,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._tls: dict[str, Any] = {"ca": ca, "cert": cert, "key": key}
        self._registry = None if servers is None else Registry(Path(servers))
        known = urls or (self._registry.urls() if self._registry else default_urls("grpc"))
        self.endpoints = [self._as_endpoint(url) for url in known]
        self.timeout, self.patience, self.concurrency = timeout, patience, concurrency
        self._next_look, self._looking = time.monotonic() + _LOOK_S, threading.Lock()
        self._balancer = Balancer(len(self.endpoints), self._look)
        self._weights = ""  # until the model is known, any will do
        self._has_others = False
        self.model = describe(self.connect, model, self.endpoints[0])
        self._weights = weights_of(self.model)
        self._stopped = threading.Event()
        self._runs: set[threading.Event] = set()  # of each label_all, to end it
        self._own, self._process = threading.local(), os.getpid()
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix="numlkit")

    @property
    def url(self) -> str:
        """The servers' addresses, in words."""
        return ", ".join(endpoint.url for endpoint in self.endpoints)

    def connect(self) -> PooledTransport:
        """Return connections to all servers, for one thread."""
        return PooledTransport(self._balancer, self._open)

    def label(self, event: Event) -> Labelled:
        """Label an event.

        Raises:
            RequestError: The event could not be read, the server refuses it, or does not answer in
                time.
            ServerAwayError: No server was reached within the patience.
            ClientError: The client is closed, or was made in another process.
        """
        return self._submit(event).result()

    def label_all(
        self, events: Iterable[Event], *, progress: bool = False
    ) -> Iterator[Labelled | Failure]:
        """Label events, several at once; yield an answer, or a failure, for each in their order.

        A failure to read one is yielded as it is. Few events are in memory at once.
        ServerLostError if the servers stay away, ClientError if the client is closed meanwhile.
        """
        known = len(events) if isinstance(events, Sequence) else 0
        taken, no_more = 0, False

        def source() -> Iterator[EventTensors | Failure]:
            nonlocal taken, no_more
            for event in events:
                taken += 1
                yield self._as_event_or_failure(event)
            no_more = True

        done = failed = 0
        shown = Console("normal" if progress else "quiet")
        with self._until_closed() as stop, shown.progress("events") as advance:
            outcomes = infer(
                source(), self.model, self.connect,
                concurrency=self.concurrency, stop=stop, patience=self.patience,
            )  # fmt: skip
            for outcome in outcomes:
                done, failed = done + 1, failed + isinstance(outcome, Failure)
                advance(done, max(known, done), f"{failed} failed")
                yield outcome if isinstance(outcome, Failure) else self._labelled(outcome)
        if done < taken or not no_more:
            raise ClientError("the client was closed before all events were answered")

    def read(self, path: Path | str) -> Iterator[EventTensors | Failure]:
        """Yield the events of an HDF5 file, with the columns that the model reads.

        One that cannot be read is a failure in its place, which `label_all` passes on.
        EventFileError if the file cannot be read at all.
        """
        with open_events(Path(path), self.model.inputs, self.model.optional) as file:
            for index in range(len(file)):
                yield read_event(file, index)

    def refuse_other_weights(self) -> None:
        """Raise ClientError if a server was given other weights, under open connections too.

        Of one that is away, whoever connects anew finds out.
        """
        for found in self._connected().ask_each(lambda each: each.parameters(self.model.name)):
            if found.get(WEIGHTS_DIGEST, "") not in ("", self._weights):
                self._has_others = True
        if self._has_others:
            cause = f"the servers were given other weights than {self.model.name} had before"
            raise ClientError(cause, "write what is left to another folder")

    def close(self) -> None:
        """End what is in flight, a `label_all` too, and close all connections."""
        self._stopped.set()
        for stop in tuple(self._runs):
            stop.set()
        self._executor.shutdown(wait=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _until_closed(self) -> Iterator[threading.Event]:
        """Yield an event that `close` sets: `infer` sets its own, so runs cannot share one."""
        stop = threading.Event()
        self._runs.add(stop)
        if self._stopped.is_set():
            stop.set()
        try:
            yield stop
        finally:
            self._runs.discard(stop)

    def _as_endpoint(self, url: str | Endpoint) -> Endpoint:
        return url if isinstance(url, Endpoint) else Endpoint.parse(url, **self._tls)

    def _look(self) -> None:
        """See which servers the registry names by now, at most once a second."""
        if self._registry is None or time.monotonic() < self._next_look:
            return
        with self._looking:
            self._next_look = time.monotonic() + _LOOK_S
            numbers = {each.url: number for number, each in enumerate(self.endpoints)}
            there = []
            for entry in self._registry.entries():
                with suppress(DeploymentError):  # without TLS, and this client has certificates
                    endpoint = self._as_endpoint(entry.url)
                    if endpoint.url not in numbers:
                        numbers[endpoint.url] = len(self.endpoints)
                        self.endpoints.append(endpoint)
                    there.append(numbers[endpoint.url])
            if there:  # as long as none is there: those known before
                self._balancer.use(set(there))

    def _open(self, server: int) -> TritonTransport:
        """Return a new connection; ClientError if the server has other weights than the model."""
        endpoint = self.endpoints[server]
        transport = TritonTransport(endpoint, timeout=self.timeout)
        try:
            found = transport.parameters(self.model.name) if self._weights else {}
            if found.get(WEIGHTS_DIGEST, self._weights) != self._weights:
                self._has_others = True
                cause = f"{endpoint.url} serves other weights than {self.model.name} had before"
                raise ClientError(cause, "ask servers with the same weights in one run")
        except BaseException:
            transport.close()
            raise
        return transport

    def _connected(self) -> PooledTransport:
        """Return this thread's own connections: those of HTTP cannot be used by another."""
        if not hasattr(self._own, "transport"):
            self._own.transport = self.connect()
        transport: PooledTransport = self._own.transport
        return transport

    def _submit(self, event: Event) -> Future[Labelled]:
        if os.getpid() != self._process:  # without the threads that would label it
            raise ClientError("this client is of another process", "make a Client in each")
        try:
            return self._executor.submit(self._label, self._as_event(event))
        except RuntimeError as error:  # closed, or no thread can be started
            closed = self._stopped.is_set()
            raise ClientError(_CLOSED) if closed else as_kit_error(error) from error

    def _label(self, event: EventTensors) -> Labelled:
        if self._stopped.is_set():
            raise ClientError(_CLOSED)
        transport = self._connected()
        try:
            answer = ask(transport, self.model, event, self._stopped, patience=self.patience)
        except KitError:
            raise
        except Exception as error:  # of whatever kind, the caller has one to catch
            raise as_kit_error(error) from error
        return self._labelled(answer)

    def _labelled(self, answer: Answer) -> Labelled:
        return Labelled(answer.labels, self.model, answer.latency_s)

    def _as_event_or_failure(self, event: Event) -> EventTensors | Failure:
        if isinstance(event, Failure):
            return event
        try:
            return self._as_event(event)
        except RequestError as error:
            return Failure(_NO_ID, "", error.cause)

    def _as_event(self, event: Event) -> EventTensors:
        """Return an event with the types that the model declares; RequestError if it is none."""
        if isinstance(event, EventTensors):
            return event
        if isinstance(event, Failure):
            raise RequestError(event.reason)
        if not isinstance(event, Mapping):
            raise RequestError(f"{_NO_EVENT}, not {type(event).__name__}")
        datatypes, tensors = {**ALWAYS, **self.model.inputs}, {}
        for name, values in event.items():
            if not isinstance(name, str):
                raise RequestError(f"{_NO_EVENT}, not of {type(name).__name__}")
            tensor = name if name.startswith((HITS, SPACEPOINTS)) else f"{HITS}_{name}"
            kind = datatypes.get(tensor)
            try:
                sent = np.asarray(values) if kind is None else as_sent(values, tensor, kind)
            except EventFileError as error:
                raise RequestError(error.cause) from error
            except Exception as error:  # a value's own way to become an array may raise any
                raise RequestError(f"{tensor}: {as_kit_error(error).cause}") from error
            tensors[tensor] = sent
        for needed in (HIT_ID, PLANE):
            if needed not in tensors:
                raise RequestError(f"the event has no {needed}")
        return EventTensors(_NO_ID, "", tensors)


class AsyncClient:
    """A :class:`Client` for asyncio: the same arguments; its threads do the waiting."""

    def __init__(self, *urls: str | Endpoint, **options: Any) -> None:
        self._client = Client(*urls, **options)

    @property
    def model(self) -> ServedModel:
        return self._client.model

    async def label(self, event: Event) -> Labelled:
        """As :meth:`Client.label`."""
        return await asyncio.wrap_future(self._client._submit(event))

    async def label_all(self, events: Iterable[Event]) -> AsyncIterator[Labelled]:
        """Label events, several at once; yield the answers in their order.

        The first that fails ends it with the error that :meth:`label` has.
        """
        window: deque[asyncio.Task[Labelled]] = deque()
        try:
            for event in events:
                window.append(asyncio.create_task(self.label(event)))
                if len(window) == 2 * self._client.concurrency:
                    yield await window.popleft()
            while window:
                yield await window.popleft()
        finally:
            for task in window:
                task.cancel()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._client.close)
