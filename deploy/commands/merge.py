"""Merge the results of a bulk run into one file, HDF5 or Parquet."""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console, counted
from deploy.host.files import write_atomically


def parser() -> Parser:
    flags = make_parser("merge", __doc__, deployment=False)
    add = flags.add_argument
    add("folder", type=Path, metavar="FOLDER", help="what numlkit infer --into has written")
    add("out", type=Path, metavar="OUT", help="OUT.h5, or OUT.parquet (needs pyarrow)")
    return flags


def _merge(options: argparse.Namespace, console: Console) -> int:
    from deploy.events.merging import merge  # h5py takes long to import

    records = merge(options.folder, options.out)
    manifest = options.out.with_suffix(".manifest.json")
    files = [asdict(record) for record in records]
    write_atomically(manifest, json.dumps({"files": files}, indent=2) + "\n")
    events = sum(record.events for record in records)
    failed = sum(record.failed for record in records)
    console.line(
        f"{counted(events, 'event')} of {counted(len(records), 'file')}, {failed:,} failed: "
        f"{options.out}, {manifest}"
    )
    console.answer(
        {
            "ok": True, "out": str(options.out), "manifest": str(manifest),
            "files": len(files), "events": events, "failed": failed,
        }
    )  # fmt: skip
    return 0


main = partial(run, _merge, parser)
