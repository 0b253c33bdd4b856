"""One namespace of a cluster, through Kubernetes' official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

from deploy.deployment.state import Place
from deploy.host.errors import ClusterError, EnvironmentSetupError

Object = dict[str, Any]

_TIMEOUT_S = 8.0
_EXEC_S = 120.0
MANAGER = "numlkit"
# API group and plural of what the chart renders, in the order it is applied in.
KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ServiceAccount": ("", "serviceaccounts"),
        "ConfigMap": ("", "configmaps"),
        "Service": ("", "services"),
        "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
        "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
        "Route": ("route.openshift.io", "routes"),
        "GRPCRoute": ("gateway.networking.k8s.io", "grpcroutes"),
        "ServiceMonitor": ("monitoring.coreos.com", "servicemonitors"),
        "PodMonitor": ("monitoring.coreos.com", "podmonitors"),
        "PrometheusRule": ("monitoring.coreos.com", "prometheusrules"),
        "Deployment": ("apps", "deployments"),
        "HorizontalPodAutoscaler": ("autoscaling", "horizontalpodautoscalers"),
        "ScaledObject": ("keda.sh", "scaledobjects"),
    }
)


def rank(each: Object) -> int:
    """Return an object's place in that order."""
    return list(KINDS).index(each["kind"])


def needed(module: str) -> Any:
    """Return one of the clients' modules, which are installed for this engine only.

    Raises:
        EnvironmentSetupError: If they are not.
    """
    try:
        return import_module(module)
    except ImportError:
        cause = f"engine kubernetes needs the Python package {module}, which is not installed"
        raise EnvironmentSetupError(cause, "scripts/kit-environment --kubernetes") from None


@dataclass(frozen=True)
class Cluster:
    """A namespace of a cluster. What asks it raises `ClusterError` if refused or not heard.

    Attributes:
        client: The official client, as the kubeconfig says.
        context: The kubeconfig's, or empty in a pod.
    """

    client: Any
    context: str
    namespace: str

    @classmethod
    def connect(cls, place: Place) -> Cluster:
        """Return the kubeconfig's cluster, or in a pod without one its own; nothing is asked."""
        config, api = needed("kubernetes.config"), needed("kubernetes.client")
        settings = api.Configuration()
        settings.retries = False
        # Anyone whose kubeconfig skips this check knows about it.
        needed("urllib3").disable_warnings(needed("urllib3.exceptions").InsecureRequestWarning)
        try:
            contexts, active = config.list_kube_config_contexts()
            named = place.context or active["name"]
            chosen = next((each for each in contexts if each["name"] == named), None)
            if chosen is None:
                there = ", ".join(each["name"] for each in contexts)
                raise ClusterError(f"the kubeconfig has no context {named!r}", f"one of: {there}")
            config.load_kube_config(context=named, client_configuration=settings)
            namespace = place.namespace or chosen["context"].get("namespace", "default")
            return cls(api.ApiClient(settings), named, namespace)
        except config.ConfigException as error:
            try:
                config.load_incluster_config(client_configuration=settings)
            except config.ConfigException:
                cause = f"no cluster is configured: {' '.join(str(error).split())}"
                raise ClusterError(cause, "KUBECONFIG=FILE, or log in to the cluster") from None
            return cls(api.ApiClient(settings), "", place.namespace or "default")

    @property
    def place(self) -> Place:
        return Place(context=self.context or None, namespace=self.namespace)

    @property
    def where(self) -> str:
        return f"namespace {self.namespace} of {self.context or 'this cluster'}"

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn the client's errors into the kit's, in one line."""
        refused = needed("kubernetes.client.exceptions").ApiException
        try:
            yield
        except refused as error:
            raise _refusal(error) from None
        except needed("urllib3.exceptions").HTTPError as error:
            host, why = self.client.configuration.host, getattr(error, "reason", None) or error
            remedy = "check the network and the context, with kubectl cluster-info"
            raise ClusterError(f"{host} does not answer: {_last_part(why)}", remedy) from None

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Return the API server's answer.

        Args:
            options: As `kubernetes.dynamic.DynamicClient.request` takes them.
        """
        dynamic = needed("kubernetes.dynamic")
        # Its discovery would ask for every kind, and cache them in a file in /tmp.
        asking = dynamic.DynamicClient(self.client, discoverer=lambda *_: None)
        with self._refusals():
            answer = asking.request(
                method, path, body=body, serialize=False, _request_timeout=_TIMEOUT_S, **options
            )
            return json.loads(answer.data)

    @cached_property
    def version(self) -> str:
        """The API server's, as in ``v1.20.2``."""
        return str(self.ask("get", "/version")["gitVersion"])

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """The API groups that are served, each with its preferred version."""
        found = self.ask("get", "/apis")["groups"]
        return {g["name"]: g["preferredVersion"]["groupVersion"] for g in found} | {"": "v1"}

    def path(self, kind: str, version: str, name: str = "") -> str:
        """Return where objects of a kind are, or one of them."""
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{base}/namespaces/{self.namespace}/{KINDS[kind][1]}" + f"/{name}" * bool(name)

    def path_of(self, each: Object) -> str:
        return self.path(each["kind"], each["apiVersion"], each["metadata"]["name"])

    def find(self, path: str) -> Object | None:
        try:
            found: Object = self.ask("get", path)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise
        return found

    def apply(self, each: Object, *, dry_run: bool = False) -> None:
        """Apply an object, server-side; a dry run goes through admission."""
        options = {"dry_run": "All"} if dry_run else {}
        # What someone scaled or edited is reset to what the deployment says.
        self.ask(
            "patch",
            self.path_of(each),
            body=each,
            content_type="application/apply-patch+yaml",
            field_manager=MANAGER,
            force_conflicts=True,
            **options,
        )

    def owned(self, labels: str) -> list[Object]:
        """Return all objects with these labels, of the kinds that the chart renders."""
        found: list[Object] = []
        for kind, (group, _) in KINDS.items():
            if group not in self.groups:
                continue
            version = self.groups[group]
            try:
                listed = self.ask("get", self.path(kind, version), label_selector=labels)["items"]
            except ClusterError as error:
                # A group need not have the kind; a kind that nobody may see has no objects.
                if error.status not in (403, 404) or not group:
                    raise
                continue
            found += [{**each, "kind": kind, "apiVersion": version} for each in listed]
        return found

    def delete(self, each: Object) -> None:
        """Delete an object, and first what it owns."""
        body = {"propagationPolicy": "Foreground"}
        try:
            self.ask("delete", self.path_of(each), body=body)
        except ClusterError as error:
            if error.status != 404:
                raise

    def listed(self, what: str, **options: str) -> list[Object]:
        path = f"/api/v1/namespaces/{self.namespace}/{what}"
        found: list[Object] = self.ask("get", path, **options)["items"]
        return found

    def may(self, verb: str, group: str, plural: str, subresource: str = "") -> bool:
        """Return whether this user may, as the API server says (SelfSubjectAccessReview)."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "subresource": subresource}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self.ask("post", path, body=body)["status"]["allowed"])

    def log(
        self,
        pod: str,
        container: str,
        *,
        tail: int | None,
        previous: bool = False,
        follow: bool = False,
    ) -> Iterator[bytes]:
        """Yield a container's last lines (None: all) without line ends, then those that follow."""
        core = needed("kubernetes.client").CoreV1Api(self.client)
        with self._refusals():
            answer = core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                tail_lines=tail,
                previous=previous,
                follow=follow,
                _preload_content=False,
                _request_timeout=None if follow else _TIMEOUT_S,
            )
            begun = b""
            for chunk in answer.stream():
                *lines, begun = (begun + chunk).split(b"\n")
                yield from lines
            if begun:
                yield begun

    def execute(self, pod: str, container: str, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in a container; return its exit status and output."""
        core = needed("kubernetes.client").CoreV1Api(self.client)
        with self._refusals():
            process = needed("kubernetes.stream").stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container=container,
                command=list(command),
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
                _preload_content=False,
            )
            process.run_forever(timeout=_EXEC_S)
            if process.is_open():
                process.close()
                return 1, f"no answer within {_EXEC_S:.0f} s"
            channel = needed("kubernetes.stream.ws_client").ERROR_CHANNEL
            return _ended(process.read_channel(channel), str(process.read_all()))


def _ended(status: str, said: str) -> tuple[int, str]:
    """Return how a command ended, by the document about it, and what it said."""
    try:
        document = json.loads(status)
    except ValueError:  # none came: the pod is gone, or the way to it
        return 1, "the connection to the pod broke"
    if document.get("status") == "Success":
        return 0, said
    if document.get("reason") == "NonZeroExitCode":
        return int(document["details"]["causes"][0]["message"]), said
    return 1, str(document.get("message") or "the cluster does not say why it failed")


def _refusal(error: Any) -> ClusterError:
    # In a refused websocket's reason the document follows the headers.
    found = re.search(r'"message": ?("(?:[^"\\]|\\.)*")', error.body or str(error.reason))
    said = json.loads(found[1]) if found is not None else error.reason or f"{error.status}"
    remedy = None
    if error.status == 401:
        said, remedy = "the cluster does not know this user", "log in to the cluster again"
    elif error.status == 403 and "cannot" in said:
        remedy = "numlkit doctor, with the deployment file, lists the missing permissions"
    return ClusterError(" ".join(str(said).split()), remedy, status=error.status or 0)


def _last_part(error: object) -> str:
    """Return a urllib3 error without the objects and numbers at its start."""
    return re.sub(r"\[Errno -?\d+\] ", "", str(error).rpartition(": ")[2]) or type(error).__name__
