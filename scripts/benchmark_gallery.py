#!/usr/bin/env python3
"""Measure the models of the gallery: where a request's time goes, and what transports cost.

    python3 scripts/benchmark_gallery.py                   # three minutes; stores the run
    python3 scripts/benchmark_gallery.py --json run.json   # stores nothing in the checkout
    python3 scripts/benchmark_gallery.py --docs            # docs/gallery.md again, from that run

It starts a server of its own, and takes two cores that nobody else uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from deploy.host.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deploy.client.example import CLIENT
from deploy.deployment.deployment import find_site_models
from deploy.deployment.state import DeploymentFolder
from deploy.host.cli import carry_out, end_in_order
from deploy.host.command_line import Parser, as_seconds
from deploy.host.console import Console
from deploy.host.errors import KitError
from deploy.host.files import write_atomically
from scripts.benchmarks.document import Document
from scripts.benchmarks.flags import as_output
from scripts.benchmarks.gallery_page import section
from scripts.benchmarks.pages import write_section
from scripts.benchmarks.run import machine_facts

GALLERY = ROOT / "gallery"
STORED, PAGE = ROOT / "scripts/data/speed/gallery.json", ROOT / "docs/gallery.md"
BEGIN = (
    "<!-- gallery: made by scripts/benchmark_gallery.py from scripts/data/speed/gallery.json -->"
)
END = "<!-- /gallery -->"
NAME = f"gallery-benchmark-{os.getpid()}"


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/benchmark_gallery.py",
        description="Measure the models of the gallery.",
    )
    add = parser.add_argument
    add("--seconds", type=as_seconds, default=3.0, metavar="S", help="for each figure (3)")
    add("--json", type=as_output, metavar="FILE", help="write the run here, and nowhere else")
    add("--docs", action="store_true", help="write docs/gallery.md from the stored run, and exit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console()
    end_in_order(signal.SIGTERM, signal.SIGHUP)
    return carry_out(lambda: _run(options, console), console)


def _run(options: argparse.Namespace, console: Console) -> int:
    if not options.docs:
        run = _measure(options, console)
        console.text(section(run))
        write_atomically(options.json or STORED, json.dumps(run, indent=1) + "\n")
    if options.json is None:
        write_section(PAGE, section(json.loads(STORED.read_text(encoding="utf-8"))), BEGIN, END)
    return 0


def _measure(options: argparse.Namespace, console: Console) -> Document:
    import tritonclient.grpc as triton

    from scripts.benchmarks.gallery import ROUNDS, measure_entry, measure_ocr, measure_volume

    entries = [model for model in find_site_models(GALLERY) if (GALLERY / model / CLIENT).is_file()]
    run: Document = {"format": 1, "machine": machine_facts(sorted(os.sched_getaffinity(0)))}
    run["machine"]["load_before"] = os.getloadavg()
    with _serving(entries, console) as ports:
        grpc, http = (f"127.0.0.1:{ports[protocol]}" for protocol in ("grpc", "http"))
        with triton.InferenceServerClient(grpc) as server:
            run["entries"] = []
            for model in entries:
                console.line(model)
                run["entries"].append(measure_entry(server, grpc, GALLERY / model, options.seconds))
            console.line("ocr, beside the same steps in one process")
            run["ocr"] = measure_ocr(server, grpc, GALLERY, options.seconds)
        console.line("a volume by HTTP, gRPC and shared memory")
        run["volume"] = measure_volume(grpc, http, "brain", 6 * ROUNDS)
    return run


@contextmanager
def _serving(models: Sequence[str], console: Console) -> Iterator[dict[str, int]]:
    """Start a server with models of the gallery; yield its ports."""
    console.line(f"starting a server with {len(models)} models and what they call")
    words = ["--models-dir", str(GALLERY), "--models", ",".join(models), "--shared-memory"]
    try:
        yield _numlkit("up", *words, "--engine", "local")["ports"]
    finally:
        if DeploymentFolder(NAME).path.exists():  # not if it has not started
            _numlkit("down")


def _numlkit(command: str, *words: str) -> dict[str, Any]:
    program = [sys.executable, "-m", "deploy.main", command, "--name", NAME, "--json", *words]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = json.loads(done.stdout)
        raise KitError(told["error"], told["remedy"])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
