"""Words of the command line that stand in several places: everywhere the same one."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_forced_removal_is_called_force_in_every_message_page_and_example() -> None:
    texts = [path for folder in ("heddle", "docs", "examples") for path in (ROOT / folder).rglob("*.*")]
    told = [path for path in [*texts, ROOT / "README.md"] if path.suffix in (".py", ".md")]
    said = {str(path.relative_to(ROOT)): re.findall(r"heddle rm [^`\n]*--\w+", path.read_text()) for path in told}
    assert sum("--force" in one for found in said.values() for one in found) >= 4
    assert {
        path: [one for one in found if "--yes" in one] for path, found in said.items() if "--yes" in str(found)
    } == {}
