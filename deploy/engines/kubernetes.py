"""The engine that runs the servers in a cluster: the chart's objects, rendered and applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.artefacts.cosign import verify_image
from deploy.artefacts.keys import Signer
from deploy.artefacts.reference import Reference, parse_reference
from deploy.deployment.deployment import ClusterName, Deployment
from deploy.deployment.state import DeploymentFolder, Place
from deploy.engines.chart import merge, read_values, render_chart, validate
from deploy.engines.cluster import KINDS, MANAGER, Cluster, Object, rank
from deploy.engines.pods import SERVER, component_of
from deploy.engines.rollout import MODELS_NOTE, URL_NOTE, Rollout
from deploy.host.console import Say
from deploy.host.errors import ClusterError, DeploymentError, KitError, LaunchError
from deploy.host.finding import Finding, ok, refuse, wrong

GPU = "nvidia.com/gpu"
_FROM_BUCKET = "the image has the kit's own; publish others to a bucket, for the value bucket.url"
_ELSEWHERE = {
    "devices": "the cluster chooses the GPUs: --gpu without numbers",
    "env": "pods run the kit's image",
    "archive": "pods run the kit's image",
    "triton": "the image has its Triton",
    "listen": "the chart's Services have the addresses",
    "ports": "the chart's Services have the ports",
    "tls": "the front door has the certificate of the Secret frontDoor.tlsSecret",
    "shm_size": "the value shmMiPerInstance sizes it",
    "shared_memory": "clients are on other hosts",
    "heal": "the kubelet restarts what fails",
}
"""Fields that do not apply to a cluster, and why."""
_PUBLISHED = ("models_dir", "checkpoints", "norms", "threads", "batch")
_VERBS = ("get", "create", "patch", "delete")
# Permissions needed in a namespace besides its objects', by group, plural and subresource.
_RIGHTS: Mapping[tuple[str, str, str], tuple[str, ...]] = {
    ("", "pods", ""): ("list",),
    ("", "events", ""): ("list",),
    ("apps", "replicasets", ""): ("list",),
    ("", "pods", "log"): ("get",),
    ("", "pods", "exec"): ("create",),
}


class KubernetesEngine:
    """Runs a deployment as the chart's objects in one namespace of a cluster."""

    name: ClusterName = "kubernetes"
    subject = "engine kubernetes"

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, asked = deployment, deployment.kubernetes
        self._place = Place(context=asked.context, namespace=asked.namespace)

    def check_able(self) -> None:
        """Refuse a deployment that asks for something a cluster does not have."""
        deployment = self.deployment
        given = _given(deployment)
        for field in (*_ELSEWHERE, *_PUBLISHED):
            if field not in given or (field in _PUBLISHED and self._bucket):
                continue
            why = _ELSEWHERE.get(field, _FROM_BUCKET)
            raise DeploymentError(f"{field} does not apply to engine {self.name}: {why}")
        if "_" in deployment.name or "." in deployment.name or deployment.name.endswith("-"):
            cause = f"name: {deployment.name!r} is not a name for Kubernetes"
            raise DeploymentError(cause, "lower-case letters, digits, and dashes between them")

    @property
    def _bucket(self) -> str:
        return str(self.values().get("bucket", {}).get("url", ""))

    def verified(self, signer: Signer) -> Reference:
        """Check that the pods' image is signed; it has to be named by its digest."""
        objects = self.render(self.deployment.kubernetes.namespace or "default")
        [server] = filter(_is_servers, objects)
        image = server["spec"]["template"]["spec"]["containers"][0]["image"]
        reference = parse_reference(image)
        if not reference.digest:
            cause = f"--verify needs an image by its digest, not {image}: a tag may be moved"
            raise DeploymentError(cause, "--image HOST/REPOSITORY@sha256:..., or image.digest")
        verify_image(reference, signer)
        return reference

    def values(self) -> dict[str, Any]:
        """Return the chart's values: the values files, overridden by the deployment."""
        deployment, given = self.deployment, _given(self.deployment)
        merged: dict[str, Any] = {}
        for name in deployment.kubernetes.values:
            merge(merged, read_values(name))
        if deployment.image is not None:
            image = parse_reference(deployment.image)
            asked = {"repository": image.name, "tag": image.tag, "digest": image.digest}
            merge(merged, {"image": {what: word for what, word in asked.items() if word}})
        if "models" in given:
            merged["models"] = list(deployment.models)
        if deployment.instances is not None:
            merged["instances"] = deployment.instances
        if "timeout" in given:
            merged["startupSeconds"] = max(30, round(deployment.timeout))
        resources: dict[str, dict[str, Any]] = {"requests": {}, "limits": {}}
        if deployment.cpus is not None:
            resources["requests"]["cpu"] = str(deployment.cpus)
        if deployment.memory is not None:
            for own in resources.values():
                own["memory"] = str(int(deployment.memory))
        if deployment.flavour == "gpu":
            merged["device"] = "gpu"
            for which, own in resources.items():
                if GPU not in merged.get("resources", {}).get(which, {}):
                    own[GPU] = 1
        merge(merged, {"resources": {which: each for which, each in resources.items() if each}})
        return merged

    def render(self, namespace: str, version: str | None = None) -> list[Object]:
        """Return the objects, in the order they are applied in. No cluster is asked.

        Args:
            version: The API server's, which decides between old and new kinds; None: the newest.

        Raises:
            DeploymentError: If the chart refuses the values.
        """
        objects, models = render_chart(self.values(), self.deployment.name, namespace, version)
        for each in objects:
            # These two labels find it again, and tell it from a Helm release.
            each["metadata"]["labels"]["app.kubernetes.io/managed-by"] = MANAGER
            if _is_servers(each):
                notes = {MODELS_NOTE: ",".join(models)}
                if self.deployment.kubernetes.url is not None:
                    notes[URL_NOTE] = self.deployment.kubernetes.url
                each["metadata"]["annotations"] = notes
        return sorted(objects, key=rank)

    def dry_run(self) -> list[Object]:
        """Return what a launch would apply, without asking a cluster: namespaces as in the file."""
        objects = self.render(self.deployment.kubernetes.namespace or "default")
        validate(objects)
        return objects

    def launch(self, folder: DeploymentFolder, say: Say) -> Rollout:
        """Apply the objects and wait until every pod is ready.

        If a first launch fails or is interrupted, nothing is left. If an upgrade does, the old pods
        serve on.

        Args:
            folder: Where this host remembers which cluster runs it.

        Raises:
            LaunchError: With what keeps the pods from being ready.
        """
        cluster = Cluster.connect(self._place)
        rollout = Rollout(cluster, self.deployment.name)
        objects = self.render(cluster.namespace, cluster.version)
        validate(objects, cluster.version)
        self._check_namespace(cluster)
        refuse(self._kinds(cluster, objects))
        self._check_foreign(cluster, objects)
        before, known = rollout.deployments(), folder.place()
        say(f"{cluster.where}: {cluster.version}; the API server checks {len(objects)} objects")
        self._rehearse(cluster, objects, first=not before)
        # However this command ends, status and down find what it has created.
        folder.write_place(cluster.place)
        try:
            for each in objects:
                cluster.apply(each)
            startup = int(self.values().get("startupSeconds", 600))
            pods = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
            rollout.wait(say, pods, startup + 60)
            rollout.prune(objects)
        except BaseException as error:
            if not before:
                self._remove(rollout, error, say)
                folder.write_place(known)
            elif isinstance(error, (KitError, KeyboardInterrupt)):
                raise _unfinished(rollout.name, before[0], error) from None
            raise
        return rollout

    def _remove(self, rollout: Rollout, failure: BaseException, say: Say) -> None:
        """Remove what a failed or interrupted first launch has created."""
        say("removing what was created")
        try:
            rollout.remove(say)
        except (KitError, KeyboardInterrupt):
            why = failure.cause if isinstance(failure, KitError) else "interrupted"
            cause = f"{why}: what was created is still in {rollout.cluster.where}"
            raise LaunchError(cause, f"numlkit down --name {rollout.name}") from None

    def _check_namespace(self, cluster: Cluster) -> None:
        try:
            there = cluster.find(f"/api/v1/namespaces/{cluster.namespace}") is not None
        except ClusterError as error:
            there = error.status == 403  # a user who may not read it may still work in it
        if not there:
            cause = f"the cluster has no namespace {cluster.namespace}"
            raise LaunchError(cause, f"kubectl create namespace {cluster.namespace}")

    def _check_foreign(self, cluster: Cluster, objects: list[Object]) -> None:
        """Refuse to take over what others have created, such as a Helm release."""
        for each in objects:
            there = cluster.find(cluster.path_of(each))
            labels = there["metadata"].get("labels", {}) if there is not None else {}
            if there is not None and labels.get("app.kubernetes.io/managed-by") != MANAGER:
                by = labels.get("app.kubernetes.io/managed-by", "others")
                what = f"{each['kind']} {each['metadata']['name']}"
                cause = (
                    f"{what} in namespace {cluster.namespace} was created by {by}, not by numlkit"
                )
                helm = f"helm uninstall {self.deployment.name} -n {cluster.namespace}"
                other = helm if by == "Helm" else "have whoever made it remove it"
                raise LaunchError(cause, f"another --name, or {other}")

    def _rehearse(self, cluster: Cluster, objects: list[Object], *, first: bool) -> None:
        """Have the API server check everything, with its admission; nothing is stored."""
        for each in objects:
            try:
                cluster.apply(each, dry_run=True)
                if each["kind"] == "Deployment" and cluster.may("create", "", "pods"):
                    # Pod Security only warns about a Deployment, and refuses its pods.
                    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
                    cluster.ask("post", path, body=_pod_of(each), dry_run="All")
            except ClusterError as error:
                if "exceeded quota" in error.cause and not first:
                    continue  # used up by the old pods, which may have to go first
                what = f"{each['kind']} {each['metadata']['name']}"
                cause = f"the cluster refuses {what}: {error.cause}"
                raise LaunchError(cause, error.remedy) from None

    def findings(self) -> Iterator[Finding]:
        """Return whether the cluster can run the deployment, and what it lacks."""
        self.check_able()
        objects = self.render(self.deployment.kubernetes.namespace or "default")
        cluster = Cluster.connect(self._place)
        yield ok(self.subject, f"{cluster.where} answers: Kubernetes {cluster.version}")
        objects = self.render(cluster.namespace, cluster.version)
        try:
            self._check_namespace(cluster)
        except KitError as error:
            yield wrong(self.subject, error)
        yield from self._rights(cluster, objects)
        yield from self._kinds(cluster, objects)
        yield from self._named(cluster, objects)
        yield from self._nodes(cluster, objects)

    def _rights(self, cluster: Cluster, objects: list[Object]) -> Iterator[Finding]:
        asked = dict(_RIGHTS)
        asked |= {(*KINDS[each["kind"]], ""): _VERBS for each in objects}
        lacking = False
        for (group, plural, subresource), verbs in asked.items():
            missing = [verb for verb in verbs if not cluster.may(verb, group, plural, subresource)]
            if missing:
                lacking = True
                what = "/".join(filter(None, (plural, subresource))) + f" ({group})" * bool(group)
                detail = f"this user may not {', '.join(missing)} {what} in {cluster.where}"
                yield Finding("problem", self.subject, detail, "ask the cluster's administrators")
        if not lacking:
            yield ok(
                self.subject,
                f"this user has every permission needed in namespace {cluster.namespace}",
            )

    def _kinds(self, cluster: Cluster, objects: list[Object]) -> Iterator[Finding]:
        kinds = dict.fromkeys(each["kind"] for each in objects)
        for group in dict.fromkeys(KINDS[kind][0] for kind in kinds):
            if group not in cluster.groups:
                asked = ", ".join(kind for kind in kinds if KINDS[kind][0] == group)
                detail = f"the cluster has no {group}, but the values ask for {asked}"
                remedy = "install what provides it, or leave that out of the values"
                yield Finding("problem", self.subject, detail, remedy)

    def _named(self, cluster: Cluster, objects: list[Object]) -> Iterator[Finding]:
        """Return which of the Secrets and ConfigMaps that the values name are missing."""
        made = {(each["kind"], each["metadata"]["name"]) for each in objects}
        for kind, name in sorted(_named_by(objects) - made):
            path = f"/api/v1/namespaces/{cluster.namespace}/{kind.lower()}s/{name}"
            try:
                there = cluster.find(path) is not None
            except ClusterError as error:
                yield wrong(self.subject, error, "warning")
                continue
            if there:
                yield ok(self.subject, f"{kind} {name} exists")
                continue
            detail = f"the values name {kind} {name}, which namespace {cluster.namespace} lacks"
            remedy = "docs/kubernetes.md shows how to create it"
            yield Finding("problem", self.subject, detail, remedy)

    def _nodes(self, cluster: Cluster, objects: list[Object]) -> Iterator[Finding]:
        """Return whether a node has the GPUs that a pod asks for."""
        [server] = filter(_is_servers, objects)
        container = server["spec"]["template"]["spec"]["containers"][0]
        wanted = int(container["resources"]["limits"].get(GPU, 0))
        if not wanted:
            return
        try:
            nodes = cluster.ask("get", "/api/v1/nodes")["items"]
        except ClusterError as error:
            yield wrong(self.subject, error, "warning")
            return
        having = [n for n in nodes if int(n["status"].get("allocatable", {}).get(GPU, 0)) >= wanted]
        if having:
            yield ok(self.subject, f"{len(having)} of {len(nodes)} nodes have {wanted} {GPU}")
            return
        detail = f"none of {len(nodes)} nodes has {wanted} {GPU}"
        remedy = "--cpu, or install NVIDIA's device plugin on the nodes"
        yield Finding("problem", self.subject, detail, remedy)


def _given(deployment: Deployment) -> set[str]:
    """Return the fields that a file or a flag sets to anything but their default."""
    defaults = type(deployment).model_fields
    return {
        field
        for field in deployment.model_fields_set
        if getattr(deployment, field) != defaults[field].get_default(call_default_factory=True)
    }


def _is_servers(each: Object) -> bool:
    """Return whether it is the Deployment of the servers."""
    return bool(each["kind"] == "Deployment") and component_of(each) == SERVER


def _pod_of(each: Object) -> Object:
    """Return a pod as a Deployment makes them, for the API server to look at."""
    template = each["spec"]["template"]
    # Before the first launch its own service account does not exist.
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    metadata = {
        "generateName": f"{each['metadata']['name']}-",
        "labels": template["metadata"]["labels"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _named_by(objects: list[Object]) -> set[tuple[str, str]]:
    """Return the kind and name of the Secrets and ConfigMaps that pods refer to."""
    found = set()
    for each in objects:
        if each["kind"] != "Deployment":
            continue
        spec = each["spec"]["template"]["spec"]
        found |= {("Secret", secret["name"]) for secret in spec.get("imagePullSecrets", ())}
        for volume in spec.get("volumes", ()):
            if "secret" in volume:
                found.add(("Secret", volume["secret"]["secretName"]))
            if "configMap" in volume:
                found.add(("ConfigMap", volume["configMap"]["name"]))
    return found


def _unfinished(name: str, before: Object, error: KitError | KeyboardInterrupt) -> LaunchError:
    """Return the error of an unfinished upgrade, during which the old pods keep serving."""
    if isinstance(error, KeyboardInterrupt):
        look = f"numlkit status --name {name} shows its progress"
        error = LaunchError("interrupted: the cluster continues the upgrade", look)
    image = before["spec"]["template"]["spec"]["containers"][0]["image"]
    also = f"{error.remedy}; " if error.remedy else ""
    return LaunchError(
        error.cause,
        f"{also}the old pods keep serving; to go back, run up with the previous settings "
        f"(--image {image})",
    )
