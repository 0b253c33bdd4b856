"""Every event of a simulated campaign has one end, and queues are as long as theory says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.campaign.farm import Campaign, Jobs, Loss, Patience, Scaling, Servers
from scripts.campaign.scenarios import FAILURE
from scripts.campaign.simulation import simulate

patiences = st.builds(
    Patience,
    timeout_s=st.floats(0.01, 5.0) | st.just(float("inf")),
    tries=st.integers(1, 4),
    pause_s=st.sampled_from((0.0, 0.1)),
    within_s=st.floats(0.1, 5.0) | st.just(float("inf")),
    ends_job=st.booleans(),
)
campaigns = st.builds(
    Campaign,
    servers=st.builds(
        Servers,
        count=st.integers(1, 3),
        cores=st.integers(1, 2),
        instances=st.none() | st.integers(1, 3),
        service_s=st.floats(0.01, 1.0),
        spread=st.sampled_from((0.0, 0.5, 1.0)),
        waiting=st.none() | st.integers(0, 3),
        wait_s=st.none() | st.floats(0.01, 6.0),
        notice=st.booleans(),
        balance=st.sampled_from(("fewest", "random")),
        paces=st.lists(st.floats(0.1, 3.0), max_size=3).map(tuple),
    ),
    jobs=st.builds(
        Jobs,
        total=st.integers(1, 20),
        at_once=st.integers(1, 20),
        events=st.integers(1, 4),
        own_s=st.sampled_from((0.0, 0.5)),
        patience=patiences,
    ),
    losses=st.lists(
        st.builds(
            Loss,
            at_s=st.floats(0.0, 3.0),
            count=st.integers(1, 3),
            back_s=st.none() | st.floats(0.0, 3.0),
        ),
        max_size=2,
    ).map(tuple),
    scaling=st.none() | st.just(Scaling(most=4, every_s=0.5, start_s=0.5, settle_s=2.0)),
    until_s=st.just(float("inf")) | st.floats(0.1, 5.0),
)


@settings(max_examples=300, deadline=None)
@given(campaigns, st.integers(0, 3))
def test_every_event_ends_answered_refused_or_late(campaign, seed):
    found = simulate(campaign, seed)
    assert found.arrived == found.answered + found.refused + found.late + found.under_way
    assert found.arrived <= found.sent <= found.arrived * campaign.jobs.patience.tries
    if campaign.until_s == float("inf"):
        jobs = campaign.jobs
        assert found.under_way == 0
        assert found.arrived + found.unsent == jobs.total * jobs.events
        assert found.jobs_done + found.jobs_failed == jobs.total
    assert simulate(campaign, seed) == found


def _rate(jobs: int, own_s: float, service_s: float) -> float:
    """Return the events per second of M/M/1 with so many sources, by mean value analysis."""
    waiting = 0.0
    for number in range(1, jobs + 1):
        response = service_s * (1 + waiting)
        rate = number / (own_s + response)
        waiting = rate * response
    return rate


@pytest.mark.parametrize("number", [1, 4, 10, 30])
def test_one_server_answers_as_fast_as_queueing_theory_says(number):
    jobs = Jobs(number, number, 30_000 // number, 1.0, Patience(float("inf"), 1))
    found = simulate(Campaign(Servers(1, 1, 0.1, spread=1.0), jobs))
    assert found.answered / found.seconds == pytest.approx(_rate(number, 1.0, 0.1), rel=0.02)


def test_events_take_longer_while_servers_are_slower():
    servers = Servers(1, 1, 1.0, spread=0.0, paces=(0.5, 0.25, 2.0), pace_s=2.0)
    alone = Jobs(1, 1, 4, 0.0)
    # An event each of 2 s, of 2 s at a quarter and 0.25 s at double pace, and of 0.5 s.
    assert simulate(Campaign(servers, alone)).latencies == pytest.approx([2.0, 2.25, 0.5, 0.5])


def test_of_many_jobs_an_event_waits_as_in_a_queue_of_random_arrivals():
    service, load = 0.01, 0.7
    jobs = Jobs(10**9, 2000, 10**9, 2000 * service / load, Patience(float("inf"), 1))
    random, fixed = service / (1 - load), service * load / 2 / (1 - load)
    for more, expected in (
        ({"spread": 1.0}, random),
        ({"spread": 0.0}, service + fixed),  # Pollaczek and Khinchine
        ({"times": (10.0, 30.0)}, service + 1.25 * fixed),
        ({"spread": 0.0, "instances": 1000}, random),  # however long each event takes
    ):
        found = simulate(Campaign(Servers(1, 1, service, **more), jobs, until_s=300.0))
        assert sum(found.latencies) / found.answered == pytest.approx(expected, rel=0.05), more


def test_instances_share_the_cores_of_a_server():
    jobs = Jobs(3, 3, 1, own_s=0.0, patience=Patience(float("inf"), 1))
    for cores, instances, latencies in (
        (1, 1, [1, 2, 3]), (1, 2, [2, 2, 3]), (2, 3, [1.5, 1.5, 1.5]), (3, 3, [1, 1, 1]),
    ):  # fmt: skip
        servers = Servers(1, cores, 1.0, spread=0.0, instances=instances)
        assert simulate(Campaign(servers, jobs)).latencies == pytest.approx(latencies)


def _small(name: str) -> Campaign:
    campaign = FAILURE[name]
    return replace(campaign, jobs=replace(campaign.jobs, total=4000))


def test_most_jobs_fail_that_wait_longer_than_their_timeout_and_balancing_mends_it():
    assert simulate(_small("as it was")).jobs_done < 0.2 * 4000
    assert simulate(_small("ten tries")).jobs_done < 0.1 * 4000
    assert simulate(_small("balanced by load")).jobs_done == 4000


def test_a_lost_server_loses_no_event_of_jobs_that_ask_again():
    jobs = Jobs(50, 50, 40, 1.0, Patience.kit())
    found = simulate(Campaign(Servers.kit(3, 1, 0.02), jobs, (Loss(10.0, 2),)))
    assert (found.answered, found.servers[0], found.servers[-1]) == (2000, 3, 1)


def test_a_job_that_asks_again_gives_an_event_up_at_its_timeout():
    jobs = Jobs(10**9, 100, 10**9, 10.0, Patience.kit(20.0))
    found = simulate(Campaign(Servers.kit(1, 1, 0.5), jobs, until_s=200.0))
    assert found.refused > 0
    assert max(found.latencies) < 20.0 + 1.0 + 5.0  # its last request waits, and is computed


def test_the_most_that_wait_are_those_of_a_moment_that_no_sample_has():
    jobs = Jobs(40, 40, 1, 0.0, Patience(float("inf"), 1))  # all come at once
    found = simulate(Campaign(Servers(2, 1, 0.01, spread=0.0), jobs))
    assert (found.most_waiting, max(found.waiting)) == (38, 0)


def test_servers_are_added_while_requests_wait_and_removed_when_none_do():
    jobs = Jobs(10**9, 60, 10**9, 1.0, Patience.kit())
    campaign = Campaign(Servers.kit(1, 1, 0.05), jobs, until_s=600.0, scaling=Scaling(most=6))
    found = simulate(campaign)
    assert max(found.servers) > 3
    late = [n for at, n in zip(found.times, found.servers, strict=True) if at > 300]
    assert min(late) == 1
