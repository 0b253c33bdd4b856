"""Stands for a cluster's API server, for the tests of engine kubernetes.

It is no cluster: it stores objects, applies, rehearses, lists, deletes, answers for rights, and has
pods come up in whatever state a test asks for. What it answers is written down from Kubernetes
1.20.2's own, which no package has.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
TOKEN = "secret-token"
GROUPS = {
    "apps": "v1",
    "autoscaling": "v1",
    "networking.k8s.io": "v1",
    "policy": "v1beta1",
    "authorization.k8s.io": "v1",
}
READY: Object = {"conditions": [{"type": "Ready", "status": "True"}]}


def container(name: str, image: str, state: Object, **more: Any) -> Object:
    """Return a container's status."""
    digest = f"docker-pullable://{image}" if "running" in state else ""
    return {"name": name, "image": image, "imageID": digest, "state": state, **more}


def ready(pod: Object) -> Object:
    """Return the status of a pod that serves."""
    statuses = [
        container(each["name"], each["image"], {"running": {}}, restartCount=0)
        for each in pod["spec"]["containers"]
    ]
    return {**READY, "containerStatuses": statuses}


@dataclass
class Cluster:
    """What the server stores and how it behaves; tests change both.

    Attributes:
        pod: Returns the status of a pod that has just been made.
        refuse: Returns why admission refuses an object; None: it does not.
        denied: Verb and plural that the user has no right to.
        logs: Of containers, by pod and container, "previous" after one that has ended.
        health: What the image's command answers in a pod: status and words.
        gave_up: Whether the controller's deadline is over for a Deployment that is not ready.
        broken: What every question is answered with instead; None: nothing is wrong.
    """

    version: str = "v1.20.2"
    objects: dict[str, Object] = field(default_factory=dict)
    pod: Callable[[Object], Object] = ready
    refuse: Callable[[Object], str | None] = lambda each: None
    denied: set[tuple[str, str]] = field(default_factory=set)
    logs: dict[tuple[str, str, bool], str] = field(default_factory=dict)
    health: tuple[int, str] = (0, "ok: 3 models give their reference answers")
    gave_up: bool = False
    broken: str | None = None
    requests: list[str] = field(default_factory=list)
    made: int = 0

    def of_kind(self, kind: str) -> dict[str, Object]:
        return {p: o for p, o in self.objects.items() if o["kind"] == kind}

    def names(self) -> set[tuple[str, str]]:
        """Return kind and name of all that somebody applied."""
        made = ("Namespace", "Pod", "ReplicaSet", "Event")
        found = ((o["kind"], o["metadata"]["name"]) for o in self.objects.values())
        return {(kind, name) for kind, name in found if kind not in made}

    def apply(self, path: str, body: Object) -> Object:
        """Store what is applied, and do at once what the controllers would."""
        former = self.objects.get(path, {"metadata": {"generation": 0}})
        metadata = {**former["metadata"], **body["metadata"]}
        changed = former.get("spec") != body.get("spec")
        metadata["generation"] = former["metadata"]["generation"] + changed
        self.objects[path] = {**former, **body, "metadata": metadata}
        if body["kind"] == "Deployment":
            self._control(path, changed)
        return self.objects[path]

    def _control(self, path: str, changed: bool) -> None:
        deployment = self.objects[path]
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        base = f"/api/v1/namespaces/{namespace}/pods"
        template, wanted = deployment["spec"]["template"], deployment["spec"].get("replicas", 1)
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        labels = {**template["metadata"]["labels"], "pod-template-hash": digest}
        if changed:
            self.made += 1
            notes = {"deployment.kubernetes.io/revision": str(self.made)}
            replicas = path.replace("deployments", "replicasets") + f"-{digest}"
            meta = {"name": f"{name}-{digest}", "labels": labels, "annotations": notes}
            self.objects[replicas] = {"kind": "ReplicaSet", "metadata": meta}
        old = [
            p
            for p, o in self.of_kind("Pod").items()
            if p.startswith(f"{base}/")
            and o["metadata"]["labels"]["app.kubernetes.io/component"]
            == labels["app.kubernetes.io/component"]
            and o["metadata"]["labels"]["pod-template-hash"] != digest
        ]
        for number in range(wanted):
            pod: Object = {"kind": "Pod", "spec": template["spec"]}
            pod["metadata"] = {"name": f"{name}-{digest}-{number}", "labels": labels}
            pod["status"] = self.pod(pod)
            self.objects[f"{base}/{pod['metadata']['name']}"] = pod
        new = [
            o
            for p, o in self.of_kind("Pod").items()
            if p.startswith(f"{base}/")
            and o["metadata"]["labels"].get("pod-template-hash") == digest
        ]
        available = sum(READY["conditions"][0] in o["status"].get("conditions", ()) for o in new)
        if available == wanted:
            for each in old:
                del self.objects[each]
            old = []
        verdict = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
        if self.gave_up and available < wanted:
            verdict = {**verdict, "status": "False", "reason": "ProgressDeadlineExceeded"}
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": wanted + len(old),
            "updatedReplicas": wanted,
            "availableReplicas": available + len(old),
            "readyReplicas": available + len(old),
            "conditions": [verdict],
        }

    def restart(self, name: str) -> str:
        """Replace a Deployment's pods, as ``kubectl rollout restart`` does; return the new one."""
        path = f"/apis/apps/v1/namespaces/physics/deployments/{name}"
        deployment = json.loads(json.dumps(self.objects[path]))
        metadata = deployment["spec"]["template"]["metadata"]
        metadata["annotations"] = {"restarted": str(self.made)}
        self.apply(path, deployment)
        [pod] = self.of_kind("Pod").values()
        return str(pod["metadata"]["name"])

    def delete(self, path: str) -> None:
        gone = self.objects.pop(path)
        if gone["kind"] == "Deployment":
            component = gone["spec"]["selector"]["matchLabels"]
            namespace = f"/namespaces/{gone['metadata']['namespace']}/"
            for each, there in list(self.objects.items()):
                made = there["kind"] in ("Pod", "ReplicaSet") and namespace in each
                if made and component.items() <= there["metadata"].get("labels", {}).items():
                    del self.objects[each]

    def event(self, pod: str, message: str) -> None:
        """Say something of a pod, as the kubelet does, after all that it has said before."""
        number = len(self.of_kind("Event"))
        about = {
            "kind": "Event",
            "reason": "Unhealthy",
            "message": message,
            "lastTimestamp": f"2026-01-01T00:00:{number:02}Z",
        }
        meta = {"name": f"{pod}.{number}", "namespace": "physics"}
        event = {**about, "metadata": meta, "type": "Warning", "involvedObject": {"name": pod}}
        self.objects[f"/api/v1/namespaces/physics/events/{pod}.{number}"] = event


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        self.cluster.requests.append(f"{self.command} {self.path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "Unauthorized")
        elif self.cluster.broken is not None:
            self._refuse(500, self.cluster.broken)
        elif url.path.endswith("/exec"):
            self._execute()
        elif url.path.endswith("/log"):
            self._log(url.path.split("/"), query)
        else:
            getattr(self, f"_{self.command.lower()}")(url.path, query, body)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _get(self, path: str, query: dict[str, str], _body: Object) -> None:
        if path == "/version":
            self._answer({"gitVersion": self.cluster.version})
        elif path == "/apis":
            versions = {name: {"groupVersion": f"{name}/{v}"} for name, v in GROUPS.items()}
            groups = [{"name": name, "preferredVersion": v} for name, v in versions.items()]
            self._answer({"groups": groups})
        elif path in self.cluster.objects:
            self._answer(self.cluster.objects[path])
        elif path.rpartition("/")[2] in PLURALS:
            below = [o for p, o in self.cluster.objects.items() if p.rpartition("/")[0] == path]
            self._answer({"items": [each for each in below if _selected(each, query)]})
        else:
            self._refuse(404, f"{path.rpartition('/')[2]} not found")

    def _post(self, path: str, query: dict[str, str], body: Object) -> None:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.cluster.denied
            self._answer({**body, "status": {"allowed": allowed}})
        elif (why := self.cluster.refuse(body)) is not None:
            self._refuse(403, why)
        else:
            assert query["dryRun"] == "All"
            self._answer(body)

    def _patch(self, path: str, query: dict[str, str], body: Object) -> None:
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        assert query["fieldManager"] == "numlkit"
        if (why := self.cluster.refuse(body)) is not None:
            self._refuse(403, why)
        elif "dryRun" in query:
            self._answer(body)
        else:
            self._answer(self.cluster.apply(path, body))

    def _delete(self, path: str, _query: dict[str, str], _body: Object) -> None:
        if path not in self.cluster.objects:
            self._refuse(404, "not found")
            return
        self.cluster.delete(path)
        self._answer({"kind": "Status", "status": "Success"})

    def _log(self, parts: list[str], query: dict[str, str]) -> None:
        key = (parts[6], query["container"], query.get("previous", "false").lower() == "true")
        if ("get", "pods/log") in self.cluster.denied:
            self._refuse(403, f'pods "{key[0]}" is forbidden: User "u" cannot get "pods/log"')
            return
        if key not in self.cluster.logs:
            self._refuse(400, f'container "{key[1]}" in pod "{key[0]}" is waiting to start')
            return
        lines = self.cluster.logs[key].splitlines(keepends=True)
        if "tailLines" in query:
            lines = lines[len(lines) - int(query["tailLines"]) :]
        if query.get("follow", "false").lower() == "true":
            self._stream("/".join(parts[:-1]), key, "".join(lines))
        else:
            self._send(200, "".join(lines).encode(), "text/plain")

    def _stream(self, pod: str, key: tuple[str, str, bool], text: str) -> None:
        """Send what a log has and gets, until its pod is gone or its container is another."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = self.cluster.logs[key]
        while pod in self.cluster.objects and self.cluster.logs[key].startswith(sent):
            if text:
                self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
            time.sleep(0.01)
            text = self.cluster.logs[key][len(sent) :]
            sent += text
        self.wfile.write(b"0\r\n\r\n")

    def _execute(self) -> None:
        """Answer as exec does: a websocket (RFC 6455), a channel's number before each message."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        status, said = self.cluster.health
        ended: Object = {"status": "Success"}
        if status:
            cause = {"reason": "ExitCode", "message": str(status)}
            details = {"causes": [cause]}
            ended = {"status": "Failure", "reason": "NonZeroExitCode", "details": details}
        for channel, text in ((b"\1", said), (b"\3", json.dumps(ended))):
            data = channel + text.encode()
            self.wfile.write(struct.pack("!BBH", 0x82, 126, len(data)) + data)
        self.wfile.write(struct.pack("!BBH", 0x88, 2, 1000))
        self.close_connection = True

    def _answer(self, document: Object) -> None:
        self._send(200, json.dumps(document).encode(), "application/json")

    def _refuse(self, status: int, message: str) -> None:
        document = {"kind": "Status", "status": "Failure", "message": message, "code": status}
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


PLURALS = {
    *("pods", "events", "nodes", "replicasets", "deployments", "services", "configmaps"),
    *("serviceaccounts", "networkpolicies", "poddisruptionbudgets", "horizontalpodautoscalers"),
}


def _selected(each: Object, query: dict[str, str]) -> bool:
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if each["metadata"].get("labels", {}).get(key) != value:
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = term.partition("=")
        found: Any = each
        for part in key.split("."):
            found = found[part]
        if found != value:
            return False
    return True


@contextmanager
def serve(cluster: Cluster) -> Iterator[str]:
    """Serve a cluster on loopback; yield its address."""
    cluster.objects.setdefault(
        "/api/v1/namespaces/physics", {"kind": "Namespace", "metadata": {"name": "physics"}}
    )
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(file: Path, url: str) -> None:
    """Write how a user reaches it: context ``site``, namespace ``physics``."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [
            {"name": "site", "context": {"cluster": "c", "user": "u", "namespace": "physics"}}
        ],
        "current-context": "site",
    }
    file.write_text(json.dumps(document))
