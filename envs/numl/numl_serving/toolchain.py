"""What a compilation needs besides torch: the C++ compiler, the blocks in C++, CUDA's own parts."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from numl_serving.compiled import CompiledError

KERNEL = "numl_blocks"
"""Name of the library with the networks' blocks, as a linker is told it."""
_SOURCE = "blocks.cpp"
# Torch includes them, but uses nothing of them where all numbers are float32; they need a header
# of the toolkit that no package here has (nv/target).
_UNUSED_HEADERS = ("cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h")


def build_kernel(compiler: str, folder: Path, march: str = "native") -> Path:
    """Compile the C++ of the networks' blocks into an archive in a folder; returns its path.

    Args:
        compiler: g++, or another that knows its flags.
        folder: Where it is put.
        march: What instructions it may use, as the compiler names them.

    Raises:
        CompiledError: With what the compiler says.
    """
    source, compiled = Path(__file__).with_name(_SOURCE), folder / f"{KERNEL}.o"
    archive = folder / f"lib{KERNEL}.a"
    flags = ["-O3", f"-march={march}", "-std=c++17", "-fPIC", "-fno-math-errno", "-Wno-psabi"]
    include = Path(torch.__file__).parent / "include"
    run([compiler, *flags, f"-I{include}", "-c", str(source), "-o", str(compiled)])
    run(["ar", "rcs", str(archive), str(compiled)])
    return archive


def placeless_compiler(compiler: str, folder: Path) -> str:
    """Return the path of a compiler that puts no names of files into what it makes.

    They lie in folders of this machine, and are others each time.
    """
    script = folder / "bin" / Path(compiler).name
    script.parent.mkdir()
    flags = ["-Wno-builtin-macro-redefined", '-D__FILE__="iteration"']
    script.write_text(f'#!/bin/sh\nexec {shlex.join([compiler, *flags])} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return str(script)


def cuda_home(folder: Path, maps: Path = Path("/proc/self/maps")) -> Path:
    """Make a folder that looks like an installation of CUDA, as far as compilers look into it.

    A toolkit is not needed, and the host's may be of another version: the headers are those that
    Triton's package brings, and the library is the driver's own.

    Args:
        folder: Where it is put.
        maps: What this process has loaded, as the kernel tells it: the driver, too.

    Raises:
        CompiledError: Either is not there.
    """
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        raise CompiledError("there is no triton in this environment")
    headers = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    if not (headers / "cuda.h").exists():
        raise CompiledError(f"{headers} has no cuda.h")
    loaded = (line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines())
    driver = next((path for path in loaded if Path(path).name.startswith("libcuda.so")), None)
    if driver is None:
        raise CompiledError("NVIDIA's driver library libcuda.so.1 is not loaded")
    include, libraries = folder / "cuda" / "include", folder / "cuda" / "lib64"
    include.mkdir(parents=True)
    for header in headers.iterdir():
        if header.name in _UNUSED_HEADERS:
            (include / header.name).touch()
        else:
            (include / header.name).symlink_to(header)
    libraries.mkdir()
    (libraries / "libcuda.so").symlink_to(driver)
    return include.parent


def run(command: Sequence[str]) -> None:
    """Run a program of the compiler's kind.

    Raises:
        CompiledError: With the first line of what it complains of.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompiledError(f"{command[0]} cannot be run ({error.strerror})") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CompiledError(f"{Path(command[0]).name} fails: {said[0]}")


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Give this process, and those that it starts, other environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
