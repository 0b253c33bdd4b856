"""What the README and the pages in docs/ show: commands to type, and lines of Python."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.host.paths import CHECKOUT

README = CHECKOUT / "README.md"
PAGES = (README, CHECKOUT / "CHANGELOG.md", *sorted((CHECKOUT / "docs").rglob("*.md")))


@dataclass(frozen=True)
class Line:
    """A command as a page shows it.

    Attributes:
        page: Where, relative to the checkout.
        text: The command, without prompt, sudo and comment; continued lines are joined.
    """

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Its words, without a shell's redirections."""
        return [word for word in shlex.split(self.text) if not re.match(r"\d*>", word)]

    def __str__(self) -> str:
        return self.text


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def shown(page: Path) -> Iterator[Line]:
    """Yield each command of a page's console blocks."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                text = re.sub(r"\s+#\s.*", "", line[2:]).removeprefix("sudo ")
                yield Line(str(page.relative_to(CHECKOUT)), re.sub(r"\s+", " ", text))


def console() -> list[Line]:
    """Return each command of the console blocks once, in the pages' order."""
    found: dict[str, Line] = {}
    for page in PAGES:
        for line in shown(page):
            found.setdefault(line.text, line)
    return list(found.values())


def numlkit(*commands: str) -> list[Line]:
    """Return the lines that are these commands of numlkit."""
    return [
        line for line in console() if tuple(line.words[:2]) in {("numlkit", c) for c in commands}
    ]


def inline() -> Iterator[Line]:
    """Yield the commands that stand in a sentence or a table, with words after them."""
    for page in PAGES:
        outside = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for text in re.findall(
            r"`((?:python3? (?:deploy|scripts)/\S+|numlkit \w+) [^`]+)`", outside
        ):
            yield Line(str(page.relative_to(CHECKOUT)), text)
