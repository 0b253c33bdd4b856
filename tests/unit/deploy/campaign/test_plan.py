"""What the plan of a campaign says, and what its page shows."""

import json
from dataclasses import replace

import pytest

from deploy.host.errors import KitError
from scripts.campaign import sizing
from scripts.campaign.comparison import WITHIN, Measured, differences
from scripts.campaign.farm import Patience, Servers
from scripts.campaign.measured import core_seconds
from scripts.campaign.real import Seen, rate
from scripts.campaign.sizing import Wish, plan, steady
from scripts.plan_campaign import PAGE, REAL, STORED, _row, main, page

RUN = {
    "models": {"nugraph3": "nugraph3 25.4"},
    "machine": {"used_cores": [0, 1]},
    "sets": {"small": {"hits": 200.0}, "large": {"hits": 1300.0}},
    "served": [
        {"model": "nugraph3", "events": name, "server": "ours", "protocol": "grpc",
         "concurrency": 8, "events_per_second": {"median": rate}}
        for name, rate in (("small", 400.0), ("large", 100.0))
    ],
}  # fmt: skip


def test_the_time_of_an_event_is_that_of_the_benchmark():
    assert core_seconds("nugraph3", 200, RUN) == pytest.approx(0.005)
    assert core_seconds("nugraph3", 750, RUN) == pytest.approx(0.0125)
    assert core_seconds("nugraph3", 1300) > 0  # the stored run
    assert core_seconds("nugraph3", 191, RUN) == pytest.approx(0.005)  # of about 200 hits


@pytest.mark.parametrize(("model", "hits"), [("mine", 200), ("nugraph3", 5000)])
def test_what_was_not_measured_is_refused(model, hits):
    with pytest.raises(KitError, match="not measured"):
        core_seconds(model, hits, RUN)


def test_a_servers_rate_is_what_it_computes_while_it_has_requests():
    before, after = Seen([10, 100, 0], [1.0] * 3), Seen([70, None, 20], [2.5, 4.0, 1.5])
    assert rate(before, after) == pytest.approx(40)  # one was killed
    assert rate(before, before) == 0


def test_servers_are_simulated_as_fast_as_they_were_in_each_part_of_a_row():
    seen = [Seen([events], [busy]) for events, busy in ((0, 0.0), (10, 2.0), (40, 4.0))]
    servers = Measured([0.1], busy=10.0, seen=[seen]).servers(0)
    assert servers.service_s == pytest.approx(0.1)
    assert servers.paces == pytest.approx((0.5, 1.5))


@pytest.fixture
def few(monkeypatch):
    """Have fewer events simulated than for a plan that counts."""
    monkeypatch.setattr(sizing, "_EVENTS", 12_000)
    monkeypatch.setattr(sizing, "_FEWEST", 2_000)


@pytest.mark.usefixtures("few")
def test_a_plan_is_in_time_and_loses_nothing_up_to_its_most_jobs():
    wish = Wish(3600 * 130.0, 3600.0, own_s=1.0, patience=Patience(2.0, tries=2))
    one = Servers.kit(1, 1, 0.02)
    found = plan(one, wish)
    assert found.servers == 3  # 150 events/s
    farm = Servers.kit(found.servers, 1, 0.02)
    assert steady(farm, found.fewest_jobs, wish).per_s >= 130
    assert steady(farm, found.most_jobs, wish).lost == 0
    assert steady(farm, 2 * found.most_jobs, wish).lost > 0.1


def test_few_jobs_are_as_fast_as_they_are_and_not_as_chance_has_it():
    wish = Wish(10_000, 96 * 3600.0, own_s=10.0, patience=Patience.kit())
    for jobs in (1, 3):
        found = steady(Servers.kit(1, 16, 0.0135), jobs, wish)
        assert found.per_s == pytest.approx(jobs / 10.0135, rel=0.03)


@pytest.mark.usefixtures("few")
def test_a_plan_is_printed(capsys):
    words = "--events 1e5 --hours 1 --cores 1 --rate 50 --own 1 --timeout 2 --tries 2 --json"
    assert main(words.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["servers"], told["cases"]["the most jobs"]["lost"]) == (1, 0)
    assert told["cases"]["the fewest jobs"]["hours"] <= 1


def test_of_jobs_that_get_no_answers_no_times_are_told():
    one = replace(Servers.kit(1, 1, 0.02), waiting=None, wait_s=None, notice=False)
    wish = Wish(1e5, 3600.0, own_s=1.0, patience=Patience(2.0, tries=2))
    found = steady(one, 266, wish)
    assert (found.per_s, found.lost, found.in_vain) == (0, 1, 1)
    told = ("twice as many", "1", "266", "0.0", "-", "-", "100%", "100%", "never")
    assert _row("twice as many", found, None) == told


IMPOSSIBLE = {
    "nothing": "",
    "too many": "--events 1e14 --hours 1e-3",
    "longer than the timeout": "--events 1e5 --hours 24 --rate 0.1 --cores 1 --timeout 5 --tries 1",
    "some longer than that": "--events 1e5 --hours 24 --rate 1 --cores 1 --timeout 4 --tries 1",
    "longer than the campaign": "--events 300 --hours 1e-3 --rate 100 --cores 1 --own 4",
}


@pytest.mark.parametrize("wish", IMPOSSIBLE)
@pytest.mark.usefixtures("few")
def test_what_cannot_be_planned_is_refused_in_a_line(wish, capsys):
    assert main(IMPOSSIBLE[wish].split()) != 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "simulate" not in line][:-1]
    assert said.startswith("error: ")


def test_the_page_shows_the_stored_runs():
    assert page(PAGE.read_text()) == PAGE.read_text()
    assert json.loads(STORED.read_text())["failure"]["as it was"]["jobs_done"] < 0.1


def test_the_stored_check_agrees():
    run = json.loads(REAL.read_text())
    assert run["servers"] >= 4
    found = [each for row in run["rows"] for each in differences(row)]
    assert {name for name, _ in found} == {"per_s", "p50_s", "p99_s", "lost"}
    assert all(abs(difference) <= WITHIN for _, difference in found)


def test_what_differs_between_runs_or_is_too_little_to_compare_is_no_difference():
    calm = {"per_s": 12.0, "p50_s": 1.0, "p99_s": 2.0, "lost": 0.01}
    run = {"per_s": 10.0, "p50_s": 1.0, "p99_of_each_s": [1.0, 1.6], "lost": 0.0}
    found = dict(differences({"simulated": calm, "measured": run}))
    assert found == pytest.approx({"per_s": 0.2, "p50_s": 0, "p99_s": 0.25})
    found = dict(differences({"simulated": calm | {"p99_s": 1.3}, "measured": run}))
    assert found["p99_s"] == 0
    found = dict(differences({"simulated": calm, "measured": run | {"lost": 0.6}}))
    assert found == {"lost": pytest.approx(0.01 / 0.6 - 1)}
