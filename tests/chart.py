"""The Helm chart, rendered by Helm's own library.

``python -m tests.chart`` writes what the tests of tests/unit/deploy/chart compare with.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from deploy.host.paths import CHECKOUT

CHART = CHECKOUT / "containers" / "chart"
RENDERED = CHECKOUT / "tests" / "unit" / "deploy" / "chart" / "rendered"
RELEASE, NAMESPACE = "numl", "physics"

ENVOY = f"docker.io/envoyproxy/envoy@sha256:{'ce' * 32}"

Object = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """What an administrator gives: values files of the chart, and further values."""

    files: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def merged(self) -> dict[str, Any]:
        # Whoever has a front door names its image.
        merged: dict[str, Any] = {"frontDoor": {"image": ENVOY}}
        for name in self.files:
            _merge(merged, yaml.safe_load((CHART / f"{name}-values.yaml").read_text()))
        _merge(merged, self.values)
        return merged


SITES = {
    "laptop": Site(),
    "cpu": Site(("cpu",)),
    "gpu": Site(("gpu",)),
    "okd": Site(
        ("cpu", "okd"), {"route": {"termination": "reencrypt", "host": "numl.example.org"}}
    ),
    "everything": Site(
        ("cpu",),
        {
            "image": {"digest": f"sha256:{'ab' * 32}", "pullSecrets": ["registry"]},
            "bucket": {
                "url": "s3://https://s3.example.org:9000/models/nugraph",
                "credentialsSecret": "bucket-reader",
                "caConfigMap": "site-ca",
            },
            "verify": {"key": {"configMap": "release-key"}, "minSequence": 12},
            "networkPolicy": {"bucket": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
            "limits": {"waiting": 0, "waitSeconds": 0.5, "hits": 100000},
            "spread": "DoNotSchedule",
            "priorityClassName": "services",
            "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/numl"},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "watch": {"enabled": True},
            "autoscaling": {"kind": "keda"},
        },
    ),
    "tenants": Site(
        ("cpu",),
        {
            "frontDoor": {
                "tenants": {
                    "by": "token",
                    "configMap": "token-keys",
                    "issuer": "https://tokens.example.org",
                    "audience": "numl",
                    "clients": [
                        {"name": "dune", "subject": "dune-production"},
                        {"name": "icarus", "subject": "icarus", "requestsPerSecond": 50},
                    ],
                }
            }
        },
    ),
    "hpa": Site((), {"autoscaling": {"kind": "hpa"}, "networkPolicy": {"enabled": False}}),
    "gateway": Site(
        (),
        {
            "gateway": {
                "enabled": True,
                "parentRefs": [{"name": "site"}],
                "hostnames": ["numl.example.org"],
            },
            "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
        },
    ),
}
"""One for each kind; together they use everything."""


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def render_text(
    site: Site, chart: Path = CHART, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> str:
    """Return the manifest that Helm would send to a cluster."""
    with helm.Chart.load(chart) as loaded:
        made = loaded.render(site.merged(), name=release, namespace=namespace)
    texts = [
        f"---\n# {name.removeprefix('numl/')}\n{text.strip().removeprefix('---').strip()}\n"
        for name, text in sorted(made.items())
        if name.endswith(".yaml") and text.strip()
    ]
    return "".join(texts)


def render_notes(site: Site) -> str:
    """Return what Helm says to whoever has installed it."""
    with helm.Chart.load(CHART) as loaded:
        made = loaded.render(site.merged(), name=RELEASE, namespace=NAMESPACE)
    return made["numl/templates/NOTES.txt"]


def render(site: Site, chart: Path = CHART, **names: str) -> list[Object]:
    """Return the objects of that manifest."""
    text = render_text(site, chart, **names)
    # In C: in Python it takes ten times as long as to render them.
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def find(objects: Iterable[Object], kind: str, name: str = RELEASE) -> Object:
    """Return the one object of this kind and name."""
    [found] = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def stored() -> dict[str, str]:
    """Return the sites' manifests; of an object that earlier ones have, what is not as in one."""
    sites: dict[str, str] = {}
    earlier: dict[str, dict[str, list[str]]] = {}
    for name, site in SITES.items():
        sites[name] = ""
        for text in re.split("^---\n", render_text(site), flags=re.M)[1:]:
            each = yaml.load(text, yaml.CSafeLoader)
            what, lines = f"{each['kind']} {each['metadata']['name']}", text.splitlines()
            others = earlier.setdefault(what, {})
            if others:
                changes = {place: _changes(there, lines) for place, there in others.items()}
                place = min(changes, key=lambda place: len(changes[place]))
                text = "\n".join([f"# {what}: as in {place}.yaml", *changes[place], ""])
            others[name] = lines
            sites[name] += f"---\n{text}"
    return sites


def _changes(old: list[str], new: list[str]) -> list[str]:
    """Return what ``diff`` shows, with a line around each change."""
    return list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]


def renew() -> None:
    """Write what the chart renders today."""
    RENDERED.mkdir(exist_ok=True)
    for name, text in stored().items():
        (RENDERED / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    renew()
