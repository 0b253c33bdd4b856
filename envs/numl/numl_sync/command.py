"""``sync s3://... FOLDER``: mirror a published bucket into a folder that Triton polls.

The server's repository is FOLDER/repository. It changes only once a release is complete, has the
published digests and gives its golden answers; an unreachable bucket changes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from numl_formats.ending import end_at_signals
from numl_formats.errors import FormatError
from numl_formats.limits import Limits
from numl_formats.location import Location, read_endpoint, read_location
from numl_sync.agent import Agent
from numl_sync.bucket import Bucket
from numl_sync.check import check_answers
from numl_sync.errors import SyncError, UsageError
from numl_sync.mirror import Mirror
from numl_sync.server import Server
from numl_sync.status import serve_status
from numl_sync.templates import Templates
from numl_sync.trust import read_trust

POLL_S = 3.0
"""Time (s) between polls of the bucket, by default."""
_DAY_S = 86_400


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bucket", metavar="s3://[http[s]://HOST:PORT/]BUCKET[/PREFIX]")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--poll", type=_seconds, default=POLL_S, metavar="SECONDS",
        help="seconds between polls of the bucket, one request each (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="bring what is published into the folder, then exit"
    )
    parser.add_argument(
        "--server", type=_server, default="http://127.0.0.1:8000", metavar="URL",
        help="HTTP address of the server that polls the folder (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", type=Path, metavar="KEY", default=os.environ.get("NUML_VERIFY_KEY"),
        help="public key (PEM) that releases must be signed with (default: NUML_VERIFY_KEY, else "
        "nothing is verified)",
    )  # fmt: skip
    parser.add_argument(
        "--templates", type=Path, default=Path("/opt/numl/templates/cpu"), metavar="FOLDER",
        help="the image's models, without weights (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--status-port", type=int, metavar="PORT",
        help="serve /metrics and /ready here, at the address in NUML_LISTEN (default 127.0.0.1)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    # Whatever was in progress resumes at the next start.
    ended = end_at_signals(lambda number: 128 + number if options.once else 0)
    try:
        location = _location(options.bucket, os.environ)
        templates = Templates(options.templates, Limits.of(os.environ))
        trust = read_trust(options.verify, str(location), _least(os.environ))
        if trust.verify is None:
            _say("nothing is verified: no key is given (--verify)")
        agent = Agent(
            Bucket(location),
            Mirror(options.folder.absolute(), templates),
            options.server,
            trust=trust,
            templates=templates,
            check=check_answers,
            say=_say,
            poll_s=options.poll,
        )
        if options.status_port is not None:
            listen = os.environ.get("NUML_LISTEN", "127.0.0.1")
            serve_status(agent.status, listen, options.status_port)
        while True:
            pause = agent.step()
            if ended:
                return ended[0]
            if options.once:
                return 0 if agent.failure is None else 1
            time.sleep(pause)
    except (SyncError, FormatError) as error:
        _say(str(error))
        return 2
    except OSError as error:
        _say(f"{error.filename or options.folder}: {error.strerror or error}")
        return 2


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < _DAY_S:
            return value
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of seconds above 0 and below {_DAY_S}"
    )


def _location(url: str, variables: Mapping[str, str]) -> Location:
    """Return where the bucket is; the variable AWS_ENDPOINT names a host if ``url`` names none."""
    try:
        found = read_location(url)
    except FormatError as error:
        raise UsageError(f"{error}; give s3://[https://HOST:PORT/]BUCKET[/PREFIX]") from None
    named = variables.get("AWS_ENDPOINT")
    if found.endpoint is not None or not named:
        return found
    try:
        return replace(found, endpoint=read_endpoint(named))
    except FormatError as error:
        raise UsageError(f"AWS_ENDPOINT is {error}") from None


def _least(variables: Mapping[str, str]) -> int:
    text = variables.get("NUML_VERIFY_SEQUENCE") or "0"
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise UsageError(f"NUML_VERIFY_SEQUENCE is {text!r}, not a number")
    return int(text)


def _server(url: str) -> Server:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.port != 0:
            return Server(parts.hostname, parts.port or 80)
    raise argparse.ArgumentTypeError(f"{url!r} is not http://HOST:PORT")


def _say(line: str) -> None:
    # It may quote a service's answer, which must not start a line or move the cursor.
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    sys.stdout.write(f"sync: {plain}\n")
    sys.stdout.flush()
