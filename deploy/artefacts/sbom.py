"""The list of an artefact's parts as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from deploy import __version__
from deploy.artefacts.components import Component

_FACTS = "numlkit:"


def sbom(kind: str, name: str, parts: Iterable[Component], *, epoch: int) -> str:
    """Return the document for an artefact; the same parts give the same text.

    Args:
        kind: What CycloneDX calls the artefact.
        epoch: Its time, in seconds since 1970.
    """
    # A part may be named twice: a library of the interpreter's that is another's too.
    unique = sorted(dict.fromkeys(parts), key=lambda part: (part.purl, part.name, part.sha256))
    components = [_component(part, f"part-{n}") for n, part in enumerate(unique, start=1)]
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "tools": {
                "components": [{"type": "application", "name": "numlkit", "version": __version__}]
            },
            "component": {"type": kind, "bom-ref": name, "name": name},
        },
        "components": components,
        "dependencies": [
            {"ref": name, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    document = {"bomFormat": "CycloneDX", "serialNumber": f"urn:uuid:{serial}", **document}
    return json.dumps(document, indent=2) + "\n"


def _component(part: Component, number: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": part.kind,
        "bom-ref": part.purl or number,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "hashes": [{"alg": "SHA-256", "content": part.sha256}] if part.sha256 else [],
        "properties": [{"name": f"{_FACTS}{key}", "value": value} for key, value in part.facts],
    }
    return {key: value for key, value in found.items() if value}
