"""One deployment in a cluster: its objects and pods, what holds them up, and their removal."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from deploy.artefacts.reference import Reference, parse_reference
from deploy.engines.cluster import KINDS, MANAGER, Cluster, Object, rank
from deploy.engines.pods import (
    CONTAINERS,
    IMAGE_REASONS,
    KIT_CONTAINERS,
    OUT_OF_MEMORY,
    SERVER,
    PodState,
    component_of,
    read_pod,
)
from deploy.host.console import Say, counted
from deploy.host.errors import ClusterError, LaunchError, NotRunningError
from deploy.host.failures import diagnose, last_words
from deploy.triton.command import IMAGE_HEALTH

MODELS_NOTE, URL_NOTE = "numlkit/models", "numlkit/url"
_POLL_S = 1.0
# A registry may fail once, and a container may start too early once.
PATIENCE_S = 30.0
_SLACK_S = 30.0


@dataclass(frozen=True)
class Status:
    """A deployment in a cluster: pods that are ready and wanted by component, and each pod."""

    ready: Mapping[str, tuple[int, int]]
    pods: tuple[PodState, ...]
    models: tuple[str, ...]
    url: str | None

    @property
    def table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Columns and rows, for people."""
        columns = ("pod", "of", "state", "restarts", "image")
        return columns, [
            [p.name, p.component, p.state, str(p.restarts), p.image] for p in self.pods
        ]

    @property
    def problems(self) -> list[str]:
        """What is wrong, a line each."""
        short = [
            f"{n} of {m} pods of the {c} are ready" for c, (n, m) in self.ready.items() if n < m
        ]
        return short + [f"pod {pod.name}: {pod.problem}" for pod in self.pods if pod.problem]


class Rollout:
    """Everything the kit has created in a cluster under one name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.labels = f"app.kubernetes.io/managed-by={MANAGER},app.kubernetes.io/instance={name}"
        self._pod_labels = f"app.kubernetes.io/name=numl,app.kubernetes.io/instance={name}"

    def deployments(self) -> list[Object]:
        """Return the Deployments, the server's first."""
        path = self.cluster.path("Deployment", "apps/v1")
        items = self.cluster.ask("get", path, label_selector=self.labels)["items"]
        found = [each for each in items if "deletionTimestamp" not in each["metadata"]]
        return sorted(found, key=lambda each: component_of(each) != SERVER)

    def require(self) -> list[Object]:
        """Return the Deployments; NotRunningError if there are none."""
        found = self.deployments()
        if not found:
            cause = f"no deployment named {self.name!r} in {self.cluster.where}"
            raise NotRunningError(cause, f"numlkit up --engine kubernetes --name {self.name}")
        return found

    def pods(self) -> list[PodState]:
        """Return the pods, each with what it waits for."""
        found = self.cluster.listed("pods", label_selector=self._pod_labels)
        pods = sorted(map(read_pod, found), key=lambda pod: (pod.component != SERVER, pod.name))
        return [self._explained(pod) for pod in pods]

    def _explained(self, pod: PodState) -> PodState:
        """Add the cluster's recent events about a pod: which model is not ready, which Secret."""
        if pod.problem is None or pod.lasting or pod.state == "unschedulable":
            return pod
        about = f"involvedObject.name={pod.name},type=Warning"
        told = self.cluster.listed("events", field_selector=about)
        # Only liveness kills a container; other probes' messages may be about the next one.
        probes = "Liveness" if pod.failing is not None else ""
        events = [
            e
            for e in told
            if e["reason"].startswith(("Failed", "BackOff"))
            or (e["reason"] == "Unhealthy" and e["message"].startswith(probes))
        ]
        if not events:
            return pod
        last = max(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
        said = " ".join(str(last["message"]).split())
        return replace(pod, problem=f"{pod.problem}: {said}")

    def status(self) -> Status:
        found = self.require()
        notes = found[0]["metadata"].get("annotations", {})
        counts = {
            component_of(each): (
                each.get("status", {}).get("readyReplicas", 0),
                each["spec"].get("replicas", 1),
            )
            for each in found
        }
        models = tuple(filter(None, notes.get(MODELS_NOTE, "").split(",")))
        return Status(counts, tuple(self.pods()), models, notes.get(URL_NOTE))

    def document(self, status: Status) -> dict[str, Any]:
        """Return a status for programs."""
        counts = {what: {"ready": n, "wanted": of} for what, (n, of) in status.ready.items()}
        return {
            "name": self.name,
            "engine": "kubernetes",
            **self.cluster.place.model_dump(),
            "ready": counts,
            "pods": [asdict(pod) for pod in status.pods],
            "models": list(status.models),
            "url": status.url,
        }

    def wait(self, say: Say, names: Collection[str], deadline: float) -> None:
        """Wait until every pod is new and ready.

        Args:
            names: Of the Deployments; former ones that are to go are not waited for.
            deadline: Seconds without any progress after which the cluster's own verdict is
                not waited for.

        Raises:
            LaunchError: With the cause, once one lasts or the cluster itself gives up.
        """
        last, changed = "", time.monotonic()
        faults: dict[str, float] = {}
        while True:
            found = [each for each in self.deployments() if each["metadata"]["name"] in names]
            if not found:
                raise LaunchError("stopped by another command while it was starting")
            if all(map(_is_done, found)):
                return
            now = time.monotonic()
            pods = self._new_pods(found)
            waiting = [pod for pod in pods if pod.problem]
            faults = {p.name: faults.get(p.name, now) for p in waiting if p.lasting}
            for pod in waiting:
                if pod.lasting and now - faults[pod.name] >= PATIENCE_S:
                    raise self._failure(pod)
            counts = "; ".join(_progress(each, pods) for each in found)
            said = "; ".join([counts, *(f"{p.name}: {p.problem}" for p in waiting[:1])])
            if said != last:
                say(said)
            if not last.startswith(counts):
                changed = now
            last = said
            for each in found:
                self._check_verdict(each, waiting)
            if now - changed > deadline + _SLACK_S:
                raise self._given_up(waiting, f"nothing has changed for {now - changed:.0f} s")
            time.sleep(_POLL_S)

    def _new_pods(self, found: Sequence[Object]) -> list[PodState]:
        """Return the pods of the newest templates: they replace all others."""
        if not all(map(_is_seen, found)):
            return []
        path = f"/apis/apps/v1/namespaces/{self.cluster.namespace}/replicasets"
        sets = self.cluster.ask("get", path, label_selector=self._pod_labels)["items"]
        newest = {component_of(each): _revision(each) for each in sorted(sets, key=_revision)}
        hashes = {
            each["metadata"]["labels"].get("pod-template-hash")
            for each in sets
            if _revision(each) == newest[component_of(each)]
        }
        return [pod for pod in self.pods() if pod.revision in hashes]

    def _check_verdict(self, each: Object, pods: Sequence[PodState]) -> None:
        """Raise if the cluster says that a Deployment will not succeed."""
        if not _is_seen(each):
            return  # it is of the former one
        for condition in each["status"].get("conditions", ()):
            kind, reason = condition["type"], condition.get("reason")
            if kind == "ReplicaFailure" and condition["status"] == "True":
                cause = f"the cluster creates no pods: {condition['message']}"
                raise LaunchError(cause, "change what it refuses, or ask its administrators")
            if kind == "Progressing" and reason == "ProgressDeadlineExceeded":
                raise self._given_up(pods, "the cluster's deadline (startupSeconds) has passed")

    def _given_up(self, pods: Sequence[PodState], why: str) -> LaunchError:
        if pods:
            return self._failure(pods[0])
        remedy = "numlkit doctor, with the deployment file"
        return LaunchError(f"{self.name} did not become ready: {why}", remedy)

    def _failure(self, pod: PodState) -> LaunchError:
        """Return why a pod fails; if it crashes, with what its log says."""
        cause, remedy = f"pod {pod.name}: {pod.problem}", "numlkit doctor, with the deployment file"
        if pod.state in IMAGE_REASONS:
            remedy = "check --image; a registry with a password needs image.pullSecrets"
        elif pod.state == "unschedulable":
            remedy = "smaller --memory and --cpus, or nodes with room (kubectl describe nodes)"
        elif OUT_OF_MEMORY in cause:
            remedy = "a larger --memory, or value resources.limits.memory"
        elif pod.failing is not None and pod.containers[pod.failing]:
            # After a failed first launch nothing is left that has a log.
            remedy = f"numlkit logs --follow --name {self.name}, while up runs again"
            log = self._last_log(pod.name, pod.failing)
            known = diagnose(log)
            cause += f": {known.cause if known is not None else last_words(log)}"
            remedy = known.remedy or remedy if known is not None else remedy
        return LaunchError(cause, remedy)

    def _last_log(self, pod: str, container: str) -> str:
        """Return the last output of a crashed container."""
        for previous in (True, False):
            try:
                lines = self.cluster.log(pod, container, tail=200, previous=previous)
                return b"\n".join(lines).decode(errors="replace")
            except ClusterError:
                continue
        return ""

    def ask_pods(self) -> Iterator[tuple[PodState, int, str]]:
        """Have each ready server give its reference answers; yield status and output."""
        for pod in self.pods():
            if pod.component == SERVER and pod.ready:
                status, said = self.cluster.execute(pod.name, CONTAINERS[SERVER], IMAGE_HEALTH)
                yield pod, status, " ".join(said.split())

    def images(self) -> list[Reference]:
        """Return the images that the ready servers run, by the digests that their nodes pulled.

        Raises:
            LaunchError: If a node does not report it.
        """
        found = {}
        for pod in self.pods():
            if pod.component != SERVER or not pod.ready:
                continue
            for image in (pod.images[name] for name in KIT_CONTAINERS if name in pod.images):
                if "@sha256:" not in image:
                    cause = f"pod {pod.name}: its node does not report which image it pulled"
                    remedy = "numlkit up with --image HOST/REPOSITORY@sha256:... --verify KEY"
                    raise LaunchError(f"{cause}: {image}", remedy)
                found[image] = parse_reference(image)
        if not found:
            raise NotRunningError(
                f"no pod of {self.name} is ready", f"numlkit status --name {self.name}"
            )
        return list(found.values())

    def prune(self, kept: Sequence[Object]) -> None:
        """Delete what the kit created under this name and the deployment no longer asks for."""
        names = {(each["kind"], each["metadata"]["name"]) for each in kept}
        owned = self.cluster.owned(self.labels)
        gone = [each for each in owned if (each["kind"], each["metadata"]["name"]) not in names]
        for each in sorted(gone, key=rank, reverse=True):
            self.cluster.delete(each)

    def remove(self, say: Say) -> bool:
        """Delete everything; return whether there was anything.

        The pods go first, and the rest once they have drained: until then clients find them.
        """
        owned = sorted(self.cluster.owned(self.labels), key=rank, reverse=True)
        pods_first = [each for each in owned if rank(each) >= list(KINDS).index("Deployment")]
        for each in pods_first:
            self.cluster.delete(each)
        said = ""
        while left := self.cluster.listed("pods", label_selector=self._pod_labels):
            grace = max(pod["spec"].get("terminationGracePeriodSeconds", 30) for pod in left)
            words = f"waiting for {counted(len(left), 'pod')} to drain (at most {grace} s)"
            if words != said:
                say(words)
                said = words
            time.sleep(_POLL_S)
        for each in owned:
            if each not in pods_first:
                self.cluster.delete(each)
        return bool(owned)


def _is_seen(each: Object) -> bool:
    """Return whether a Deployment's status describes what was last applied."""
    seen = each.get("status", {}).get("observedGeneration", 0)
    return bool(seen >= each["metadata"]["generation"])


def _revision(each: Object) -> int:
    """Return the number that the cluster gives to a ReplicaSet: the newest has the highest."""
    notes = each["metadata"].get("annotations", {})
    return int(notes.get("deployment.kubernetes.io/revision", 0))


def _is_done(each: Object) -> bool:
    """Return whether a Deployment's pods are all new and ready (as kubectl rollout status does)."""
    status, wanted = each.get("status", {}), each["spec"].get("replicas", 1)
    return (
        _is_seen(each)
        and status.get("updatedReplicas", 0) >= wanted
        and status.get("replicas", 0) <= status.get("updatedReplicas", 0)
        and status.get("availableReplicas", 0) >= wanted
    )


def _progress(each: Object, pods: Sequence[PodState]) -> str:
    """Return how many new pods of a Deployment are ready."""
    new = sum(pod.ready and pod.component == component_of(each) for pod in pods)
    return f"{each['metadata']['name']}: {new} of {each['spec'].get('replicas', 1)} new pods ready"
