"""Add a model to a repository of your own: from the gallery, ONNX or PyTorch."""

import argparse
from functools import partial
from pathlib import Path

from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import quote
from deploy.host.console import Console
from deploy.host.errors import DeploymentError
from deploy.host.paths import CHECKOUT
from deploy.triton.example import copy_example

GALLERY = CHECKOUT / "gallery"


def parser() -> Parser:
    what = (
        "Add a model to a repository of your own, from the gallery, ONNX or PyTorch. It runs at "
        "once: change it from there. From the gallery it is a copy, with the models that it calls."
    )
    flags = make_parser("add", what, deployment=False)
    add = flags.add_argument
    add("model", metavar="NAME", help="the new model's name")
    origin = flags.add_mutually_exclusive_group(required=True)
    origin.add_argument("--like", metavar="ENTRY", help="a model of the gallery: docs/gallery.md")
    made = "FILE.onnx, FILE.pt2 (torch.export), or MODULE:CLASS (PyTorch): docs/port.md"
    origin.add_argument("--from", dest="origin", metavar="MODEL", help=made)
    add("--into", required=True, type=Path, metavar="DIR", help="model repository, made if need be")
    weights = "state dictionary of the class: .safetensors, or what torch.save wrote"
    add("--weights", type=Path, metavar="FILE", help=weights)
    example = (
        "a request, by the names of the model's inputs; the answer becomes its reference output"
    )
    add("--example", type=Path, metavar="FILE.npz", help=example)
    return flags


def _add(options: argparse.Namespace, console: Console) -> int:
    repository = options.into.absolute()
    if options.origin is not None:
        from deploy.engines.ported import Origin, port  # takes long

        origin = Origin.of(options.origin, options.weights, options.example)
        made = [port(origin, repository, options.model, console.say)]
    elif options.weights is not None or options.example is not None:
        raise DeploymentError("--weights and --example are for --from")
    else:
        made = [*copy_example(GALLERY, options.like, repository, options.model)]
    for folder in made:
        console.line(str(folder))
    into = quote(str(options.into))
    console.line(f"run it: numlkit up --models-dir {into} --models {options.model}")
    console.answer({"ok": True, "models": [str(folder) for folder in made]})
    return 0


main = partial(run, _add, parser)
