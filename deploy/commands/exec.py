"""Run a command beside a server of its own, which ends with it and leaves nothing."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from deploy.checks.launch import check_given
from deploy.commands.up import add_verify_option, chosen, fetch_triton, launch
from deploy.deployment.deployment import load_deployment
from deploy.deployment.options import add_deployment_options, overrides
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.engines.base import Engine, forget_everything
from deploy.engines.resolved import Resolved
from deploy.host.cli import Parser, describe_os_error, make_parser, run
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, KitError
from numl_job.command import FAILED, Remains, Signals, refused
from numl_job.options import Job, JobError, add_job_options, split_words


def parser() -> Parser:
    flags = make_parser("exec", __doc__, deployment=False)
    flags.usage = "numlkit exec [-h] [options] [file] -- COMMAND ..."
    flags.epilog = f"""The exit status is COMMAND's; 2 if an option or a file is
        wrong, {FAILED} if the server did not start.
        COMMAND finds the server by NUML_GRPC_URL and NUML_HTTP_URL, or in the FHiCL file."""
    add_job_options(flags)
    add_deployment_options(flags)
    add_verify_option(flags)
    return flags


def _exec(words: Sequence[str], options: argparse.Namespace, console: Console) -> int:
    try:
        job = Job.of(options, words)
    except JobError as error:
        raise DeploymentError(str(error)) from None
    name = f"exec-{os.getpid()}-{secrets.token_hex(3)}"
    folder = DeploymentFolder(name)
    resolved = Resolved.of(load_deployment(options.file, {**overrides(options), "name": name}))
    with ExitStack() as stack:
        try:
            remains = stack.enter_context(Remains())
            fetch_triton(resolved.deployment, console)
            warnings = check_given(resolved)
            # By this lock others see that what is half made is being made.
            with folder.starting():
                engine, _ = chosen(options, resolved, console)
                state = launch(engine, folder, console, warnings, parent=os.getpid())
        except DeploymentError:
            raise
        except (KitError, OSError) as error:
            told = describe_os_error(error) if isinstance(error, OSError) else error
            told.remedy = _forget_failed(folder, told.remedy, options.log, console)
            console.error(told)
            return FAILED
        except KeyboardInterrupt:
            _forget_failed(folder, None, options.log, console)
            raise
        # What comes while the server is stopped, and what remains is removed, waits, too.
        with Signals() as signals, stack.pop_all():
            try:
                words, variables = job.told(remains.folder, state.url("grpc"), state.url("http"))
                return signals.run(words, {**os.environ, **variables}, remains)
            except JobError as error:
                console.error(KitError(str(error)))
                return FAILED
            except OSError as error:
                status, why = refused(words, error)
                console.error(KitError(why))
                return status
            finally:
                if options.log is not None:
                    _keep_log(state.log, options.log, console)
                _stop(engine, folder, state, console)


def _stop(
    engine: Engine, folder: DeploymentFolder, state: DeploymentState, console: Console
) -> None:
    try:
        engine.stop(folder, state)
        forget_everything(folder)
    except (KitError, OSError) as error:  # the exit status is the command's; doctor finds the rest
        console.error(describe_os_error(error) if isinstance(error, OSError) else error)


def _keep_log(source: Path, log: Path, console: Console) -> bool:
    try:
        shutil.copyfile(source, log)
    except OSError as error:  # the exit status says more
        console.error(KitError(f"--log {log}: {error.strerror or error}"))
        return False
    return True


def _forget_failed(
    folder: DeploymentFolder, remedy: str | None, log: Path | None, console: Console
) -> str | None:
    """Remove what a start that failed has left, after a copy of its log if there is to be one.

    Returns:
        The error's remedy, which names the copy.
    """
    kept = log is not None and folder.log.exists() and _keep_log(folder.log, log, console)
    if kept and remedy is not None:
        remedy = remedy.replace(str(folder.log), str(log))
    # What the person is told to look at stays, and so does what finds a server that still runs.
    if str(folder.path) not in (remedy or "") and not folder.state_file.exists():
        forget_everything(folder)
    return remedy


def main(argv: Sequence[str] | None = None) -> int:
    words, command = split_words(sys.argv[1:] if argv is None else argv)
    return run(partial(_exec, command), parser, words)
