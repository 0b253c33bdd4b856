"""The GPUs of this host, for a deployment that wants them."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.checks.finding import Finding, ok, wrong
from deploy.deployment import Deployment
from deploy.engines.instances import choose_devices
from deploy.errors import KitError
from deploy.hardware.gpu import GpuStack, NoGpus, find_gpus

SUBJECT = "GPU"


def gpu_findings(deployment: Deployment) -> Iterator[Finding]:
    """Return whether a deployment can use the GPUs that it wants, and what there are.

    Args:
        deployment: What is wanted.
    """
    found = find_gpus()
    yield from stack_findings(found, wanted=deployment.flavour == "gpu")
    if deployment.flavour == "cpu":
        return
    try:
        plan = choose_devices(deployment)
    except KitError as error:
        yield wrong(SUBJECT, error)
        return
    for warning in plan.warnings:
        yield Finding("warning", SUBJECT, warning)
    yield ok(SUBJECT, f"up uses {', '.join(device.label for device in plan.devices)}")


def stack_findings(found: GpuStack | NoGpus, *, wanted: bool) -> Iterator[Finding]:
    """Return what there is, whoever wants it.

    Args:
        found: Driver and GPUs.
        wanted: Whether a deployment is to use them; why it cannot is then told elsewhere.
    """
    if isinstance(found, NoGpus):
        if not wanted:
            yield ok(SUBJECT, f"{found.cause}; none is asked for")
        return
    names = ", ".join(gpu.label for gpu in found.gpus) or "no usable GPU"
    yield ok(SUBJECT, f"NVIDIA driver {found.driver}: {names}")
    for broken in found.broken:
        yield Finding("warning", SUBJECT, broken.cause, broken.remedy)
