"""What a relocatable environment leaves out, and which of its modules are compiled in advance.

Patterns are of paths in a prefix (``fnmatch``: ``*`` crosses folders; ``{stdlib}`` and ``{site}``
are the folders of the standard library and of the packages). :data:`KEPT` takes precedence.
NuGraph's own stack stays importable: a test imports all of it. What a site's packages read is not
known (stubs, when lazy_loader imports; headers, when Triton compiles kernels): they stay whole.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from deploy.host.errors import EnvironmentSetupError
from deploy.host.programs import run

KEPT = ("{site}/torch/bin/torch_shm_manager",)  # torch looks for it when it is imported

LEFT_OUT = {
    "lists the wheel's files; conda-meta lists ours": ["{site}/*.dist-info/RECORD*"],
    "tests": [
        "{site}/*/tests/*", "{site}/torch/test/*",
        "{site}/torch/testing/_internal/common_methods_invocations.py",
        "{site}/torch/testing/_internal/generated/*", "{site}/torch/testing/_internal/opinfo/*",
        "{site}/torch/testing/_internal/distributed/*_test.py",
        "{site}/torch/testing/_internal/distributed/rpc/*",
        "{site}/torch/lib/libtorchbind_test.so", "{site}/torch/lib/libjitbackend_test.so",
        "{site}/torch/lib/libbackend_with_compiler.so", "{site}/torch/lib/libaoti_custom_ops.so",
        "{site}/numpy/core/_simd.*", "{stdlib}/test/*", "{stdlib}/*/test/*",
        "{stdlib}/*/tests/*", "{stdlib}/*/idle_test/*", "{stdlib}/lib-dynload/_test*",
        "{stdlib}/lib-dynload/_ctypes_test.*", "{stdlib}/lib-dynload/_xxtestfuzz.*",
    ],
    "types, for checkers": ["{site}/*.pyi"],
    "headers, for compiling": [
        "{site}/*.h", "{site}/*.hpp", "{site}/*.cuh", "{site}/torch/include/*",
        "{site}/nvidia/*/include/*", "include/*",
    ],
    "sources of compiled modules": [
        "{site}/*.c", "{site}/*.cpp", "{site}/*.f90", "{site}/*.px[di]", "{site}/*.pyx*",
    ],
    "test programs, the compiler of protocol buffers": ["{site}/torch/bin/*"],
    "for building programs": ["{site}/torch/share/*", "{stdlib}/config-3*", "{site}/*.a"],
    "a compiler of GPU kernels, which eager inference does not use": ["{site}/triton/*"],
    "programs of the CUDA toolkit": ["{site}/nvidia/*/bin/*"],
    "a second build of CUDA's run-time compiler": ["{site}/nvidia/*.alt.so*"],
    "mpich with another interface; mpi4py loads libmpi.so.12": ["lib/libmpi_abi.so*"],
    "starts and compiles parallel programs": ["bin/hydra_*", "bin/mpi*"],
    "manual pages, plug-ins of notebooks": ["share/*"],
    "plug-ins of notebooks, drawing in a browser": [
        "{site}/plotly/labextension/*", "{site}/plotly/package_data/plotly.min.js",
    ],
    "a format of pictures; pillow does without": [
        "{site}/pillow.libs/libavif-*", "{site}/PIL/_avif.*",
    ],
    "compiled again, independent of times": ["{stdlib}/*__pycache__/*"],
    "windows on a screen or terminal": [
        "{stdlib}/tkinter/*", "{stdlib}/turtle*", "{stdlib}/lib-dynload/_tkinter.*",
        "{stdlib}/lib-dynload/_curses*",
    ],
    "an editor, texts of help(), what translates Python 2, what installs pip": [
        "{stdlib}/idlelib/*", "{stdlib}/pydoc_data/*", "{stdlib}/lib2to3/*", "{stdlib}/ensurepip/*",
    ],
    "databases, sound, user names in a network, examples": [
        "{stdlib}/lib-dynload/_dbm.*", "{stdlib}/lib-dynload/_gdbm.*",
        "{stdlib}/lib-dynload/ossaudiodev.*", "{stdlib}/lib-dynload/nis.*",
        "{stdlib}/lib-dynload/xx*",
    ],
    "about the host's packages": ["{stdlib}/EXTERNALLY-MANAGED"],
    "the environment has its own": ["{stdlib}/sitecustomize.py"],
    "password hashes; needs a new glibc": ["{stdlib}/lib-dynload/_crypt.*"],
}  # fmt: skip
"""Patterns, by the reason why nothing needs what they match."""
_LEFT_OUT = tuple(pattern for patterns in LEFT_OUT.values() for pattern in patterns)
_OF_PYTHON = tuple(pattern for pattern in _LEFT_OUT if pattern.startswith("{stdlib}/"))

COMPILED = (
    "{stdlib}/*", "{site}/numl_formats/*", "{site}/numl_serving/*", "{site}/numpy/*",
    "{site}/pynvml*", "{site}/safetensors/*", "{site}/torch/*", "{site}/torchgen/*",
    "{site}/tqdm/*", "{site}/typing_extensions.py",
)  # fmt: skip
"""Modules that are compiled in advance: those of packages that serving imports."""

NOT_COMPILED = (
    "{stdlib}/distutils/*", "{site}/numpy/distutils/*", "{site}/numpy/f2py/*",
    "{site}/torch/_dynamo/*", "{site}/torch/_inductor/*", "{site}/torch/_vendor/*",
    "{site}/torch/distributed/*/*", "{site}/torch/onnx/*", "{site}/torch/testing/_internal/*",
)  # fmt: skip
"""Parts of these that it does not import; they would be a third of the compiled files."""

# A process compiles a fixed set of files: what a code object shares with others depends
# on what was compiled before it.
_FILES_PER_PROCESS = 250

_COMPILE = """
import json, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for source, shown in json.load(sys.stdin):
    # Some packages carry templates or code for other Pythons in files named *.py.
    py_compile.compile(source, dfile=shown, quiet=2, invalidation_mode=mode)
"""

_PART = re.compile(r"(lib/(python3\.\d+/(site-packages/)?)?)?[^/]+")

_FOLDERS = {
    "{site}": r"lib/python3\.\d+/site-packages",
    "{stdlib}": r"lib/python3\.\d+(?!/site-packages/)",
}


def is_needed(path: str, *, whole: bool = False) -> bool:
    """Return whether a file stays; ``whole``: whatever is of a package does."""
    return _matches(KEPT, path) or not _matches(_OF_PYTHON if whole else _LEFT_OUT, path)


def is_compiled(path: str) -> bool:
    return _matches(COMPILED, path) and not _matches(NOT_COMPILED, path)


def compile_modules(prefix: Path, files: Iterable[Path], python: Path) -> None:
    """Compile the modules among ``files``, which are in ``prefix``, for an interpreter's version.

    The prefix is read-only where it is used, so every start would compile them again. The compiled
    files are unchecked hash-based ones (PEP 552): valid whatever the modification times, and the
    same in every build, if the files come in the same order.
    """
    modules = [(str(p), p.relative_to(prefix).as_posix()) for p in files if p.suffix == ".py"]

    def compile_some(start: int) -> None:
        # -S, -I: neither this host's Python set-up nor the current folder affects the result.
        run(
            [python, "-S", "-I", "-c", _COMPILE],
            failed=f"{python} cannot compile modules",
            stdin=[json.dumps(modules[start : start + _FILES_PER_PROCESS]).encode()],
            error=EnvironmentSetupError,
        )

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        list(executor.map(compile_some, range(0, len(modules), _FILES_PER_PROCESS)))


def _matches(patterns: tuple[str, ...], path: str) -> bool:
    return _any_of(patterns).match(path) is not None


@lru_cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    expressions = []
    for pattern in patterns:
        folder, slash, rest = pattern.partition("/")
        expressions.append(_FOLDERS.get(folder, re.escape(folder)) + slash + translate(rest))
    return re.compile("|".join(expressions))


def largest_parts(prefix: Path, count: int) -> list[tuple[str, int]]:
    """Return the ``count`` largest parts of a prefix and their bytes, the largest first.

    A part is a package, an entry of ``lib/python3.*`` or one of the prefix.
    """
    sizes: Counter[str] = Counter()
    for path in prefix.rglob("*"):
        if path.is_file() and not path.is_symlink():
            part = _PART.match(path.relative_to(prefix).as_posix())
            assert part is not None
            sizes[part[0]] += path.stat().st_size
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
