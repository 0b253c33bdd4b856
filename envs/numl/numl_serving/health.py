"""Check that every model of a running server is ready and gives its golden answer.

``python -m numl_serving.health [--host HOST] [--port PORT] [--wait SECONDS] REPOSITORY`` prints
one line and exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from numl_formats.inference import AnswerError, NoAnswerError, TritonHttp
from numl_serving.errors import ServingError
from numl_serving.judging import check_repository, has_golden, is_ours
from numl_serving.watch import run

ROUND_S = 8.0
"""Time limit (s) for checking all models once."""
_PAUSE_S = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.health", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="seconds to wait for an answer"
    )
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="check repeatedly until stopped"
    )
    parser.add_argument(
        "--metrics", type=int, metavar="PORT",
        help="port where --watch exports its results to Prometheus, at the address in NUML_LISTEN",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="compare also the reference outputs of a site's models"
    )
    parser.add_argument("repository", type=Path, metavar="REPOSITORY")
    options = parser.parse_args(arguments)
    if (options.watch is None) != (options.metrics is None):
        parser.error("--watch and --metrics need each other: use both or neither")
    if options.watch is not None:
        return run(
            options.host, options.port, options.repository, every=options.watch,
            listen=os.environ.get("NUML_LISTEN", "127.0.0.1"), metrics_port=options.metrics,
        )  # fmt: skip
    until = time.monotonic() + options.wait
    while True:
        seconds = max(ROUND_S, options.wait) if options.all else ROUND_S
        server = TritonHttp(options.host, options.port, deadline=time.monotonic() + seconds)
        try:
            models = check_repository(server, options.repository, everything=options.all)
        except (ServingError, AnswerError) as error:
            if not isinstance(error, NoAnswerError) or time.monotonic() > until:
                sys.stdout.write(f"unhealthy: {error}\n")
                return 1
            time.sleep(_PAUSE_S)
        else:
            judged = has_golden if options.all else is_ours
            ours = [m for m in models if any(map(judged, options.repository.glob(f"{m}/*/")))]
            said = [f"{', '.join(ours)} gave their golden answers"] if ours else []
            said += [f"{model} is ready" for model in models if model not in ours]
            sys.stdout.write(f"healthy: {'; '.join(said)}\n")
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
