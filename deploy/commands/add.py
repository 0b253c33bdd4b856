"""Add a model to a repository of your own, as a copy of one of the gallery."""

import argparse
from functools import partial
from pathlib import Path

from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console
from deploy.host.paths import CHECKOUT
from deploy.triton.example import copy_example

GALLERY = CHECKOUT / "gallery"


def parser() -> Parser:
    what = (
        "Add a model to a repository of your own, as a copy of one of the gallery, with the models "
        "that it calls. It runs at once, as the original does: change it from there."
    )
    flags = make_parser("add", what, deployment=False)
    add = flags.add_argument
    add("model", metavar="NAME", help="the new model's name")
    add("--like", required=True, metavar="ENTRY", help="a model of the gallery: docs/gallery.md")
    add("--into", required=True, type=Path, metavar="DIR", help="model repository, made if need be")
    return flags


def _add(options: argparse.Namespace, console: Console) -> int:
    made = copy_example(GALLERY, options.like, options.into.absolute(), options.model)
    for folder in made:
        console.line(str(folder))
    console.line(f"run it: numlkit up --models-dir {options.into} --models {options.model}")
    console.answer({"ok": True, "models": [str(folder) for folder in made]})
    return 0


main = partial(run, _add, parser)
