"""What the API server says of a pod, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.engines.cluster import Object

SERVER = "server"
CONTAINERS: Mapping[str, str] = {SERVER: "triton", "front": "envoy"}
IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_LASTING = (
    *IMAGE_REASONS,
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
)
_RESTARTS = 3


@dataclass(frozen=True)
class PodState:
    """One pod.

    Attributes:
        component: ``server`` or ``front``.
        state: In words: ready, or what it does or waits for.
        image: The digest that its node pulled, or the name where that is not known.
        problem: Why it is not ready, in a line; None: it is.
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
    problem: str | None
    lasting: bool
    revision: str
    containers: Mapping[str, int]


def component_of(each: Object) -> str:
    """Return which part of a deployment an object is, ``server`` or ``front``."""
    return str(each["metadata"]["labels"]["app.kubernetes.io/component"])


def read_pod(pod: Object) -> PodState:
    status, component = pod.get("status", {}), component_of(pod)
    containers = status.get("containerStatuses", ())
    main: Object = next((c for c in containers if c["name"] == CONTAINERS.get(component)), {})
    image = main.get("imageID") or main.get("image") or pod["spec"]["containers"][0]["image"]
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True"
    state, problem, lasting = _waits_for(pod, conditions, containers)
    names = [each["name"] for each in pod["spec"]["containers"]]
    restarts = {each["name"]: each.get("restartCount", 0) for each in containers}
    leaving = "deletionTimestamp" in pod["metadata"]
    return PodState(
        name=pod["metadata"]["name"],
        component=component,
        state="stopping" if leaving else "ready" if ready else state,
        ready=ready and not leaving,
        restarts=sum(restarts.values()),
        image=image.removeprefix("docker-pullable://"),
        problem=None if ready or leaving else problem,
        lasting=lasting,
        revision=pod["metadata"]["labels"].get("pod-template-hash", ""),
        containers={name: restarts.get(name, 0) for name in names},
    )


def _waits_for(
    pod: Object, conditions: Mapping[str, Any], containers: Sequence[Any]
) -> tuple[str, str, bool]:
    """Return what keeps a pod from being ready, in a word and in a line, and whether it lasts."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return "unschedulable", f"no node takes it: {scheduled.get('message', '')}", False
    for container in containers:
        name, waiting = container["name"], container["state"].get("waiting", {})
        reason, ended = waiting.get("reason", ""), container.get("lastState", {}).get("terminated")
        if reason in IMAGE_REASONS:
            what = f"the image {container['image']} cannot be pulled: {waiting.get('message', '')}"
            return reason, what.rstrip(": "), True
        if reason in _LASTING and ended is None:
            return reason, f"container {name}: {waiting.get('message', reason)}", True
        if ended is not None:
            killed = " (OOMKilled)" if ended.get("reason") == "OOMKilled" else ""
            what = f"container {name} ended with status {ended['exitCode']}{killed}"
            often = container["restartCount"] >= _RESTARTS
            return reason or "restarted", what, often or reason in _LASTING
    if not containers:
        return "Pending", "no node has taken it yet", False
    waiting_for = [c["state"]["waiting"]["reason"] for c in containers if "waiting" in c["state"]]
    return (*waiting_for, "starting")[0], "is not ready yet", False
