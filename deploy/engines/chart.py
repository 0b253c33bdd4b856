"""The chart, rendered by Helm's own library and checked against Kubernetes' schemas."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.engines.cluster import Object, needed
from deploy.host.errors import DeploymentError
from deploy.host.paths import CHECKOUT

CHART = CHECKOUT / "containers" / "chart"
_CHARTS_OWN = ("cpu", "gpu", "okd")


def read_values(name: str) -> Mapping[str, Any]:
    yaml = needed("yaml")
    if not Path(name).suffix and name not in _CHARTS_OWN:
        own = ", ".join(_CHARTS_OWN)
        raise DeploymentError(f"kubernetes.values: the chart has no {name!r}", f"{own}, or a file")
    path = Path(name) if Path(name).suffix else CHART / f"{name}-values.yaml"
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(f"kubernetes.values: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise DeploymentError(f"kubernetes.values: {path}: not YAML: {said}") from None
    if not isinstance(read or {}, dict):
        raise DeploymentError(f"kubernetes.values: {path}: not a table of values")
    return read or {}


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Lay values over others, as Helm does with several files."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def render_chart(
    values: Mapping[str, Any], name: str, namespace: str, version: str | None
) -> tuple[list[Object], list[str]]:
    """Return the objects of a release, and the models that it serves.

    Args:
        version: The API server's; None: the newest that the library knows.

    Raises:
        DeploymentError: If the chart refuses the values.
    """
    helm, native, yaml = (needed(m) for m in ("helm_python", "helm_python._native", "yaml"))
    options = {"name": name, "namespace": namespace}
    if version is not None:
        options["kube_version"] = version
    packed = io.BytesIO()
    # Loaded from the folder, Helm would report its one symlink on standard error.
    with tarfile.open(fileobj=packed, mode="w:gz", dereference=True) as archive:
        archive.add(CHART, CHART.name)
    try:
        with helm.Chart.load_archive(packed.getvalue()) as chart:
            # Chart.render() drops the version, which the library underneath accepts (0.2.2).
            asked = (json.dumps(values), json.dumps(options))
            texts = json.loads(native.call_string("helm_render", chart._raw(), *asked))
            models = chart.merge_values(values)["models"]
    except helm.HelmError as error:
        said = str(error).strip().splitlines()[-1].strip(" -")
        raise DeploymentError(f"the chart rejects its values: {said}") from None
    manifests = [text for file, text in texts.items() if file.endswith(".yaml")]
    return [each for text in manifests for each in yaml.safe_load_all(text) if each], models


def validate(objects: list[Object], version: str | None = None) -> None:
    """Check objects against a version's schemas, strictly; custom kinds are skipped."""
    schemas = needed("kubernetes_validate")
    oldest = needed("kubernetes_validate.utils").all_versions()[0]
    asked = schemas.latest_version() if version is None else version.removeprefix("v")
    if _numbers(asked) < _numbers(oldest):
        asked = oldest
    for each in objects:
        with suppress(schemas.SchemaNotFoundError):
            try:
                schemas.validate(each, asked, strict=True)
            except schemas.ValidationError as error:
                where = ".".join(map(str, error.absolute_path))
                what = f"{each['kind']} {each['metadata']['name']}: {where}: {error.message}"
                raise DeploymentError(f"not an object of Kubernetes {asked}: {what}") from None


def as_yaml(objects: list[Object]) -> str:
    """Return a file for kubectl."""
    text: str = needed("yaml").safe_dump_all(objects, sort_keys=False, explicit_start=True)
    return text.rstrip()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdecimal, part))) for part in version.split(".")[:2])
