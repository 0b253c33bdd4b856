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


@dataclass(frozen=True)
class Input:
    """Something that went into a build.

    Attributes:
        uri: Where it is known by that; a package URL if it is a package; empty if nowhere.
        sha256: Its digest; empty if the build did not know one.
    """

    name: str
    uri: str
    sha256: str


@dataclass(frozen=True)
class Build:
    """What a statement says of a build.

    Attributes:
        parameters: What was asked for.
        tools: Versions of what did the work.
    """

    source: Source
    parameters: Mapping[str, str]
    inputs: Sequence[Input]
    tools: Mapping[str, str]


def statement(build: Build, *, subject: tuple[str, str], sbom: tuple[str, str]) -> str:
    """Return the statement as JSON.

    Args:
        subject: The artefact's name, and the sha256 of the file, or of the image's configuration.
        sbom: Name and sha256 of the list of its parts.
    """
    document = {
        "_type": STATEMENT,
        "subject": [_named(*subject)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": dict(build.parameters),
                "resolvedDependencies": [_source(build.source), *map(_input, build.inputs)],
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"numlkit": __version__, **build.tools}},
                "byproducts": [_named(*sbom)],
            },
        },
    }
    return json.dumps(document, indent=2) + "\n"


def with_subject(text: str, name: str, sha256: str) -> str:
    """Return a statement that is also about another form of its artefact: signed, say."""
    document = json.loads(text)
    document["subject"].append(_named(name, sha256))
    return json.dumps(document, indent=2) + "\n"


def subjects(text: str) -> set[str]:
    """Return the sha256 of all that a statement is about."""
    return {str(subject["digest"]["sha256"]) for subject in json.loads(text)["subject"]}


def _named(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256.removeprefix("sha256:")}}


def _source(source: Source) -> dict[str, Any]:
    revision = source.revision.removesuffix(DIRTY)
    if revision == UNKNOWN:
        return {"name": "source", "annotations": {"tree": "no git checkout"}}
    # What was changed is in no commit: then the other inputs' digests say what was built.
    tree = "clean" if revision == source.revision else "modified"
    found = {"name": "source", "digest": {"gitCommit": revision}, "annotations": {"tree": tree}}
    return {"uri": f"git+{source.url}@{revision}", **found} if source.url else found


def _input(one: Input) -> dict[str, Any]:
    digest = {"sha256": one.sha256} if one.sha256 else {}
    found = {"uri": one.uri, "name": one.name, "digest": digest}
    return {key: value for key, value in found.items() if value}
