"""The files by which a deployment's server encrypts: usable, and for how long?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from deploy.checks.finding import Finding, ok
from deploy.deployment import Deployment
from deploy.tls.certificate import day
from deploy.tls.files import check_pair, check_server_files

SUBJECT = "TLS"
_SOON = timedelta(days=30)


def tls_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return whether a deployment's certificate and key can be used; nothing if it has none.

    Args:
        deployment: What is wanted.

    Raises:
        DeploymentError: One of the files is not usable.
    """
    if deployment.tls is None:
        return
    check_server_files(deployment.tls)
    end = check_pair(deployment.tls.cert, deployment.tls.key, role="server").not_after
    detail = f"{deployment.tls.cert} is valid until {day(end)}"
    if end - datetime.now(UTC) < _SOON:
        yield Finding("warning", SUBJECT, detail, "renew it, then start the deployment anew")
    else:
        yield ok(SUBJECT, detail)
