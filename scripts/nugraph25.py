"""nugraph and pynuml 25.4.0 in a separate folder; the full environment has 24.7.1 of both.

``python3 scripts/nugraph25.py`` makes the folder if need be, and prints its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KIT_PYTHON = ROOT / ".venv" / "bin" / "python"
LOCK = ROOT / "envs" / "nugraph25.txt"


def nugraph25() -> Path:
    """Return the folder with nugraph 25.4.0, which `numl_demo.nugraph25` lays beside 24.7.1.

    It is the one that NUGRAPH25 names, else one in ``.venv``, made if need be.

    Raises:
        OSError: It cannot be made.
    """
    if given := os.environ.get("NUGRAPH25"):
        return Path(given)
    folder = ROOT / ".venv" / "nugraph25"
    complete = folder / ".complete"
    if complete.exists() and complete.read_bytes() == LOCK.read_bytes():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    options += ["--only-binary", ":all:", "--target", str(folder), "-r", str(LOCK)]
    if subprocess.run([KIT_PYTHON, "-I", "-m", "pip", "install", *options], check=False).returncode:
        raise OSError(f"pip cannot install {LOCK.name} into {folder}: its output is above")
    shutil.copyfile(LOCK, complete)
    return folder


if __name__ == "__main__":
    try:
        print(nugraph25())
    except OSError as error:
        sys.exit(f"error: {error}")
