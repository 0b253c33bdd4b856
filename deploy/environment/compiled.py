"""Networks compiled for this host's processor: made once per architecture, kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.console import Say
from deploy.environment.install import Environment
from deploy.files import digest_of, locked, write_atomically


def compiled_folder(cache: Path) -> Path:
    """Return the folder of the compiled networks; a server needs nothing of it to work."""
    return cache / "compiled"


def ensure_compiled(environment: Environment, models: Sequence[Path], cache: Path, say: Say) -> str:
    """Compile what is not compiled yet; without it models serve the same answers, slower.

    Args:
        environment: The environment that will serve; it compiles, too.
        models: Folders with ``model.json`` and weights.
        cache: The kit's cache folder.
        say: Is told what happens, and why something is not compiled.

    Returns:
        A name for what the models run with: another one once more of them are compiled.
    """
    folder = compiled_folder(cache)
    total = hashlib.sha256(f"{environment.digest}{_processor()}".encode())
    for model in models:
        total.update(digest_of([model / "model.json"], base=model).encode())
    stamp = folder / f"{total.hexdigest()}.done"
    if stamp.exists() and all((folder / name).is_dir() for name in stamp.read_text().split()):
        return stamp.name
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        say(f"models run uncompiled, which is slower: no C++ compiler ({compiler})")
        return "uncompiled"
    say("compiling the networks for this processor (about a minute, once)")
    command = [str(environment.python), "-P", "-m", "numl_serving.compile", *map(str, models)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables["OMP_NUM_THREADS"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
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
        say(f"models run uncompiled, which is slower: {reason}")
        return "uncompiled"
    names = sorted({Path(report["compiled"]).name for report in reports})
    write_atomically(stamp, "\n".join(names) + "\n")
    return stamp.name


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "".join(sorted({line for line in text.splitlines() if line.startswith("flags")}))
