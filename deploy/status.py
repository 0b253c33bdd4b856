"""Say how a deployment is; exit with a status other than 0 if anything is wrong."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import dataclasses
from collections.abc import Sequence

from deploy.arguments import as_seconds
from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.health import examine
from deploy.server.metrics import ModelCounts
from deploy.state import DeploymentFolder


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("status", "Say how a deployment is: processes, models, values.")
    flags.add_argument(
        "--timeout", type=as_seconds, default=10.0, help="seconds for an answer (default: 10)"
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 healthy, 1 not, or not there."""
    return run(_status, parser(), argv)


def _status(options: argparse.Namespace, console: Console) -> int:
    folder = DeploymentFolder(options.name)
    state = folder.require_state()
    health = examine(folder, state, timeout=options.timeout)
    rows = [
        [
            m.model,
            f"{m.alive} of {m.wanted}" if m.wanted else "none needed",
            "ready" if m.smoke.ready else "not ready",
            m.smoke.words,
            *_counted(m.counts),
        ]
        for m in health.models
    ]
    title = f"deployment {state.name}: {'healthy' if not health.problems else 'NOT healthy'}"
    console.table(
        title,
        ("model", "stubs", "says", "smoke inference", "requests", "failed", "p50", "p99"),
        rows,
    )
    for problem in health.problems:
        console.line(f"problem: {problem}")
    if health.remedy is not None:
        console.line(f"  try: {health.remedy}")
    healed = f"healed stubs {state.heals} times, restarted the server {state.restarts} times"
    console.line(f"{state.url('http')}  {state.url('grpc')}")
    console.line(f"phase {state.phase}; {healed}")
    console.answer(
        {
            "ok": not health.problems,
            "problems": health.problems,
            "remedy": health.remedy,
            "models": [{**dataclasses.asdict(m), "ok": m.ok} for m in health.models],
            "state": state.model_dump(mode="json"),
        }
    )
    return 1 if health.problems else 0


def _counted(counts: ModelCounts | None) -> tuple[str, str, str, str]:
    """Return requests, failures, p50 and p99 in words."""
    if counts is None:
        return ("-", "-", "-", "-")
    times = (f"{1e3 * s:.0f} ms" if s is not None else "-" for s in (counts.p50, counts.p99))
    return (str(counts.requests), str(counts.failures), *times)  # type: ignore[return-value]


if __name__ == "__main__":
    raise SystemExit(main())
