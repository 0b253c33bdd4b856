"""What the API server says about a pod, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.engines.cluster import Object

SERVER = "server"
CONTAINERS: Mapping[str, str] = {SERVER: "triton", "front": "envoy"}
# The chart's containers in a server's pod, all of the kit's image; others may add their own.
KIT_CONTAINERS = (CONTAINERS[SERVER], "sync", "watch")
IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_LASTING = (
    *IMAGE_REASONS,
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
)
OUT_OF_MEMORY = "OOMKilled"
_RESTARTS = 3


@dataclass(frozen=True)
class PodState:
    """One pod.

    Attributes:
        component: ``server`` or ``front``.
        state: In words: ready, or what it does or waits for.
        image: The digest that its node pulled, or the name where that is not known.
        images: The same of each container.
        problem: Why it is not ready, in a line; None: it is.
        failing: The container that the problem names, if any.
        lasting: Whether waiting would not mend that.
        revision: Names the template that it was made from.
        containers: How often each was restarted; the first is the server, or the front door.
    """

    name: str
    component: str
    state: str
    ready: bool
    restarts: int
    image: str
    images: Mapping[str, str]
    problem: str | None
    failing: str | None
    lasting: bool
    revision: str
    containers: Mapping[str, int]


def component_of(each: Object) -> str:
    """Return which part of a deployment an object is, ``server`` or ``front``."""
    return str(each["metadata"]["labels"]["app.kubernetes.io/component"])


def read_pod(pod: Object) -> PodState:
    status, component = pod.get("status", {}), component_of(pod)
    containers = status.get("containerStatuses", ())
    images = {each["name"]: each["image"] for each in pod["spec"]["containers"]}
    for each in containers:
        image = each.get("imageID") or each["image"]
        images[each["name"]] = image.removeprefix("docker-pullable://")
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True"
    state, problem, lasting, failing = _waits_for(pod, conditions, containers)
    restarts = {each["name"]: each.get("restartCount", 0) for each in containers}
    leaving = "deletionTimestamp" in pod["metadata"]
    well = ready or leaving
    return PodState(
        name=pod["metadata"]["name"],
        component=component,
        state="stopping" if leaving else "ready" if ready else state,
        ready=ready and not leaving,
        restarts=sum(restarts.values()),
        image=images.get(CONTAINERS.get(component, ""), pod["spec"]["containers"][0]["image"]),
        images=images,
        problem=None if well else problem,
        failing=None if well else failing,
        lasting=lasting,
        revision=pod["metadata"]["labels"].get("pod-template-hash", ""),
        containers={name: restarts.get(name, 0) for name in images},
    )


def _waits_for(
    pod: Object, conditions: Mapping[str, Any], containers: Sequence[Any]
) -> tuple[str, str, bool, str | None]:
    """Return what keeps a pod from being ready.

    Returns:
        It in a word and in a line, whether it lasts, and the container that it names, if any.
    """
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return "unschedulable", f"no node can take it: {scheduled.get('message', '')}", False, None
    for container in containers:
        name, waiting = container["name"], container["state"].get("waiting", {})
        reason, ended = waiting.get("reason", ""), container.get("lastState", {}).get("terminated")
        if reason in IMAGE_REASONS:
            what = f"the image {container['image']} cannot be pulled: {waiting.get('message', '')}"
            return reason, what.rstrip(": "), True, name
        if reason in _LASTING and ended is None:
            return reason, f"container {name}: {waiting.get('message', reason)}", True, name
        if ended is not None:
            killed = f" ({OUT_OF_MEMORY})" if ended.get("reason") == OUT_OF_MEMORY else ""
            what = f"container {name} exited with status {ended['exitCode']}{killed}"
            often = container["restartCount"] >= _RESTARTS
            return reason or "restarted", what, often or reason in _LASTING, name
    if not containers:
        return "Pending", "no node has taken it yet", False, None
    waiting_for = [c["state"]["waiting"]["reason"] for c in containers if "waiting" in c["state"]]
    return (*waiting_for, "starting")[0], "is not ready yet", False, None
