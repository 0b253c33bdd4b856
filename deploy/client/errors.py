"""What can go wrong between a client and a server."""

from __future__ import annotations

from deploy.errors import KitError


class ClientError(KitError):
    """A server cannot be asked: it does not answer, serves no such model, is no Triton."""


class NoTritonError(ClientError):
    """Something answers, but not as Triton does: nothing more can be asked there."""


class RequestError(KitError):
    """The server refused one event, or did not answer it."""


class ServerAwayError(KitError):
    """The connection is lost, or the model is not served just now: worth another try."""
