"""Show a deployment's logs, even after it has stopped."""

from __future__ import annotations

if __package__ in (None, ""):
    from host.bootstrap import ensure_kit

    ensure_kit()

import argparse
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.deployment.options import add_namespace
from deploy.deployment.state import DeploymentFolder
from deploy.engines.choose import find_rollout
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.errors import ClusterError, DeploymentError, NotRunningError

if TYPE_CHECKING:
    from deploy.engines.pods import PodState
    from deploy.engines.rollout import Rollout


_POLL_S = 2.0  # how often it is asked whether there are other pods
_NOT_STARTED = 400  # what the API server answers of such a container


def parser() -> Parser:
    flags = make_parser("logs", __doc__)
    flags.add_argument("--supervisor", action="store_true", help="the supervisor's log instead")
    tail = "last lines (default: 50)"
    flags.add_argument("--tail", type=_lines, default=50, metavar="N", help=tail)
    flags.add_argument("--follow", action="store_true", help="show new lines until interrupted")
    add_namespace(flags)
    return flags


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _logs(options: argparse.Namespace, console: Console) -> int:
    if options.follow and options.json:
        cause = "--follow never ends, but --json prints one document: leave one out"
        raise DeploymentError(cause)
    rollout = find_rollout(options.name, options.namespace)
    if rollout is not None:
        return _of_pods(rollout, options, console)
    folder = DeploymentFolder(options.name)
    path = folder.supervisor_log if options.supervisor else folder.log
    if not path.exists():
        cause = f"deployment {options.name!r} has no log"
        raise NotRunningError(cause, f"numlkit up --name {options.name}")
    content = path.read_bytes()
    if options.follow:
        # A line that is being written is shown when it is whole.
        content = content[: content.rfind(b"\n") + 1]
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    lines = lines[-options.tail :] if options.tail > 0 else []
    for line in lines:
        console.log_line(line)
    said = [line.decode(errors="replace") for line in lines]
    console.answer({"ok": True, "log": str(path), "lines": said})
    if options.follow:
        _follow(path, len(content), console)
    return 0


def _of_pods(rollout: Rollout, options: argparse.Namespace, console: Console) -> int:
    """Show the logs of all containers, each line with its container if there are several."""
    if options.supervisor:
        raise DeploymentError("--supervisor: a cluster has none; the kubelet restarts containers")
    rollout.require()
    if options.follow:
        return _follow_pods(rollout, options.tail, console)
    streams = list(_streams(rollout))
    logs: dict[str, list[str]] = {}
    for name, pod, container in streams:
        before = f"{name}: ".encode() if len(streams) > 1 else b""
        logs[name] = []
        try:
            for line in rollout.cluster.log(pod.name, container, tail=options.tail):
                logs[name].append(line.decode(errors="replace"))
                console.log_line(before + line)
        except ClusterError as error:  # has not started yet, or is gone
            console.say(f"pod {name} has no log: {error.cause}")
    console.answer({"ok": True, "pods": logs})
    return 0


def _streams(rollout: Rollout) -> Iterator[tuple[str, PodState, str]]:
    """Yield each container of each pod, with the prefix of its lines."""
    for pod in rollout.pods():
        for number, container in enumerate(pod.containers):
            yield f"{pod.name}/{container}" if number else pod.name, pod, container


def _follow_pods(rollout: Rollout, tail: int, console: Console) -> int:
    """Show what pods say, including later ones, until the deployment is gone."""
    # Of each container, by its name and how often it was restarted.
    threads: dict[tuple[str, int], threading.Thread] = {}
    tails: dict[tuple[str, int], int | None] = {}  # how many of the lines it has; None: all
    shown: set[tuple[str, int]] = set()
    silent: set[tuple[str, str]] = set()  # which has no log, and why
    first, fault = True, ""

    def show(key: tuple[str, int], pod: str, container: str, tail: int | None) -> None:
        try:
            for line in rollout.cluster.log(pod, container, tail=tail, follow=True):
                shown.add(key)
                console.log_line(f"{key[0]}: ".encode() + line)
        except ClusterError as error:  # as without --follow, or the connection is broken
            if error.status == _NOT_STARTED:
                tails[key] = None
            if (key[0], error.cause) not in silent and (error.status or key not in shown):
                console.say(f"pod {key[0]} has no log: {error.cause}")
            silent.add((key[0], error.cause))

    try:
        while True:
            try:
                if not rollout.deployments():
                    break
                for name, pod, container in _streams(rollout):
                    key = (name, pod.containers[container])
                    followed = key in threads and threads[key].is_alive()
                    if followed or (key in shown and not pod.ready):  # or its container has exited
                        continue
                    # Whoever comes later is shown from the first line; where a connection broke,
                    # what comes from now on.
                    before = tails.setdefault(key, tail if first else None)
                    lines = 0 if key in shown else before
                    words = (key, pod.name, container, lines)
                    threads[key] = threading.Thread(target=show, args=words, daemon=True)
                    threads[key].start()
                first, fault = False, ""
            except ClusterError as error:
                if error.cause != fault:
                    console.say(f"{error.cause}; trying again")
                fault = error.cause
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return 0
    for thread in threads.values():
        thread.join(_POLL_S)
    console.say(f"deployment {rollout.name} is gone")
    return 0


def _follow(path: Path, offset: int, console: Console) -> None:
    with path.open("rb") as stream:
        stream.seek(offset)
        begun = b""
        try:
            while True:
                begun += stream.readline()
                if begun.endswith(b"\n"):
                    console.log_line(begun.removesuffix(b"\n"))
                    begun = b""
                else:
                    time.sleep(0.2)
        except KeyboardInterrupt:
            return


main = partial(run, _logs, parser)

if __name__ == "__main__":
    raise SystemExit(main())
