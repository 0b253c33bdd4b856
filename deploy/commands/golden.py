"""Ask a model for its client's example, and write the answer as its reference output."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.client.endpoint import Endpoint
from deploy.client.example import CLIENT, example_inputs
from deploy.client.probe import answer_to
from deploy.client.transport import ServedModel, TritonTransport
from deploy.deployment.state import DeploymentFolder
from deploy.engines.baked import is_of_image
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import as_seconds
from deploy.host.console import Console
from deploy.host.errors import ClientError, NotRunningError, RepositoryError
from deploy.triton.card import of_repository
from deploy.triton.config import config_of
from deploy.triton.golden import newest_version
from numl_formats.golden import GoldenEvent, difference, tensor_names, write_golden
from numl_formats.repository import CONFIG, GOLDEN_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray


def parser() -> Parser:
    what = (
        "Ask a running model of your own what its client's inputs() returns, show the answer, and "
        "write both as its reference output, golden.npz. From then on a server is ready only if "
        "the model gives this answer."
    )
    flags = make_parser("golden", what)
    flags.add_argument("model", metavar="MODEL", help="a model of the deployment's --models-dir")
    timeout = "seconds for one answer (default: 60)"
    flags.add_argument("--timeout", type=as_seconds, default=60.0, help=timeout)
    flags.add_argument("--dry-run", action="store_true", help="show the answer, write nothing")
    return flags


def _golden(options: argparse.Namespace, console: Console) -> int:
    model, folder = options.model, DeploymentFolder(options.name)
    state, plan = folder.require_state(), folder.plan()
    repository = plan.deployment.models_dir if plan is not None else None
    if model not in state.models or repository is None:
        served = ", ".join(state.models)
        cause = f"deployment {state.name} serves no model {model} of a --models-dir: {served}"
        raise NotRunningError(cause, f"numlkit up --models-dir DIR --models {model}")
    source = repository / model
    if not (source / CONFIG).is_file():
        cause = f"{repository} has no model {model}: it is the kit's own"
        raise RepositoryError(cause, "scripts/import_checkpoint.py writes its reference")
    if is_of_image(repository) and not options.dry_run:
        # All launches of the image take its models from this one copy.
        cause = f"model {model} is in an image, which no reference output can be written to"
        where = "in the repository that it is built from, served with numlkit up --models-dir"
        remedy = f"write it {where}, and build the image again; --dry-run shows the answer"
        raise RepositoryError(cause, remedy)
    # What is served answers, whatever the original has become since the launch.
    served = folder.repository / model
    version = newest_version(served).name
    if not (source / version).is_dir():
        cause = f"version {version} of model {model}, which is served, is gone from {source}"
        raise RepositoryError(cause, "numlkit down and up serve the version that is there")
    inputs = example_inputs(source)
    decoupled = config_of(served).model_transaction_policy.decoupled
    if decoupled and state.tls is not None:
        cause = f"model {model} is decoupled, and this deployment's gRPC is encrypted"
        raise ClientError(cause, "write its reference output with a deployment that has no TLS")
    endpoint = Endpoint.parse(state.url("grpc" if decoupled else "http"))
    with closing(TritonTransport(endpoint, timeout=options.timeout)) as transport:
        served_model = transport.describe(model)
        _check_types(inputs, served_model, source / CLIENT)
        ask = partial(answer_to, transport, served_model, inputs, decoupled=decoupled)
        golden = GoldenEvent(inputs, ask())
        if not golden.outputs:
            raise ClientError(f"model {model} gives no response to what {source}/client.py asks")
        # Of itself it differs only where it is not a number.
        useless = difference(golden, golden.outputs)
        if useless is not None:
            cause = f"model {model}: {useless}; nothing can be compared with that"
            raise ClientError(cause, "mend the model, or have inputs() return another request")
        again = difference(golden, ask())
    if again is not None:
        cause = f"model {model} gives another answer when asked again: {again}"
        raise ClientError(cause, "leave randomness out of it: there is nothing to compare with")
    rows = [
        [kind, name, str(array.dtype), str(list(array.shape)), _first(array)]
        for kind, arrays in (("input", golden.inputs), ("output", golden.outputs))
        for name, array in arrays.items()
    ]
    console.table(f"model {model}", ("", "tensor", "type", "shape", "first values"), rows)
    path = source / version / GOLDEN_FILE
    if not options.dry_run:
        with of_repository("convert it in the model, or serve it without a reference output"):
            write_golden(path, golden)
        console.line(f"{path}: compared whenever a server starts")
    written = None if options.dry_run else str(path)
    outputs = {n: list(a.shape) for n, a in golden.outputs.items()}
    console.answer({"ok": True, "file": written, "outputs": outputs})
    return 0


def _check_types(inputs: Mapping[str, NDArray[Any]], served: ServedModel, client: Path) -> None:
    """Refuse tensors that smoke, which sends them as the file has them, would be refused."""
    from tritonclient.utils import np_to_triton_dtype

    for key, name in tensor_names(inputs).items():
        dtype = inputs[key].dtype
        has = "BYTES" if dtype.kind in "OSU" else np_to_triton_dtype(dtype)
        if has != served.inputs.get(name, ""):
            takes = f"takes {served.inputs[name]}" if name in served.inputs else "has no such input"
            cause = f"{client}: inputs() returns {name} as {dtype}; model {served.name} {takes}"
            raise RepositoryError(cause, "return each input by its name, in its type")


def _first(array: NDArray[Any]) -> str:
    values = array.ravel()[:4].tolist()
    shown = [f"{v:.4g}" if isinstance(v, float) else _word(v) for v in values]
    return ", ".join(shown) + (", ..." if array.size > len(values) else "")


def _word(value: object) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value)} bytes"
    text = str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 24 else f"{text[:21]}..."


main = partial(run, _golden, parser)
