"""What stored runs say in docs/campaign.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def simulated(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section on the campaign that failed, and on accidents."""
    return "\n".join([*_failure(runs["failure"]), "", *_accidents(runs["accidents"])]) + "\n"


def _failure(runs: Mapping[str, Any]) -> Iterator[str]:
    yield "| | jobs without a lost event | median | p99 | computed in vain | most waiting | hours |"
    yield "|---|---|---|---|---|---|---|"
    for name, run in runs.items():
        yield (
            f"| {name} | {percent(run['jobs_done'])} | {run['p50_s']:.0f} s | "
            f"{run['p99_s']:.0f} s | {percent(run['in_vain'])} | {run['most_waiting']:,} | "
            f"{run['hours']:.1f} |"
        )
    yield ""
    yield "![Events answered per second](../scripts/data/speed/campaign.png)"


def _accidents(runs: Mapping[str, Any]) -> Iterator[str]:
    yield "| | answered | events/s | median | p99 | most waiting | most servers |"
    yield "|---|---|---|---|---|---|---|"
    for name, run in runs.items():
        yield (
            f"| {name} | {percent(run['answered'])} | {run['per_s_mean']:.0f} | "
            f"{_time(run['p50_s'])} | {_time(run['p99_s'])} | {run['most_waiting']:,} | "
            f"{run['most_servers']} |"
        )


def checked(run: Mapping[str, Any]) -> str:
    """Return the section on a real run beside its simulation."""
    rates = [rate for each in run["rates"] for rate in each]
    lines = [
        f"{run['servers']} servers, each with {run['share']:g} of a core, of which one answers "
        f"{min(rates):.1f} to",
        f"{max(rates):.1f} events of {run['hits']:,} hits per second. {len(run['rates'])} runs, "
        f"{run['seconds']:g} s of each row.",
        f"({run['machine']['processor']}, load average before: "
        f"{run['machine']['load_before'][0]:.1f}.)",
        "",
        "| | | events/s | median | p99 | p99 of single runs | lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in run["rows"]:
        for kind in ("simulated", "measured"):
            found = row[kind]
            name = row["name"] if kind == "simulated" else ""
            each = found["p99_of_each_s"]
            one = f"{_time(each[0])} to {_time(each[-1])}" if each else ""
            lines.append(
                f"| {name} | {kind} | {found['per_s']:.1f} | {_time(found['p50_s'])} | "
                f"{_time(found['p99_s'])} | {one} | {percent(found['lost'])} |"
            )
    return "\n".join(lines) + "\n"


def percent(part: float) -> str:
    """Return a part as a percentage; 0% and 100% are exactly that."""
    percent = 100 * part
    return f"{percent:.1f}%" if 0 < percent < 10 or 99 < percent < 100 else f"{percent:.0f}%"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"
