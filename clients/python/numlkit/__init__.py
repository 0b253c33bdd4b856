"""Labels events through Triton: ``from numlkit import Client``; docs/python.md shows how."""

from deploy.events.client import AsyncClient, Client, Event
from deploy.events.files import EventTensors
from deploy.events.inference import Failure, ServerLostError
from deploy.events.labelled import Labelled
from deploy.host.errors import ClientError, KitError, RequestError, ServerAwayError

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Event",
    "EventTensors",
    "Failure",
    "KitError",
    "Labelled",
    "RequestError",
    "ServerAwayError",
    "ServerLostError",
]
