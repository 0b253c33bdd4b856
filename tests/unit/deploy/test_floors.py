"""The rooms of ``deploy`` stand on floors: imports go down only, and there are few of both."""

import ast
from graphlib import TopologicalSorter
from typing import get_args

from deploy import main
from deploy.deployment.deployment import EngineName
from scripts.documentation.floors import COMMANDS, KIT, ROOMS, floors, imports_by_room, sentence


def test_there_are_at_most_ten_rooms_each_with_a_sentence_of_its_own():
    assert len(ROOMS) <= 10
    sentences = [sentence(room) for room in ROOMS]
    assert all(sentences)
    assert len(set(sentences)) == len(ROOMS)


def test_no_room_imports_from_one_that_imports_from_it_and_there_are_at_most_seven_floors():
    found = floors(imports_by_room())  # raises CycleError, which names a circle
    assert max(found.values()) <= 7, found
    assert found[COMMANDS] == max(found.values())


def test_the_top_of_the_kit_holds_its_entries_only():
    assert {path.stem for path in KIT.glob("*.py")} == {"__init__", "main", "up", "build"}
    files = {path.stem for path in (KIT / COMMANDS).glob("*.py")} - {"__init__"}
    assert files == set(main.COMMANDS)


def test_what_differs_between_engines_is_asked_of_them_and_not_of_their_names():
    # What artefacts compares is the route of a build, which is not an engine.
    others = (p for p in KIT.rglob("*.py") if p.parent.name not in ("engines", "artefacts"))
    found = [
        f"{path.relative_to(KIT)}:{node.lineno}"
        for path in others
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and constant.value in get_args(EngineName)
    ]
    assert found == []


def test_no_two_modules_import_each_other_in_a_circle_not_even_lazily():
    roots = [KIT, *(KIT.parent / "envs" / "numl").glob("numl_*")]
    paths = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for root in roots
        for path in root.rglob("*.py")
    }
    graph = {}
    for module, path in paths.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                package = module if path.stem == "__init__" else module.rpartition(".")[0]
                above = package.split(".")[: -node.level + 1 or None] if node.level else []
                base = ".".join([*above, *filter(None, [node.module])])
                names = (f"{base}.{alias.name}" for alias in node.names)
                found |= {name if name in paths else base for name in names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[module] = found & paths.keys() - {module}
    assert len(graph) > 200
    TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle
