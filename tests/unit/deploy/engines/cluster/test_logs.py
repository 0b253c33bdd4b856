"""The logs of a deployment's pods in a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from deploy import logs
from tests.unit.deploy.engines.cluster.terminal import Terminal

PATH = "/apis/apps/v1/namespaces/physics/deployments/numl"


class Following:
    """``numlkit logs --follow`` while a test does something to the pods; it ends with them."""

    def __init__(
        self, terminal: Terminal, happens: Callable[[Following], None], words: str = ""
    ) -> None:
        self.terminal, self.cluster = terminal, terminal.cluster
        self.failure: BaseException | None = None
        other = threading.Thread(target=self._play, args=(happens,))
        other.start()
        self.code, self.out, self.err = terminal.type(f"logs --follow {words}")
        other.join()
        if self.failure is not None:
            raise self.failure

    def _play(self, happens: Callable[[Following], None]) -> None:
        try:
            happens(self)
        except BaseException as error:
            self.failure = error
        finally:
            self.cluster.delete(PATH)

    def await_follower(self, pod: str, times: int = 1) -> None:
        """Wait until a pod's log has been asked for so often, and read a little further."""
        deadline = time.monotonic() + 60
        while sum(f"/pods/{pod}/log" in each for each in self.cluster.requests) < times:
            assert time.monotonic() < deadline, f"nobody follows {pod}"
            time.sleep(0.02)
        time.sleep(0.2)


@pytest.fixture
def pod(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one pod of a deployment that runs."""
    monkeypatch.setattr(logs, "_POLL_S", 0.05)
    assert terminal.type("up --engine kubernetes")[0] == 0
    [pod] = terminal.cluster.of_kind("Pod").values()
    return str(pod["metadata"]["name"])


def test_pods_that_come_later_are_followed_from_their_first_line(
    terminal: Terminal, pod: str
) -> None:
    terminal.cluster.logs[pod, "triton", False] = "old 1\n"

    def restart(following: Following) -> None:
        following.await_follower(pod)
        terminal.cluster.logs[pod, "triton", False] += "old 2\n"
        time.sleep(0.2)
        new = terminal.cluster.restart("numl")
        following.await_follower(new)  # which has said nothing yet
        text = "".join(f"new {number}\n" for number in range(60))
        terminal.cluster.logs[new, "triton", False] = text
        following.await_follower(new, 2)

    following = Following(terminal, restart)
    lines = following.out.splitlines()
    assert following.code == 0
    assert [line for line in lines if line.startswith(pod)] == [f"{pod}: old 1", f"{pod}: old 2"]
    assert [line.partition(": ")[2] for line in lines[2:]] == [f"new {n}" for n in range(60)]
    assert following.err.splitlines()[-1] == "deployment numl is gone"


def test_a_container_that_is_started_again_is_followed_again(terminal: Terminal, pod: str) -> None:
    terminal.cluster.logs[pod, "triton", False] = "before\n"

    def crash(following: Following) -> None:
        following.await_follower(pod)
        [there] = terminal.cluster.of_kind("Pod").values()
        there["status"]["containerStatuses"][0]["restartCount"] = 1
        terminal.cluster.logs[pod, "triton", False] = "after\n"
        following.await_follower(pod, 2)

    assert Following(terminal, crash).out.splitlines() == [f"{pod}: before", f"{pod}: after"]


def test_a_connection_that_breaks_loses_the_follower_no_pod(terminal: Terminal, pod: str) -> None:
    terminal.cluster.logs[pod, "triton", False] = "before\n"

    def break_off(following: Following) -> None:
        following.await_follower(pod)
        # The stand-in ends a stream whose text has changed; the container is the same.
        terminal.cluster.logs[pod, "triton", False] = "BEFORE\n"
        following.await_follower(pod, 2)
        terminal.cluster.logs[pod, "triton", False] += "after\n"
        time.sleep(0.2)

    assert Following(terminal, break_off).out.splitlines() == [f"{pod}: before", f"{pod}: after"]


def test_a_connection_that_breaks_before_the_first_line_brings_no_old_ones(
    terminal: Terminal, pod: str
) -> None:
    terminal.cluster.logs[pod, "triton", False] = "before\n"

    def break_off(following: Following) -> None:
        following.await_follower(pod)
        terminal.cluster.logs[pod, "triton", False] = "BEFORE\n"
        following.await_follower(pod, 2)
        terminal.cluster.logs[pod, "triton", False] += "after\n"
        time.sleep(0.2)

    assert Following(terminal, break_off, "--tail 0").out.splitlines() == [f"{pod}: after"]


def test_a_container_that_starts_later_is_followed_from_its_first_line(
    terminal: Terminal, pod: str
) -> None:
    def start(following: Following) -> None:
        following.await_follower(pod)
        terminal.cluster.logs[pod, "triton", False] = "one\ntwo\n"
        following.await_follower(pod, sum("/log" in each for each in terminal.cluster.requests) + 1)

    following = Following(terminal, start, "--tail 1")
    assert following.out.splitlines() == [f"{pod}: one", f"{pod}: two"]
    assert following.err.count(f"pod {pod} has no log: container") == 1


def test_who_may_not_read_logs_is_told_so_once(terminal: Terminal, pod: str) -> None:
    terminal.cluster.denied = {("get", "pods/log")}

    def nothing(following: Following) -> None:
        following.await_follower(pod, 3)

    following = Following(terminal, nothing)
    said = f'pod {pod} has no log: pods "{pod}" is forbidden: User "u" cannot get "pods/log"'
    assert following.err.splitlines() == [said, "deployment numl is gone"]


def test_an_api_server_that_stumbles_is_said_and_asked_again(terminal: Terminal, pod: str) -> None:
    terminal.cluster.logs[pod, "triton", False] = "before\n"

    def stumble(following: Following) -> None:
        following.await_follower(pod)
        terminal.cluster.broken = "etcdserver: request timed out"
        time.sleep(0.3)
        terminal.cluster.broken = None
        new = terminal.cluster.restart("numl")
        terminal.cluster.logs[new, "triton", False] = "after\n"
        following.await_follower(new)

    following = Following(terminal, stumble)
    assert following.err.count("etcdserver: request timed out") == 1
    assert following.out.splitlines()[-1].endswith(": after")


def test_without_follow_it_ends(terminal: Terminal, pod: str) -> None:
    terminal.cluster.logs[pod, "triton", False] = "one\ntwo\nthree\n"
    assert terminal.type("logs --tail 2") == (0, "two\nthree\n", "")
    assert terminal.json("logs")["pods"] == {pod: ["one", "two", "three"]}


def test_what_runs_beside_a_server_is_shown_too(terminal: Terminal) -> None:
    (terminal.folder / "more.yaml").write_text("watch: {enabled: true}\n")
    file = terminal.site('[kubernetes]\nvalues = ["more.yaml"]\n')
    assert terminal.type(f"up {file}")[0] == 0
    [made] = terminal.cluster.of_kind("Pod").values()
    pod = str(made["metadata"]["name"])
    terminal.cluster.logs[pod, "triton", False] = "one\n"
    terminal.cluster.logs[pod, "watch", False] = "watch: nugraph3: wrong\n"
    out = terminal.type("logs")[1]
    assert out.splitlines() == [f"{pod}: one", f"{pod}/watch: watch: nugraph3: wrong"]
    said = {pod: ["one"], f"{pod}/watch": ["watch: nugraph3: wrong"]}
    assert terminal.json("logs")["pods"] == said

    def nothing(following: Following) -> None:
        following.await_follower(pod, 6)

    lines = Following(terminal, nothing).out.splitlines()
    assert sorted(lines) == sorted(out.splitlines())
