"""What is wrong with the models of a remote service is told."""

import re
from contextlib import closing

import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.transport import TritonTransport
from deploy.deployment.deployment import Deployment, Tls
from deploy.engines.local import LocalEngine, ProcessServer
from deploy.engines.resolved import Resolved
from deploy.host.errors import ServerAwayError
from deploy.triton.config import write_config
from deploy.triton.stage import VERSION, stage
from tests.failed_start import serving
from tests.kit import until
from tests.tls import smoke, url


@pytest.fixture(scope="module")
def faulty(folder, pair, kit, site):
    """A server with a model that breaks the contract, one that cannot start, and no third."""
    names = ("nugraph2", "nugraph2_cpu")
    deployment = Deployment(
        name="faulty", models=names, instances=1, tls=Tls(cert=pair.cert, key=pair.key)
    )
    engine = LocalEngine(Resolved(deployment))
    engine.prepare(lambda _: None)
    served = folder / "faulty"
    models = engine.models()
    stage(models, served)
    broken = models[0].config
    next(t for t in broken.input if t.name == "hit_table_rms").dims[:] = [1, -1]
    write_config(broken, served / "nugraph2" / "config.pbtxt")
    (served / "nugraph2_cpu" / VERSION / "model.py").write_text("raise ValueError('no weights')\n")
    # As servers elsewhere are: anybody may ask which models there are. It does not poll, which
    # would have it load the broken one again and again.
    plan = serving(engine.plan(), served, folder / "log")
    closed = re.compile("-restricted-|--model-control-mode|--repository-poll")
    arguments = tuple(a for a in plan.arguments if not closed.search(a))
    plan = plan.model_copy(update={"arguments": arguments})
    answer = {"ports": plan.ports.model_dump()}
    server = ProcessServer(plan, lambda **_: None)
    try:
        endpoint = Endpoint.parse(url(answer, "localhost"), ca=site.file)

        def loaded() -> bool:
            assert server.alive(), server.output()
            try:
                with closing(TritonTransport(endpoint, timeout=5)) as transport:
                    index = transport.index() or {}
            except ServerAwayError:
                return False
            return set(index) == set(names) and not any(s == "LOADING" for s, _ in index.values())

        until(loaded, "the faulty server")
        yield answer
    finally:
        server.stop()


@pytest.mark.parametrize(("model", "cause", "remedy"), [
    ("nugraph2", "model nugraph2 breaks the wire contract: "
     "input hit_table_rms has dims [1, -1], expected [-1]",
     "correct its config.pbtxt: existing clients cannot use it"),
    ("nugraph3", "{url} serves no model nugraph3",
     "choose from those it serves with --models: nugraph2, nugraph2_cpu"),
])  # fmt: skip
def test_what_is_wrong_with_a_model_is_told(kit, faulty, site, model, cause, remedy):
    asked = url(faulty, "localhost")
    answer = smoke(kit, asked, "--ca", site.file, models=model)
    [result] = answer["results"]
    assert (result["error"], result["remedy"]) == (cause.format(url=asked), remedy)
    assert answer["status"] == 1


def test_a_model_that_is_not_ready_is_told_with_its_reason(kit, faulty, site):
    answer = smoke(kit, url(faulty, "localhost"), "--ca", site.file, models="nugraph2_cpu")
    [result] = answer["results"]
    assert not result["ready"]
    assert (result["error"], result["remedy"]) == (
        "model nugraph2_cpu is not ready: ValueError: no weights",
        "see the log for the whole message",
    )
    # Triton says the same of the server as a whole, whichever model it is asked for.
    [server] = smoke(kit, url(faulty, "localhost"), "--ca", site.file, models="nugraph2")["servers"]
    assert (server["health"], server["error"]) == (
        "not serving",
        f"{server['url']}: the server says it is not ready",
    )
    assert server["remedy"] == "check the server's log for these models: nugraph2_cpu"
