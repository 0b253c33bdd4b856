"""Compiles the native library when the wheel is built; all else is in pyproject.toml.

``native/compiler.py`` says by which compiler. The library has a C interface: one wheel serves every
Python of a platform.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).parent / "native"
sys.path.insert(0, str(SOURCES))
from compiler import ZIG, compiler, identity  # noqa: E402  (no package: only built with it)

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-Wall", "-Wextra", "-ffp-contract=fast"]
FLAGS += ["-fno-math-errno", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"]
LEVELS = {"baseline": []}
if platform.machine() == "x86_64":
    LEVELS["baseline"] = ["-march=x86-64-v2"]
    LEVELS |= {f"x86_64_v{n}": [f"-march=x86-64-v{n}"] for n in (3, 4)}


def qhull() -> tuple[Path, Path, Path]:
    """Return the folder of QHull's headers, its library and its licence, of PyPI's cmeel-qhull."""
    files = importlib.metadata.files("cmeel-qhull") or []
    library = next(f for f in files if f.name == "libqhull_r.so.8.0")
    header = next(f for f in files if f.match("libqhull_r/qhull_ra.h"))
    licence = next(f for f in files if "licenses" in f.parts)
    return Path(header.locate()).parents[1], Path(library.locate()), Path(licence.locate())


def compile_library(to: Path) -> None:
    """Compile ``libnuml.so`` into a folder, and lay QHull's library beside it."""
    command, (headers, library, licence) = compiler(), qhull()
    shutil.copyfile(library, to / library.name)
    shutil.copyfile(licence, to / f"{library.name}.licence.txt")
    includes = [f"-I{headers}", f"-I{headers / 'libqhull_r'}"]
    with tempfile.TemporaryDirectory() as scratch:
        objects = {
            Path(scratch, f"{source.stem}.o"): (source.name, includes)
            for source in sorted(SOURCES.glob("*.cpp"))
            if source.name != "kernels.cpp"
        }
        for level, flags in LEVELS.items():
            if command == ZIG:  # which writes x86_64_v3
                flags = [flag.replace("x86-64-", "x86_64_") for flag in flags]
            flags = [*flags, f"-DNUML_LEVEL={level}"]
            objects[Path(scratch, f"kernels_{level}.o")] = ("kernels.cpp", flags)

        def compile_one(item: tuple[Path, tuple[str, list[str]]]) -> None:
            out, (source, flags) = item
            arguments = [*FLAGS, *flags, "-c", source, "-o", str(out)]
            subprocess.run([*command, *arguments], check=True, cwd=SOURCES)

        # The slow ones first.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, reversed(objects.items())))
        # No trace of the machine: the same sources and compiler give the same bytes.
        link = ["-shared", "-s", "-Wl,--build-id=none", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
        link += [f"-Wl,--version-script={SOURCES / 'exports.map'}"]
        # Nothing of C++'s run-time library is needed, which ziglang would first have to make.
        link += ["-Wl,--as-needed"]
        linker = [*ZIG[:3], "cc", *ZIG[4:]] if command == ZIG else [*command, "-static-libgcc"]
        made = [*map(str, sorted(objects)), str(to / library.name), "-lm"]
        subprocess.run([*linker, *link, "-o", str(to / "libnuml.so"), *made], check=True)
    (to / "compiler.txt").write_text(f"{identity(command)}\n", encoding="utf-8")


# Python runs it when it starts, with ``sitedir``: every model in an environment with this wheel is
# guarded.
GUARD = (
    "import os; os.path.basename(os.readlink('/proc/self/exe')) == 'triton_python_backend_stub' "
    "and exec(open(os.path.join(sitedir, 'numl_serving', 'guarding.py')).read(), {})\n"
)


class BuildWithLibrary(build_py):
    """Adds the library and the guard to the modules."""

    def run(self) -> None:
        """Copy the modules, then compile."""
        super().run()
        compile_library(Path(self.build_lib) / "numl_serving")
        Path(self.build_lib, "numl_serving.pth").write_text(GUARD, encoding="ascii")


class PlatformWheel(bdist_wheel):
    """For one platform, and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Not pure Python."""

    def has_ext_modules(self) -> bool:
        """Say so."""
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    distclass=NativeDistribution,
)
