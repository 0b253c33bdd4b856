"""What the agent tells probes and Prometheus, over HTTP.

``/metrics``
    ``numl_sync_release``: number of the release that the server answers with; 0: none yet.
    ``numl_sync_published_release``: number of the release that the bucket says serves; 0: unknown.
    ``numl_sync_refused``: 1 while that release is refused, else 0.
    ``numl_sync_last_success_timestamp_seconds``: when the bucket answered last; absent: never yet.
    ``numl_sync_verifies``: 1 if statements must be signed, else 0.
    ``numl_sync_statement_sequence``: number of the newest statement that was accepted, with
    ``numl_sync_statement_created_timestamp_seconds`` and, if it has an end,
    ``numl_sync_statement_expires_timestamp_seconds``; absent: none yet.
    ``numl_sync_refused_statements_total{reason="format|signature|line|replay|expired"}``: polls
    that found a statement that is refused.
    ``numl_sync_failures_total{reason="bucket|release|folder"}``: polls without an answer that
    helps, releases refused, failures to write the folder.

``/ready`` answers 200 once a release is in the folder, else 503.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from numl_formats.errors import Refusal
from numl_formats.metrics import Labels, family, serve
from numl_sync.errors import UsageError
from numl_sync.trust import Accepted

_REASONS = ("bucket", "release", "folder")
_REFUSALS: tuple[Refusal, ...] = get_args(Refusal)


@dataclass
class Status:
    """The figures; the agent changes them.

    Attributes:
        in_folder: Whether the folder has a release, though the server may not yet answer with it.
        last_success: Seconds since 1970; None: never.
        statement: The newest one that was accepted.
    """

    release: int = 0
    published_release: int = 0
    refused: bool = False
    in_folder: bool = False
    last_success: float | None = None
    verifies: bool = False
    statement: Accepted | None = None
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    refused_statements: dict[Refusal, int] = field(
        default_factory=lambda: dict.fromkeys(_REFUSALS, 0)
    )

    def metrics(self) -> str:
        """Return them in Prometheus's text format."""
        gauges: dict[str, float] = {
            "release": self.release,
            "published_release": self.published_release,
            "refused": int(self.refused),
            "verifies": int(self.verifies),
        }
        if self.last_success is not None:
            gauges["last_success_timestamp_seconds"] = self.last_success
        if (statement := self.statement) is not None:
            gauges["statement_sequence"] = statement.seen.sequence
            gauges["statement_created_timestamp_seconds"] = statement.created.timestamp()
            if statement.expires is not None:
                gauges["statement_expires_timestamp_seconds"] = statement.expires.timestamp()
        counters: dict[str, Mapping[Any, int]] = {
            "failures_total": self.failures,
            "refused_statements_total": self.refused_statements,
        }
        lines = []
        for name, value in gauges.items():
            lines += family(f"numl_sync_{name}", "gauge", {(): value})
        for name, counts in counters.items():
            by_reason: dict[Labels, float] = {
                (("reason", reason),): count for reason, count in counts.items()
            }
            lines += family(f"numl_sync_{name}", "counter", by_reason)
        return "\n".join(lines) + "\n"

    def ready(self) -> tuple[int, str]:
        """Return what probes are told: a status and a line."""
        return (200, "ready\n") if self.in_folder else (503, "no release yet\n")


def serve_status(status: Status, host: str, port: int) -> None:
    """Answer requests, in a thread that ends with the process.

    Raises:
        UsageError: The port is not available.
    """
    try:
        serve({"/metrics": lambda: (200, status.metrics()), "/ready": status.ready}, host, port)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a port number"
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from None
