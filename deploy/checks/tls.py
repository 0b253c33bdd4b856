"""The files by which a deployment's server encrypts: usable, and for how long?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from deploy.checks.finding import Finding, ok
from deploy.deployment import Deployment
from deploy.tls.certificate import day
from deploy.tls.files import check_server_files

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
    certificate = check_server_files(deployment.tls)
    end = certificate.not_after
    detail = f"{deployment.tls.cert} is valid until {day(end)}"
    if end - datetime.now(UTC) < _SOON:
        yield Finding("warning", SUBJECT, detail, "renew it, then start the deployment anew")
    else:
        yield ok(SUBJECT, detail)
    if not certificate.names:
        # Clients in Python and C++ then compare its common name, if it is no address; Go's do not.
        yield Finding(
            "warning",
            SUBJECT,
            f"{deployment.tls.cert} names no host in its subject alternative names: clients that "
            "ask by an address refuse it, and some that ask by a name",
            "one that has them, as by openssl req -x509 ... "
            "-addext subjectAltName=DNS:HOST,IP:ADDRESS",
        )
