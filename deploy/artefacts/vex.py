"""What is known of vulnerabilities of the Triton in an artefact, as CycloneDX 1.6 says it (VEX).

It refers to a component of the SBOM beside it (https://cyclonedx.org/capabilities/vex).
"""

import json
from collections.abc import Sequence

from deploy.artefacts.cyclonedx import document
from deploy.triton.advisories import Advisory


def vex(sbom: str, triton: str, found: Sequence[Advisory], *, epoch: int) -> str:
    """Return the document; the same input gives the same text.

    Args:
        sbom: The text of the SBOM.
        triton: The ``bom-ref`` of Triton in it.
        epoch: The document's time (Unix, s).
    """
    listed = json.loads(sbom)
    place = f"urn:cdx:{listed['serialNumber'].removeprefix('urn:uuid:')}/{listed['version']}"
    vulnerabilities = [
        {
            "id": each.cve,
            "source": {"name": "NVD", "url": each.url},
            "recommendation": f"use Triton {each.fixed} or later",
            "analysis": {"state": "exploitable"},
            "affects": [{"ref": f"{place}#{triton}"}],
        }
        for each in found
    ]
    return document({"vulnerabilities": vulnerabilities}, epoch=epoch)
