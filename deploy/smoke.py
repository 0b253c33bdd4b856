"""Ask a server, here or elsewhere, for its golden answers and compare the values."""

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
from pathlib import Path

from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.deployment import DEFAULT_MODELS
from deploy.paths import MODEL_REPOSITORY
from deploy.repository.stage import find_model
from deploy.server.golden import golden_of
from deploy.server.probe import Probe, SmokeResult, smoke
from deploy.state import DeploymentFolder, endpoint


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("smoke", "Run one event through each model and compare the values.")
    flags.add_argument(
        "--url", help="http[s]://host:port or grpc[s]://host:port (default: the deployment's, both)"
    )
    flags.add_argument("--models", help="models to ask, comma separated")
    flags.add_argument(
        "--repository",
        type=Path,
        help="model repository with the golden answers (default: the deployment's, or the kit's)",
    )
    flags.add_argument("--timeout", type=float, default=10.0, help="seconds (default: 10)")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if every value is right."""
    return run(_smoke, parser(), argv)


def _smoke(options: argparse.Namespace, console: Console) -> int:
    models: Sequence[str] = DEFAULT_MODELS
    repository = MODEL_REPOSITORY
    if options.url is not None:
        urls = [options.url]
    else:
        folder = DeploymentFolder(options.name)
        state = folder.require_state()
        models, repository = state.models, folder.repository
        urls = [
            f"http://{endpoint(state.host, state.ports.http)}",
            f"grpc://{endpoint(state.host, state.ports.grpc)}",
        ]
    if options.models is not None:
        models = options.models.split(",")
    repository = options.repository or repository
    results: list[tuple[str, SmokeResult]] = []
    for url in urls:
        probe = Probe(url, timeout=options.timeout)
        for model in models:
            golden = golden_of(find_model(repository, model))
            results.append((url, smoke(probe, model, golden)))
    rows = [[url, r.model, "ok" if r.ok else "FAILED", r.words] for url, r in results]
    console.table("smoke inference", ("server", "model", "result", "detail"), rows)
    ok = all(result.ok for _, result in results)
    answers = [{"url": url, **dataclasses.asdict(r), "ok": r.ok} for url, r in results]
    console.answer({"ok": ok, "results": answers})
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
