"""What a compilation finds of CUDA. Driver and headers are made up: there is no GPU here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from numl_serving.compiled import CompiledError
from numl_serving.toolchain import cuda_home

MAPS = """\
7f00-7f01 r--p 00000000 fe:00 1                          /usr/lib/libc.so.6
7f02-7f03 r--p 00000000 00:00 0
7f04-7f05 r-xp 00000000 fe:00 2                          /usr/lib/libcuda.so.580.65.06
7f06-7f07 r-xp 00000000 fe:00 2                          /usr/lib/libcuda.so.580.65.06
"""


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the headers in a package that looks like Triton's."""
    package = tmp_path / "packages" / "triton"
    folder = package / "backends" / "nvidia" / "include"
    (folder / "crt").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("cuda.h", "cuda_runtime.h", "cuda_fp16.h", "cuda_fp8.h", "cuda_bf16.h"):
        (folder / name).write_text("// the header")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    return folder


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    (tmp_path / "maps").write_text(MAPS)
    return tmp_path / "maps"


def test_cuda_s_home_has_triton_s_headers_and_the_driver_that_is_loaded(
    headers: Path, maps: Path, tmp_path: Path
) -> None:
    home = cuda_home(tmp_path, maps)
    found = {
        str(path.relative_to(home)): str(path.readlink()) if path.is_symlink() else "empty"
        for folder in ("include", "lib64")
        for path in (home / folder).iterdir()
    }
    assert found == {
        "include/crt": str(headers / "crt"),
        "include/cuda.h": str(headers / "cuda.h"),
        "include/cuda_bf16.h": "empty",
        "include/cuda_fp16.h": "empty",
        "include/cuda_fp8.h": "empty",
        "include/cuda_runtime.h": str(headers / "cuda_runtime.h"),
        "lib64/libcuda.so": "/usr/lib/libcuda.so.580.65.06",
    }
    assert (home / "include" / "cuda_fp16.h").read_text() == ""


def test_without_a_driver_or_headers_a_line_says_so(
    headers: Path, maps: Path, tmp_path: Path
) -> None:
    maps.write_text(MAPS.replace("libcuda", "libcudart"))
    with pytest.raises(CompiledError, match=r"^NVIDIA's driver library libcuda.so.1 is not loaded"):
        cuda_home(tmp_path, maps)
    (headers / "cuda.h").unlink()
    with pytest.raises(CompiledError, match=r"include has no cuda.h$"):
        cuda_home(tmp_path, maps)
