"""The package is imported by the kit, the sync agent and the runtime: it imports none of them."""

import ast
import sys
from pathlib import Path

import numl_formats


def test_it_imports_the_standard_library_numpy_and_itself():
    found = {
        name.partition(".")[0]
        for path in Path(numl_formats.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert found <= {*sys.stdlib_module_names, "numl_formats", "numpy"}
