"""Published vulnerabilities of Triton that a later release fixes.

Each has a page in the National Vulnerability Database (`Advisory.url`). With which release NVIDIA
fixed it is from its security bulletins of August, September and December 2025 and of May 2026.
"""

from dataclasses import dataclass

from deploy.triton.release import TritonRelease

# When the table was last compared with what had been published.
DATE = "2026-11-24"


@dataclass(frozen=True)
class Advisory:
    """A vulnerability.

    Attributes:
        fixed: The first release without it (``25.07``).
        server: The version of the server in that release.
    """

    cve: str
    fixed: str
    server: tuple[int, int, int]

    @property
    def url(self) -> str:
        return f"https://nvd.nist.gov/vuln/detail/{self.cve}"


_FIXES: tuple[tuple[str, tuple[int, int, int], str], ...] = (
    ("25.07", (2, 59, 1), "2025-23310 2025-23311 2025-23317 2025-23319 2025-23320 2025-23334"),
    ("25.08", (2, 60, 0), "2025-23316"),
    ("25.10", (2, 62, 0), "2025-33201 2025-33211"),
    ("26.03", (2, 67, 0), "2026-24206 2026-24207 2026-24208 2026-24209 2026-24210"),
    ("26.03", (2, 67, 0), "2026-24213 2026-24214 2026-24215"),
)
ADVISORIES = tuple(
    Advisory(f"CVE-{number}", fixed, server)
    for fixed, server, numbers in _FIXES
    for number in numbers.split()
)


def advisories(release: TritonRelease) -> tuple[Advisory, ...]:
    """Return the vulnerabilities that a release has, oldest first."""
    server = tuple(int(part) for part in release.server.split("."))
    return tuple(each for each in ADVISORIES if server < each.server)


def summary(release: TritonRelease) -> str | None:
    """Return in one line what a release has; None: nothing that is known here."""
    found = advisories(release)
    if not found:
        return None
    return (
        f"Triton {release.release} has {len(found)} published vulnerabilities that "
        f"{found[-1].fixed} does not have, {found[0].cve} to {found[-1].cve} (as of {DATE})"
    )
