"""The options of ``exec`` that are about the job, and the job's variables and words."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from numl_job.fhicl import producers_of, with_server


class JobError(Exception):
    """The job cannot be run as given."""


def add_job_options(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    fcl = "the job's FHiCL file: COMMAND gets a copy that names the server, in place of this file"
    add("--fcl", type=Path, metavar="FILE", help=fcl)
    producer = "a producer that asks the server; repeatable (default: those that FILE shows)"
    add("--producer", action="append", default=[], metavar="LABEL", help=producer)
    add("--log", type=Path, metavar="FILE", help="keep the server's log in this file")


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own options, and the command after ``--``; it is empty if there is none."""
    if "--" not in words:
        return list(words), []
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


@dataclass(frozen=True)
class Job:
    """A command, and the FHiCL file to copy for it, as far as they are known before the start."""

    words: Sequence[str]
    fcl: Path | None = None
    text: str = ""
    producers: Sequence[str] = ()

    @classmethod
    def of(cls, options: argparse.Namespace, words: Sequence[str]) -> Job:
        """Read what the options name; JobError if that cannot be run."""
        log: Path | None = options.log
        if log is not None and not log.parent.is_dir():
            raise JobError(f"--log {log}: no such folder: {log.parent}")
        if not words:
            raise JobError("no command given: put it after --, for example exec -- lar -c job.fcl")
        fcl: Path | None = options.fcl
        if fcl is None:
            if options.producer:
                raise JobError("--producer needs --fcl FILE")
            return cls(words)
        try:
            # A comment may have a name in Latin-1.
            text = fcl.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise JobError(f"--fcl {fcl}: {error.strerror}") from None
        if fcl not in map(Path, words):
            raise JobError(f"--fcl {fcl}: COMMAND does not name this file")
        producers = options.producer or producers_of(text)
        if not producers:
            cause = "shows no producer with a TritonConfig; name it with --producer"
            raise JobError(f"--fcl {fcl}: {cause}")
        return cls(words, fcl, text, producers)

    def told(self, folder: Path, grpc: str, http: str) -> tuple[list[str], dict[str, str]]:
        """Return the words and the variables to add, for a server at these URLs.

        A FHiCL file that names the server is written to ``folder``; JobError if it cannot be.
        """
        hosts = dict.fromkeys(urlsplit(url).hostname or "" for url in (grpc, http))
        variables = {"NUML_GRPC_URL": grpc, "NUML_HTTP_URL": http, **_direct(hosts, os.environ)}
        if self.fcl is None:
            return list(self.words), variables
        copy = folder / self.fcl.name
        scheme, _, address = grpc.partition("://")
        text = with_server(self.text, self.producers, address, ssl=scheme == "grpcs")
        try:
            copy.write_text(text, encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise JobError(f"--fcl {copy}: {error.strerror}") from None
        words = [str(copy) if Path(word) == self.fcl else word for word in self.words]
        return words, {**variables, "NUML_FCL": str(copy)}


def _direct(hosts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which clients ask these hosts themselves, and no proxy for them.

    gRPC takes a proxy for 127.0.0.1, too, and obeys ``no_grpc_proxy`` instead of ``no_proxy``:
    https://github.com/grpc/grpc/blob/master/doc/environment_variables.md
    """
    # A client reads the name in capitals only where the other is missing.
    everywhere = environment.get("no_proxy") or environment.get("NO_PROXY", "")
    # An asterisk means every host where it stands alone; gRPC does not know it.
    lists = {} if everywhere == "*" else {"no_proxy": everywhere}
    if "no_grpc_proxy" in environment or everywhere == "*":
        lists["no_grpc_proxy"] = environment.get("no_grpc_proxy", "")
    return {name: ",".join(filter(None, (listed, *hosts))) for name, listed in lists.items()}
