"""Runs the kit's commands in processes that have been forked after the imports.

What a command imports takes longer than most of what these tests have it do. All else is as when
a person types it: a process of its own, with its words, its folder, its variables and two pipes.
That each file in ``deploy/`` imports what it uses, tests/unit/deploy/commands show.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from deploy.host.paths import CHECKOUT
from deploy.main import COMMANDS

# What commands import only when they need it.
_LATER = (
    *("numpy", "rich.console", "prometheus_client.parser", "cryptography.x509", "boto3", "docker"),
    *("tritonclient.http", "tritonclient.grpc", "grpc_health.v1.health_pb2_grpc", "spython.main"),
    *("deploy.engines.local", "deploy.engines.docker", "deploy.engines.apptainer"),
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, *(f"deploy.{name}" for name in COMMANDS), *_LATER])


def run_command(
    words: Sequence[str], variables: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``python3 deploy/COMMAND.py ...`` in the checkout.

    Raises:
        subprocess.TimeoutExpired: It took longer than ``timeout`` seconds, and was killed.
    """
    pipes = [_context.Pipe(duplex=False) for _ in range(2)]
    readers, writers = [reader for reader, _ in pipes], [writer for _, writer in pipes]
    process = _context.Process(target=_run, args=(list(words), dict(variables), *writers))
    process.start()
    for writer in writers:
        writer.close()
    with ThreadPoolExecutor(len(readers)) as pool:
        said = [pool.submit(_read, reader) for reader in readers]
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout)
        out, err = (each.result(timeout) for each in said)
    return subprocess.CompletedProcess(list(words), process.exitcode, out, err)


def _read(reader: Connection) -> str:
    with os.fdopen(os.dup(reader.fileno()), encoding="utf-8") as stream, reader:
        return stream.read()


def _run(words: list[str], variables: dict[str, str], *writers: Connection) -> None:
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(CHECKOUT)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv, sys.path[0] = words, str(CHECKOUT / "deploy")
    runpy.run_path(words[0], run_name="__main__")
