"""Compare a model's answers with the truth: recall, precision, confusion, vertices."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deploy.client.asked import add_server_options
from deploy.commands.infer import client_of, show_failures
from deploy.events.evaluation import EVERY, Evaluation, document, evaluate
from deploy.events.matrices import write_matrices
from deploy.events.results import as_utf8
from deploy.events.training import read_training
from deploy.host.cli import Parser, check_picture, make_parser, run
from deploy.host.console import Console, counted
from deploy.host.errors import KitError


def parser() -> Parser:
    flags = make_parser("evaluate", __doc__, deployment=False)
    add = flags.add_argument
    add("file", type=Path, metavar="FILE.h5", help="a processed graph file, or pynuml's events")
    add("--model", default="nugraph3", help="the model to ask (default: %(default)s)")
    add(
        "--split", metavar="NAME",
        help=f"of a graph file: test (the default), validation, train, or {EVERY}",
    )  # fmt: skip
    add(
        "--training", type=Path, metavar="FILE.json",
        help="also show these figures: what trainer.test returned, or an answer with --json",
    )  # fmt: skip
    add("--plot", type=Path, metavar="FILE.png", help="draw the confusion matrices")
    add_server_options(flags)
    return flags


def _evaluate(options: argparse.Namespace, console: Console) -> int:
    plot: Path | None = options.plot
    if plot is not None:
        check_picture(plot)
    training = None if options.training is None else read_training(options.training)
    client = client_of(options)
    model = client.model
    with client, console.progress("events") as advance:
        found = evaluate(
            options.file,
            options.split,
            model,
            client.connect,
            training=training,
            concurrency=options.concurrency,
            progress=lambda done, every: advance(done, every, "compared"),
        )
    report = document(found, options.file, model, client.url, training)
    undrawn: KitError | None = None
    if plot is not None and found.scores.heads:
        file = as_utf8(options.file.name)
        title = f"{model.title}, {found.split} of {file}, {report['events']:,} events"
        try:
            write_matrices(found.scores.heads, title, plot)
        except OSError as error:  # the figures are worth more
            cause = f"{plot} cannot be written: {error.strerror or error}"
            undrawn = KitError(cause, "choose another --plot")
            report |= {"ok": False, "error": undrawn.cause, "remedy": undrawn.remedy}
    if found.scores.events:
        _show(model.title, found, report, console)
    told = "failed and are not in these figures"
    show_failures(found.failures, console, answered=bool(report["events"]), told=told)
    if undrawn is not None and console.mode != "json":
        console.error(undrawn)
    console.answer(report)
    return 0 if report["ok"] else 1


def _show(title: str, found: Evaluation, report: Mapping[str, Any], console: Console) -> None:
    console.line(
        f"{counted(report['events'], 'event')}, {counted(report['hits'], 'hit')}: {title} at "
        f"{report['endpoint']}, {report['split']} of {report['file']}"
    )
    for name, head in found.scores.heads.items():
        what = "events" if name == "event" else "hits"
        judged = "signal hits" if name == "semantic" else what
        largest = report[name]["largest_class"]
        rows = [
            (each, f"{count:,}", _percent(head.recall[each]), _percent(head.precision[each]))
            for each, count in report[name]["true"].items()
        ]
        console.table(
            f"{name}: {_percent(head.accuracy)} of {judged} right ({_percent(largest)} if all were "
            "of the largest class)",
            ("class", what, "recall", "precision"),
            rows,
        )
    if (vertex := report["vertex"]) is not None:
        axes = ", ".join(f"{axis} {mean:.3g}" for axis, mean in vertex["mean_abs"].items())
        console.line(
            f"vertex: median distance {vertex['median']:.3g}, 68% within "
            f"{vertex['quantile_68']:.3g} (median of the mean vertex: "
            f"{vertex['median_of_the_mean_vertex']:.3g}); mean distance along {axes}"
        )
    if (instance := report["instance"]) is not None:
        console.line(f"instances: adjusted Rand index {instance['adjusted_rand']:.3f}")
    if (training := report["training"]) is not None:
        pairs = [
            (name, f"{served:.4g}", f"{training[name]:.4g}" if name in training else "-")
            for name, served in report["metrics"].items()
        ]
        console.table("beside the training", ("figure", "served", "training"), pairs)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


main = partial(run, _evaluate, parser)
