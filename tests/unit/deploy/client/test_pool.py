"""Several servers as one: where requests go, and what happens when one is away."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.client import pool
from deploy.client.pool import Balancer, PooledTransport
from deploy.client.transport import ServedModel
from deploy.host.errors import NoAnswerError, RequestError, ServerAwayError
from numl_formats.contract import INPUTS

MODEL = ServedModel("nugraph3", INPUTS, (), {})


class Server:
    """Answers with its number; ``behave`` may take its time, or raise."""

    def __init__(self, number: int, behave: Callable[[], None] = lambda: None) -> None:
        self.number, self.behave = number, behave
        self.asked = self.opened = self.open = 0

    def connect(self) -> Server:
        self.opened += 1
        self.open += 1
        return self

    def describe(self, model: str) -> ServedModel:
        return MODEL

    def infer(self, model: ServedModel, tensors: object) -> dict[str, Any]:
        self.asked += 1
        self.behave()
        return {"number": self.number}

    def close(self) -> None:
        self.open -= 1


away = Mock(side_effect=ServerAwayError("http://x: connection refused"))


def pooled(*servers: Server) -> PooledTransport:
    return PooledTransport(Balancer(len(servers)), lambda number: servers[number].connect())


def asking(servers: list[Server], requests: int, threads: int) -> Counter[int]:
    """Return how many requests each server has answered."""
    balancer, own = Balancer(len(servers)), threading.local()

    def ask(_: int) -> int:
        if not hasattr(own, "pool"):
            own.pool = PooledTransport(balancer, lambda number: servers[number].connect())
        return int(own.pool.infer(MODEL, {})["number"])

    with ThreadPoolExecutor(threads) as executor:
        return Counter(executor.map(ask, range(requests)))


def test_a_slow_server_gets_fewer_requests():
    quick, slow = Server(0, lambda: time.sleep(0.001)), Server(1, lambda: time.sleep(0.05))
    answered = asking([quick, slow], 200, threads=4)
    assert answered[0] > 2 * answered[1] > 0


def test_a_server_that_is_away_loses_no_request_and_is_asked_seldom():
    gone, here = Server(0, away), Server(1)
    assert asking([gone, here], 1000, threads=4) == {1: 1000}
    assert gone.asked < 20


def test_a_server_that_hangs_does_not_get_the_next_requests_too():
    hung, here = Server(0, Mock(side_effect=NoAnswerError("no answer within 60 s"))), Server(1)
    pool = pooled(hung, here)
    while not hung.asked:
        with suppress(NoAnswerError):  # one of the two is chosen at random
            pool.infer(MODEL, {})
    for _ in range(20):
        assert pool.infer(MODEL, {}) == {"number": 1}
    assert hung.asked == 1


def test_a_server_that_comes_back_is_asked_again(monkeypatch):
    monkeypatch.setattr(pool, "_FIRST_PAUSE_S", 0.0)
    server = Server(0, away)
    both = pooled(server, Server(1))
    while not server.asked:
        both.infer(MODEL, {})
    server.behave = lambda: None
    assert {both.infer(MODEL, {})["number"] for _ in range(100)} == {0, 1}


def test_the_budget_of_retries_ends():
    servers = [Server(i, away) for i in range(3)]
    all_three = pooled(*servers)
    for _ in range(100):
        with pytest.raises(ServerAwayError):
            all_three.infer(MODEL, {})
    assert 100 <= sum(server.asked for server in servers) <= 100 + 20 + 20 + 3


def test_what_a_server_refuses_is_not_tried_elsewhere():
    refuse = Mock(side_effect=RequestError("hit_table/integral is NaN"))
    one, other = Server(0, refuse), Server(1, refuse)
    both = pooled(one, other)
    with pytest.raises(RequestError, match="NaN"):
        both.infer(MODEL, {})
    assert one.asked + other.asked == 1
    both.close()
    assert one.open + other.open == 0


def test_the_connection_to_a_server_that_was_away_is_opened_anew():
    server = Server(0, away)
    alone = pooled(server)
    with pytest.raises(ServerAwayError):
        alone.infer(MODEL, {})
    server.behave = lambda: None
    assert [alone.infer(MODEL, {})["number"] for _ in range(2)] == [0, 0]
    assert (server.opened, server.open) == (2, 1)


def test_requests_go_to_the_servers_that_are_there_by_now():
    servers = [Server(0), Server(1), Server(2)]
    there = [0]
    balancer = Balancer(1, lambda: balancer.use(there))
    followed = PooledTransport(balancer, lambda number: servers[number].connect())
    assert followed.infer(MODEL, {})["number"] == 0
    there[:] = [2, 1]
    assert {followed.infer(MODEL, {})["number"] for _ in range(50)} == {1, 2}
    there[:] = [2]
    assert {followed.infer(MODEL, {})["number"] for _ in range(50)} == {2}
