"""A server's admin endpoints over HTTP, opened by its key: what the supervisor asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.client.transport import triton_reason
from deploy.errors import KitError
from deploy.server.admin_key import http_headers

_CONNECT_S = 5.0


class AdminError(KitError):
    """The server cannot be asked, or does not do what it is asked."""


class AdminClosedError(AdminError):
    """The server does not accept the key."""


@dataclass(frozen=True)
class IndexEntry:
    """A model in a server's repository.

    Attributes:
        model: Its name.
        version: Its version; empty if none is loaded.
        state: ``READY``, ``LOADING``, ``UNLOADING``, ``UNAVAILABLE``, or empty if it was
            never loaded.
        reason: Why it is not ready; empty if it is.
    """

    model: str
    version: str
    state: str
    reason: str


class Admin:
    """The admin endpoints of one server.

    Every question has a connection of its own: one that is kept open delays a server's stop.

    Args:
        address: ``host:port`` of its HTTP service.
        key: Its key.
        timeout: Seconds for one answer; a model is answered for when it is loaded.
    """

    def __init__(self, address: str, key: str, *, timeout: float) -> None:
        self._address = address
        self._headers = dict(http_headers(key))
        self._timeout = timeout

    def load(self, model: str) -> None:
        """Load a model, or load it anew if its files are not as they were.

        The instances that serve it go on until the new ones are ready.

        Args:
            model: Its name.

        Raises:
            AdminError: If it is not loaded; what has served before goes on serving.
        """
        self._ask(
            f"load model {model}",
            lambda client: client.load_model(model, headers=self._headers),
        )

    def index(self) -> tuple[IndexEntry, ...]:
        """Return what is in the server's repository.

        Raises:
            AdminError: If it is not told.
        """
        answer = self._ask(
            "list its models",
            lambda client: client.get_model_repository_index(headers=self._headers),
        )
        fields = ("name", "version", "state", "reason")
        return tuple(IndexEntry(*(entry.get(field, "") for field in fields)) for entry in answer)

    def _ask(self, what: str, question: Callable[[Any], Any]) -> Any:
        import tritonclient.http as http
        from tritonclient.utils import InferenceServerException

        where = f"{self._address} does not {what}"
        client = http.InferenceServerClient(
            self._address, connection_timeout=_CONNECT_S, network_timeout=self._timeout
        )
        try:
            return question(client)
        except InferenceServerException as error:
            cause = f"{where}: {triton_reason(error.message())}"
            if error.status() == "403":
                raise AdminClosedError(cause) from None
            raise AdminError(cause) from None
        except TimeoutError:
            raise AdminError(f"{where} within {self._timeout:g} s") from None
        except Exception as error:  # the libraries below raise their own, undocumented kinds
            raise AdminError(f"{where}: {str(error) or type(error).__name__}") from None
        finally:
            client.close()
