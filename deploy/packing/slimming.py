"""What an environment that only answers events never loads, and so does not carry.

One table. A rule is a pattern of paths in a prefix (``fnmatch``: ``*`` crosses
folders; ``{stdlib}`` and ``{site}`` are the folders of the standard library and of the
packages) and the reason why nothing misses what it matches. :data:`KEPT` goes first.
NuGraph's own stack stays importable: a test imports all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from deploy.files import size_of


@dataclass(frozen=True)
class Rule:
    """Files that are left out, or kept against a later rule.

    Attributes:
        pattern: Of their paths below the prefix.
        why: The reason.
    """

    pattern: str
    why: str


KEPT = (Rule("{site}/torch/bin/torch_shm_manager", "torch looks for it when it is imported"),)

LEFT_OUT = (
    Rule("{site}/*.dist-info/RECORD*", "lists the wheel's files; conda-meta lists ours"),
    Rule("{site}/*/tests/*", "tests of a package"),
    Rule("{site}/*.pyi", "types, for checkers"),
    Rule("{site}/*.a", "static libraries, for linking"),
    Rule("{site}/*.h", "headers, for compiling"),
    Rule("{site}/*.hpp", "headers, for compiling"),
    Rule("{site}/*.cuh", "headers, for compiling"),
    Rule("{site}/*.c", "sources of compiled modules"),
    Rule("{site}/*.cpp", "sources of compiled modules"),
    Rule("{site}/*.f90", "sources of compiled modules"),
    Rule("{site}/*.px[di]", "sources of compiled modules"),
    Rule("{site}/*.pyx*", "sources of compiled modules"),
    Rule("{site}/*.lib", "import libraries of Windows"),
    Rule("{site}/*.exe", "programs for Windows"),
    # torch and what comes with its CUDA build
    Rule("{site}/torch/bin/*", "test programs, the compiler of protocol buffers"),
    Rule("{site}/torch/test/*", "test programs"),
    Rule("{site}/torch/testing/_internal/common_methods_invocations.py", "tests of torch"),
    Rule("{site}/torch/testing/_internal/generated/*", "tests of torch"),
    Rule("{site}/torch/testing/_internal/opinfo/*", "tests of torch"),
    Rule("{site}/torch/testing/_internal/distributed/*_test.py", "tests of torch"),
    Rule("{site}/torch/testing/_internal/distributed/rpc/*", "tests of torch"),
    Rule("{site}/torch/lib/libtorchbind_test.so", "tests of torch"),
    Rule("{site}/torch/lib/libjitbackend_test.so", "tests of torch"),
    Rule("{site}/torch/lib/libbackend_with_compiler.so", "tests of torch"),
    Rule("{site}/torch/lib/libaoti_custom_ops.so", "tests of torch"),
    Rule("{site}/torch/include/*", "headers, for C++ extensions"),
    Rule("{site}/torch/share/*", "CMake files, for C++ extensions"),
    Rule("{site}/torchgen/packaged/*", "templates of torch's own sources"),
    Rule("{site}/triton/*", "a compiler of GPU kernels, which eager inference does not use"),
    Rule("{site}/nvidia/*/bin/*", "programs of the CUDA toolkit"),
    Rule("{site}/nvidia/*/include/*", "headers"),
    Rule("{site}/nvidia/*.alt.so*", "a second build of the run-time compiler"),
    # mpich: mpi4py loads libmpi.so.12; the programs start and compile parallel programs
    Rule("lib/libmpi_abi.so*", "the same library with another interface"),
    Rule("bin/hydra_*", "starts parallel programs"),
    Rule("bin/mpi*", "starts and compiles parallel programs"),
    Rule("include/*", "headers"),
    Rule("share/*", "manual pages, plug-ins of notebooks"),
    # pictures and fonts
    Rule("{site}/plotly/labextension/*", "a plug-in of notebooks"),
    Rule("{site}/plotly/package_data/plotly.min.js", "draws in a browser"),
    Rule("{site}/plotly/package_data/datasets/*", "sample data"),
    Rule("{site}/matplotlib/mpl-data/sample_data/*", "sample data"),
    Rule("{site}/matplotlib/mpl-data/fonts/afm/*", "fonts of PostScript"),
    Rule("{site}/matplotlib/mpl-data/fonts/pdfcorefonts/*", "fonts of PDF"),
    Rule("{site}/pillow.libs/libavif-*", "a format of pictures; pillow does without"),
    Rule("{site}/PIL/_avif.*", "a format of pictures; pillow does without"),
    Rule("{site}/sklearn/datasets/data/*", "sample data"),
    Rule("{site}/sklearn/datasets/images/*", "sample data"),
    Rule("{site}/sklearn/datasets/descr/*", "sample data"),
    Rule("{site}/numpy/core/_simd.*", "tests of numpy"),
    # the standard library, and what else comes with an interpreter
    Rule("{stdlib}/*__pycache__/*", "made anew, independent of times"),
    Rule("{stdlib}/test/*", "tests of Python"),
    Rule("{stdlib}/*/test/*", "tests of Python"),
    Rule("{stdlib}/*/tests/*", "tests of Python"),
    Rule("{stdlib}/*/idle_test/*", "tests of Python"),
    Rule("{stdlib}/config-3*", "for building Python into a program"),
    Rule("{stdlib}/idlelib/*", "an editor"),
    Rule("{stdlib}/tkinter/*", "windows on a screen"),
    Rule("{stdlib}/turtle*", "windows on a screen"),
    Rule("{stdlib}/ensurepip/*", "installs pip; the environment is read-only"),
    Rule("{stdlib}/lib2to3/*", "translates Python 2"),
    Rule("{stdlib}/pydoc_data/*", "texts of help()"),
    Rule("{stdlib}/EXTERNALLY-MANAGED", "speaks of the host's packages"),
    Rule("{stdlib}/sitecustomize.py", "the environment has its own"),
    Rule("{stdlib}/lib-dynload/_tkinter.*", "windows on a screen"),
    Rule("{stdlib}/lib-dynload/_curses*", "windows on a terminal"),
    Rule("{stdlib}/lib-dynload/_test*", "tests of Python"),
    Rule("{stdlib}/lib-dynload/_ctypes_test.*", "tests of Python"),
    Rule("{stdlib}/lib-dynload/_xxtestfuzz.*", "tests of Python"),
    Rule("{stdlib}/lib-dynload/xx*", "examples of extensions"),
    Rule("{stdlib}/lib-dynload/_crypt.*", "passwords; its library needs a new glibc"),
    Rule("{stdlib}/lib-dynload/_dbm.*", "databases"),
    Rule("{stdlib}/lib-dynload/_gdbm.*", "databases"),
    Rule("{stdlib}/lib-dynload/nis.*", "user names in a network"),
    Rule("{stdlib}/lib-dynload/ossaudiodev.*", "sound"),
    Rule("lib/libtcl*", "windows on a screen"),
    Rule("lib/libtk*", "windows on a screen"),
    Rule("lib/tcl8*", "windows on a screen"),
    Rule("lib/tk8*", "windows on a screen"),
    Rule("lib/*.a", "static libraries, for linking"),
    Rule("lib/pkgconfig/*", "for building programs"),
    Rule("lib/cmake/*", "for building programs"),
    Rule("man/*", "manual pages"),
)

COMPILED = (
    "{stdlib}/*",
    "{site}/numl_serving/*",
    "{site}/numpy/*",
    "{site}/pynvml*",
    "{site}/safetensors/*",
    "{site}/torch/*",
    "{site}/torchgen/*",
    "{site}/tqdm/*",
    "{site}/typing_extensions.py",
)
"""Modules that are compiled beforehand: of the packages that serving imports."""

NOT_COMPILED = (
    "{stdlib}/distutils/*",
    "{site}/numpy/distutils/*",
    "{site}/numpy/f2py/*",
    "{site}/torch/_dynamo/*",
    "{site}/torch/_inductor/*",
    "{site}/torch/_vendor/*",
    "{site}/torch/distributed/*/*",
    "{site}/torch/onnx/*",
    "{site}/torch/testing/_internal/*",
)
"""Of these, parts that it does not import: they would make up a third."""

_FOLDERS = {
    "{site}": r"lib/python3\.\d+/site-packages",
    "{stdlib}": r"lib/python3\.\d+(?!/site-packages/)",
}


def is_needed(path: str) -> bool:
    """Tell whether the file at ``path`` (below a prefix) goes into the environment."""
    kept, left_out = _expressions()
    return kept.match(path) is not None or left_out.match(path) is None


@lru_cache
def _expressions() -> tuple[re.Pattern[str], re.Pattern[str]]:
    return _any_of(rule.pattern for rule in KEPT), _any_of(rule.pattern for rule in LEFT_OUT)


def is_compiled(path: str) -> bool:
    """Tell whether the module at ``path`` (below a prefix) is compiled beforehand."""
    compiled, not_compiled = _compiled()
    return compiled.match(path) is not None and not_compiled.match(path) is None


@lru_cache
def _compiled() -> tuple[re.Pattern[str], re.Pattern[str]]:
    return _any_of(COMPILED), _any_of(NOT_COMPILED)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    expressions = []
    for pattern in patterns:
        folder, slash, rest = pattern.partition("/")
        expressions.append(_FOLDERS.get(folder, re.escape(folder)) + slash + translate(rest))
    return re.compile("|".join(expressions))


def largest_parts(prefix: Path, count: int) -> list[tuple[str, int]]:
    """Return the largest parts of a prefix and the bytes they hold, the largest first.

    A part is a package's folder, a folder of ``lib/python3.*`` or one of the prefix.

    Args:
        prefix: The prefix.
        count: How many to return.
    """
    sizes: dict[str, int] = {}
    for entry in _parts(prefix):
        size = size_of(entry) if entry.is_dir() else entry.lstat().st_size
        sizes[entry.relative_to(prefix).as_posix()] = size
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]


def _parts(prefix: Path) -> Iterable[Path]:
    """Yield what counts as one part: opened are only lib, lib/python3.* and site-packages."""
    opened = re.compile(r"lib(/python3\.\d+(/site-packages)?)?")
    for entry in prefix.iterdir():
        if entry.is_symlink():
            continue
        stack = [entry]
        while stack:
            current = stack.pop()
            if current.is_dir() and opened.fullmatch(current.relative_to(prefix).as_posix()):
                stack += [child for child in current.iterdir() if not child.is_symlink()]
            else:
                yield current
