"""Compiled networks: made once per architecture and kind of device, kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.environment.install import Environment
from deploy.files import digest_of, locked, write_atomically
from deploy.hardware.gpu import Device

# What any x86-64 server of the last ten years has: for what is made here and runs elsewhere.
PORTABLE_LEVEL = "x86-64-v3"


@dataclass(frozen=True)
class Compiled:
    """What the models run with.

    Attributes:
        name: Another one once more of them are compiled.
        folders: The compiled networks; none if they run uncompiled.
    """

    name: str = "uncompiled"
    folders: tuple[Path, ...] = ()


def compiled_folder(cache: Path) -> Path:
    """Return the folder of the compiled networks; a server needs nothing of it to work."""
    return cache / "compiled"


def missing_compiler() -> str | None:
    """Return the C++ compiler that is wanted and not installed; None: it is there."""
    compiler = os.environ.get("CXX", "g++")
    return compiler if shutil.which(compiler) is None else None


def ensure_compiled(
    environment: Environment,
    models: Sequence[Path],
    cache: Path,
    say: Say,
    level: str | None = None,
    gpu: Device | None = None,
) -> Compiled:
    """Compile what is not compiled yet; without it models serve the same answers, slower.

    Args:
        environment: The environment that will serve; it compiles, too.
        models: Folders with ``model.json`` and weights.
        cache: The kit's cache folder.
        say: Is told what happens, and why something is not compiled.
        level: The level of instructions they may use; None: all that this processor has.
        gpu: Where they run, and all others of its compute capability; None: on the processor.
    """
    folder = compiled_folder(cache)
    capability = "" if gpu is None else f"gpu {gpu.compute_capability}"
    identity = f"{environment.digest}{_processor()}{level or ''}{capability}"
    total = hashlib.sha256(identity.encode())
    for model in models:
        total.update(digest_of([model / "model.json"], base=model).encode())
    stamp = folder / f"{total.hexdigest()}.done"
    if stamp.exists():
        made = tuple(folder / name for name in stamp.read_text().split())
        if all(each.is_dir() for each in made):
            return Compiled(stamp.name, made)
    place, takes = level or "this processor", "half a minute"
    uncompiled = "models run uncompiled"
    if gpu is not None:
        place, takes = gpu.label, "some minutes"
        uncompiled += f" on {place}"
    lacking = missing_compiler()
    if lacking is not None:
        say(f"{uncompiled}, which is slower: no C++ compiler ({lacking})")
        return Compiled()
    say(f"compiling the networks for {place} ({takes}, unless done before)")
    command = [str(environment.python), "-P", "-m", "numl_serving.compile", *map(str, models)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables["OMP_NUM_THREADS"] = "1"
    if level is not None:
        command += ["--level", level]
    if gpu is not None:
        command += ["--gpu"]
        variables["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        for left in folder.glob(".compiling-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        done = subprocess.run(
            [*command, "--out", str(folder)],
            capture_output=True,
            text=True,
            env=variables,
            check=False,
        )
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [report["error"] for report in reports if report.get("error")]
    if done.returncode != 0 or errors or not reports:
        said = done.stderr.strip().splitlines()
        reason = errors[0] if errors else said[-1] if said else f"exit status {done.returncode}"
        say(f"{uncompiled}, which is slower: {reason}")
        return Compiled()
    names = sorted({Path(report["compiled"]).name for report in reports})
    write_atomically(stamp, "\n".join(names) + "\n")
    return Compiled(stamp.name, tuple(folder / name for name in names))


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "".join(sorted({line for line in text.splitlines() if line.startswith("flags")}))
