"""The GPUs of this host, for a deployment that wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deploy.checks.finding import Finding, ok

SUBJECT = "GPU"
_DRIVER = Path("/proc/driver/nvidia/version")


def gpu_findings() -> Iterator[Finding]:
    """Return what there is to compute with."""
    try:
        driver = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        yield ok(SUBJECT, "no NVIDIA driver here: models run on CPUs")
    else:
        yield ok(SUBJECT, " ".join(driver.split()))
