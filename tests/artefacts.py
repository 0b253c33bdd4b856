"""Records of what was built: of each, a test says what matters to it."""

from deploy.artefacts.manifest import Artefact, Kind


def artefact(kind: Kind, name: str, sha256: str, size: int = 1) -> Artefact:
    return Artefact(kind=kind, name=name, bytes=size, sha256=sha256, created=0, inputs={}, steps={})
