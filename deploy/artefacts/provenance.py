"""How an artefact came about: an in-toto statement with SLSA's provenance.

The formats: https://in-toto.io/Statement/v1 and https://slsa.dev/spec/v1.0/provenance. Nothing in
it depends on when or where the build ran: the same inputs give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy import __version__
from deploy.artefacts.labels import DIRTY, UNKNOWN, Source

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# Names of ours, that nobody can look up.
_BUILD_TYPE = "urn:numlkit:build:v1"
_BUILDER = "urn:numlkit:builder"


Resource = Mapping[str, Any]


@dataclass(frozen=True)
class Build:
    """What a statement says of a build: what was asked for, what went in, versions of tools."""

    source: Source
    parameters: Mapping[str, str]
    inputs: Sequence[Resource]
    tools: Mapping[str, str]


def resource(name: str, sha256: str, uri: str = "") -> Resource:
    """Return a file or package as in-toto describes it; what is not known of it is empty."""
    digest = {"sha256": sha256.removeprefix("sha256:")} if sha256 else {}
    found = {"uri": uri, "name": name, "digest": digest}
    return {key: value for key, value in found.items() if value}


def statement(build: Build, *, subject: Resource, sbom: Resource) -> str:
    """Return the statement about an artefact with a list of its parts, as JSON.

    An image's digest is that of its configuration.
    """
    document = {
        "_type": STATEMENT,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": dict(build.parameters),
                "resolvedDependencies": [_source(build.source), *build.inputs],
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"numlkit": __version__, **build.tools}},
                "byproducts": [sbom],
            },
        },
    }
    return json.dumps(document, indent=2) + "\n"


def with_subject(text: str, name: str, sha256: str) -> str:
    """Return a statement that is also about another form of its artefact: signed, say."""
    document = json.loads(text)
    document["subject"].append(resource(name, sha256))
    return json.dumps(document, indent=2) + "\n"


def subjects(text: str) -> set[str]:
    """Return the sha256 of everything that a statement is about."""
    return {str(subject["digest"]["sha256"]) for subject in json.loads(text)["subject"]}


def _source(source: Source) -> Resource:
    revision = source.revision.removesuffix(DIRTY)
    if revision == UNKNOWN:
        return {"name": "source", "annotations": {"tree": "no git checkout"}}
    # What was changed is in no commit: then the other inputs' digests say what was built.
    tree = "clean" if revision == source.revision else "modified"
    found = {"name": "source", "digest": {"gitCommit": revision}, "annotations": {"tree": tree}}
    return {"uri": f"git+{source.url}@{revision}", **found} if source.url else found
