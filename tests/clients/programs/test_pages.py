"""docs/clients.md names the versions that the tests run."""
import re

from served import ROOT

from .packages import PACKAGES


def test_versions() -> None:
    rows = [line for line in (ROOT / "docs/clients.md").read_text().splitlines() if line.startswith("| [")]
    written = [row.split("|")[2].strip() for row in rows]
    assert written == [re.findall("==(.*)", packages[0])[0] for packages in PACKAGES.values()]
