"""Make ``graphs_first.gnn.h5`` and ``graphs_second.gnn.h5`` with pynuml's own code.

They hold the graphs of the simulated events in ``graphs_events.h5``, as pynuml 24.7.1 and 25.4.0
process and write them. In the environment of ``numlkit prepare --full``, with the folder that
``scripts/nugraph25.py`` prints:

    PYTHONPATH=envs/numl python tests/unit/deploy/events/data/make_graph_files.py
    PYTHONPATH=envs/numl:FOLDER python tests/unit/deploy/events/data/make_graph_files.py
"""

from importlib.metadata import version
from pathlib import Path

import h5py
from numl_demo.graphs import Columns, pynuml_event
from numl_demo.hdf5 import write_events
from numl_demo.simulate import simulate_event
from pynuml.io import H5Out
from pynuml.labels import FlavorLabels, StandardLabels
from pynuml.process import HitGraphProducer

FOLDER = Path(__file__).parent
SPLITS = {1: "train", 4: "test", 9: "test"}  # by number; their classes differ


def main() -> None:
    """Write the file of the pynuml that is found."""
    events = [simulate_event(9, number, (80, 120)) for number in SPLITS]
    generation = "first" if version("pynuml").startswith("24") else "second"
    if generation == "first":
        write_events(FOLDER / "graphs_events.h5", events)
    producer = HitGraphProducer(
        Columns(),
        semantic_labeller=StandardLabels(),
        event_labeller=FlavorLabels(),
        label_vertex=True,
    )
    stem = FOLDER / f"graphs_{generation}"
    out, splits = H5Out(str(stem), overwrite=True), {}
    for event, split in zip(events, SPLITS.values(), strict=True):
        tables = pynuml_event(event)
        tables.event_id = event.event_id
        tables.name = "r{}_sr{}_evt{}".format(*event.event_id)  # as pynuml.io.Event.name
        name, graph = producer(tables)
        assert graph is not None, name
        out(name, graph)
        splits.setdefault(split, []).append(name)
    out.write_metadata(producer.metadata)
    out.f.close()
    path = stem.with_suffix(".gnn.h5")
    stem.with_name(f"{stem.name}.0000.h5").replace(path)
    with h5py.File(path, "r+") as file:  # as nugraph's generate_samples
        for split, names in splits.items():
            file.create_dataset(f"samples/{split}", data=names)
    print(path, path.stat().st_size, splits)


main()
