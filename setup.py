"""Makes the wheel: the kit, and all that it reads of a checkout.

``deploy/share`` in the wheel holds the models, recipes, locks and the chart, and ``numl_serving``
built for this platform, so that no user needs a compiler. ``scripts/wheel`` runs it in a clone,
where nothing lies that git does not track.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHARED = (
    "containers",
    "envs/kit.txt",
    "envs/numl",
    "envs/ocr",
    "envs/numpy",
    "envs/onnx",
    "envs/text",
    "gallery",
    "model_repository",
    "scripts/environments.py",
    "scripts/import_checkpoint.py",
    "scripts/install_container_tools",
)
PACKAGES = {
    "numlkit": "clients/python/numlkit",
    "numl_formats": "envs/numl/numl_formats",
    "numl_job": "envs/numl/numl_job",
}  # at the top of a checkout they are links
LEFT_OUT = ("envs/numl/numl_bench/", "envs/numl/numl_demo/")


def tracked() -> list[str]:
    """Return the files to share: those that git tracks, so that nothing local gets in."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--", *SHARED], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    return [name for name in names.split("\0") if name and not name.startswith(LEFT_OUT)]


def source() -> dict[str, object]:
    """Return the commit and its time, as ``deploy.artefacts.labels`` reads them."""
    command = ["git", "log", "-1", "--no-show-signature", "--format=%H %ct"]
    commit, time = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    dirty = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time))
    return {"revision": commit + ("-dirty" if dirty else ""), "epoch": epoch, "url": ""}


class BuildWithShare(build_py):
    """Adds what the kit reads of a checkout."""

    def run(self) -> None:
        """Copy the modules, then everything else."""
        super().run()
        share = Path(self.build_lib, "deploy", "share")
        shutil.rmtree(share, ignore_errors=True)
        for name in tracked():
            (share / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, share / name)
        (share / "source.json").write_text(json.dumps(source()) + "\n", encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
             "--wheel-dir", share / "prebuilt", share / "envs" / "numl"],
            check=True,
        )  # fmt: skip
        for made in ("build", "numl_serving.egg-info", "native/__pycache__"):
            shutil.rmtree(share / "envs" / "numl" / made, ignore_errors=True)


class PlatformWheel(bdist_wheel):
    """For one platform, whose native library it has, and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]

    def finalize_options(self) -> None:
        """Mark it as made for a platform."""
        super().finalize_options()
        self.root_is_pure = False


setup(
    packages=[*find_packages(include=["deploy", "deploy.*"]), "deploy.sites", *PACKAGES],
    package_dir=PACKAGES,
    package_data={"deploy.sites": ["*.toml"], "numlkit": ["py.typed"]},
    cmdclass={"build_py": BuildWithShare, "bdist_wheel": PlatformWheel},
)
