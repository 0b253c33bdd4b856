"""Small wheels that the real pip installs."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    folder: Path, file: str, more: Mapping[str, str] | None = None, *, needs: str = ""
) -> Path:
    """Write a wheel with a module, ``more`` files, and further lines of its metadata."""
    name, version, *_ = file.split("-")
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in {
            f"{name}/__init__.py": "",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {file.split('-', 2)[2][:-4]}\n",
            f"{info}/RECORD": "",
            **(more or {}),
        }.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = 0o100755 << 16
            archive.writestr(member, text)
    return folder / file
