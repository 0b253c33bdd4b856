"""What an image or a .sif says about itself: labels, most of them of the OCI's names.

Source of the names: OCI image specification, "Pre-Defined Annotation Keys".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from deploy.images.base import BaseImage

_OCI = "org.opencontainers.image"
_OWN = "org.numlkit"
FLAVOUR_LABEL = f"{_OWN}.flavour"
TRITON_LABEL = f"{_OWN}.triton.release"
ENVIRONMENT_LABEL = f"{_OWN}.environment.digest"
SERVING_LABEL = f"{_OWN}.serving.digest"


@dataclass(frozen=True)
class ImageFacts:
    """What the labels say.

    Attributes:
        source: URL of the repository it was built from; may be empty.
        revision: The commit.
        created: When, in seconds since 1970.
        version: The kit's version.
        flavour: What its environment is for.
        triton: NVIDIA's release of Triton.
        environment_digest: Names the execution environment.
        serving_digest: Names the ``numl_serving`` in it.
    """

    source: str
    revision: str
    created: int
    version: str
    flavour: str
    triton: str
    environment_digest: str
    serving_digest: str


def labels(base: BaseImage, facts: ImageFacts) -> dict[str, str]:
    """Return the labels; one that has nothing to say is left out.

    Args:
        base: What it stands on.
        facts: The rest.
    """
    created = datetime.fromtimestamp(facts.created, UTC)
    everything = {
        f"{_OCI}.title": "numlkit",
        f"{_OCI}.description": "NuGraph2 and NuGraph3 served by NVIDIA Triton",
        f"{_OCI}.licenses": "Apache-2.0",
        f"{_OCI}.source": facts.source,
        f"{_OCI}.revision": facts.revision,
        f"{_OCI}.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        f"{_OCI}.version": facts.version,
        f"{_OCI}.base.name": base.name,
        f"{_OCI}.base.digest": base.digest,
        FLAVOUR_LABEL: facts.flavour,
        TRITON_LABEL: facts.triton,
        ENVIRONMENT_LABEL: facts.environment_digest,
        SERVING_LABEL: facts.serving_digest,
    }
    return {name: value for name, value in everything.items() if value}
