"""All checks, in the order doctor shows them: none can stop or delay another."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from deploy.checks.deployments import deployment_findings, half_built_findings
from deploy.checks.host import (
    gpu_findings,
    port_findings,
    room_findings,
    temporary_findings,
    tls_findings,
    triton_findings,
    writable_findings,
)
from deploy.checks.repository import repository_findings, site_findings
from deploy.deployment.deployment import Deployment
from deploy.engines.base import Engine
from deploy.engines.choose import ENGINES, choose_engine, engine_named, engine_to_prepare
from deploy.engines.resolved import Resolved
from deploy.host.cli import describe_os_error
from deploy.host.errors import KitError
from deploy.host.finding import Finding, Level, distinct, ok, wrong
from deploy.host.paths import MODEL_REPOSITORY, cache_folder
from deploy.host.room import Room

# Each takes less than a second where everything answers; a dead network disk never does.
DEADLINE_S = 10.0
_MB = 10**6

# What it checks, and what finds it out.
Check = tuple[str, Callable[[], Iterable[Finding]]]


def examine(checks: Sequence[Check], deadline: float = DEADLINE_S) -> list[Finding]:
    """Run the checks in parallel; return their findings in order. ``deadline`` is in seconds."""
    answers: list[list[Finding] | None] = [None] * len(checks)

    def look(number: int) -> None:
        answers[number] = _findings(*checks[number])

    # Daemon threads, which do not keep the process alive: one may hang forever.
    numbers = range(len(checks))
    threads = [threading.Thread(target=look, args=(n,), daemon=True) for n in numbers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    found: list[Finding] = []
    for (subject, _), answer in zip(checks, answers, strict=True):
        if answer is None:
            detail = f"no answer within {deadline:.0f} s"
            remedy = "look for a network disk or a service that hangs (mount, dmesg)"
            found.append(Finding("problem", subject, detail, remedy))
        else:
            found += answer
    return found


def _findings(subject: str, run: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(run())
    except KitError as error:
        return [wrong(subject, error)]
    except OSError as error:
        return [Finding("problem", subject, describe_os_error(error).cause)]
    except Exception as error:
        # A bug in one check must not hide the others' findings.
        detail = f"the check itself failed: {type(error).__name__}: {error}"
        return [Finding("problem", subject, " ".join(detail.split()))]


def examine_everything(deployment: Deployment) -> list[Finding]:
    """Return all findings about this host, for a deployment and in general."""
    resolved = Resolved.of(deployment)
    chosen: list[Engine] = []

    def choose() -> Iterator[Finding]:
        engine, reason = choose_engine(resolved)
        chosen.append(engine)
        why = f": {reason}" if reason is not None else ", as requested"
        yield ok("engine", f"up starts deployment {deployment.name} with {engine.name}{why}")

    found = examine([("engine", choose)])
    others = (engine_named(name)(resolved) for name in ENGINES)
    engines = [next((one for one in chosen if one.name == each.name), each) for each in others]

    def check(engine: Engine) -> Check:
        level: Level = "problem" if engine in chosen else "warning"
        return (engine.subject, lambda: engine.findings(level))

    repository = partial(repository_findings, MODEL_REPOSITORY)
    checks = [
        *map(check, engines),
        ("GPU", lambda: gpu_findings(resolved)),
        ("room", lambda: _rooms(chosen[0] if chosen else engine_to_prepare(resolved))),
        ("ports", lambda: port_findings(resolved)),
        ("model repository", lambda: repository(resolved.kit, resolved.own_weights)),
        ("model repository", lambda: site_findings(resolved)),
        ("TLS", lambda: tls_findings(deployment)),
        ("Triton", lambda: triton_findings(resolved)),
        ("deployments", deployment_findings),
        *((f"leftovers: {engine.name}", engine.leftovers) for engine in engines),
        ("leftovers: half-built", half_built_findings),
    ]
    found += examine(checks)
    if not any(finding.subject.startswith("leftovers") for finding in found):
        found.append(ok("leftovers", "none from dead servers or interrupted commands"))
    return distinct(found)


def _rooms(engine: Engine) -> Iterator[Finding]:
    rooms = engine.rooms()
    cache = Room(cache_folder(), 100 * _MB, "the cache", "set XDG_CACHE_HOME")
    yield from writable_findings(rooms)
    # A launch that finds everything made there, as by an administrator, does not write to it.
    if all(room.folder != cache.folder for room in rooms):
        yield from writable_findings([cache], "warning")
    yield from temporary_findings()
    better = [cache, Room(Path(tempfile.gettempdir()), 100 * _MB, "temporary files", "set TMPDIR")]
    yield from room_findings(rooms, better)
    yield from engine.launch_findings()
