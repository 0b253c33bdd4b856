"""Asks a running Triton whether it serves a release."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.client.probe import Probe, ask_golden
from deploy.host.console import Say
from deploy.host.errors import KitError, PublishError
from deploy.publishing.s3 import Store
from deploy.triton.golden import read_golden
from numl_formats.golden import GoldenEvent
from numl_formats.published import Release
from numl_formats.repository import CARD_FILE, GOLDEN_FILE

_SECONDS = 30.0
# A server that polls has a new version within seconds; one that is being restarted, within minutes.
_PATIENCE_S = 120.0


def read_goldens(store: Store, release: Release) -> dict[str, GoldenEvent]:
    """Return the reference events that a release's models were published with."""
    found = {}
    for name, model in release.models.items():
        with TemporaryDirectory(prefix="numlkit-publish-") as scratch:
            for file in (GOLDEN_FILE, CARD_FILE):
                stored = store.read(f"{name}/{model.version}/{file}")
                if stored is None:
                    raise PublishError(f"{name}, version {model.version}: {file} is missing")
                Path(scratch, file).write_bytes(stored)
            found[name] = read_golden(Path(scratch, GOLDEN_FILE))
    return found


def differences(
    server: str, release: Release, goldens: Mapping[str, GoldenEvent]
) -> tuple[str, ...]:
    """Return, model by model, how a server's answers differ from a release."""
    found = []
    with Probe(server, timeout=_SECONDS).connected() as transport:
        for name, model in release.models.items():
            try:
                served = [str(v) for v in transport.metadata(name).get("versions", ())]
                wrong = ask_golden(transport, name, goldens[name])
            except KitError as error:
                found.append(f"{server}: {name}: {error.cause}")
                continue
            if served != [str(model.version)]:
                there = ", ".join(served) or "none"
                wrong = f"serves version {there}, release {release.number} has {model.version}"
            if wrong is not None:
                found.append(f"{server}: {name} {wrong}")
    return tuple(found)


def await_release(
    server: str, release: Release, goldens: Mapping[str, GoldenEvent], say: Say
) -> None:
    """Wait until a server serves a release; PublishError if it does not within minutes."""
    deadline = time.monotonic() + _PATIENCE_S
    before: tuple[str, ...] = ()
    while found := differences(server, release, goldens):
        if time.monotonic() > deadline:
            raise PublishError(
                f"nothing is removed: {found[0]}",
                "run it again once every server has loaded the release",
            )
        if found != before:
            say(f"waiting: {found[0]}")
        before = found
        time.sleep(1.0)
