"""What any page of the documentation shows to be typed would be understood."""

import pytest

from tests.typed import PAGES, ROOT, commands_of, lines_of, shell_lines, wrong_with

LINES = [(page, line) for page in PAGES for line in shell_lines(page)]


@pytest.mark.parametrize(
    ("page", "line"), [pytest.param(page, line, id=f"{page.relative_to(ROOT)}: {line}") for page, line in LINES]
)
def test_a_line_names_commands_options_and_files_that_there_are(page: object, line: str) -> None:
    assert [told for words in commands_of(line) if (told := wrong_with(words))] == []


def test_both_kinds_of_blocks_are_found() -> None:
    page = "Type\n\n    heddle a  # b\n    X=1 heddle c | jq d\n\nor\n```sh\nheddle e\n```\n"
    page += "```\nshown\n\n    no\n```\n- item\n    more"
    assert list(lines_of(page)) == ["heddle a  # b", "X=1 heddle c | jq d", "heddle e"]
    words = commands_of('X=1 heddle c "$(heddle acl e)" | jq d')
    assert words == [["heddle", "c", "GIVEN"], ["jq", "d"], ["heddle", "acl", "e"]]


@pytest.mark.parametrize(
    "line",
    [
        "heddle tops",
        "heddle ls --everything",
        "heddle workers grow 4",
        "make coffee",
        "python -m benchmarks --only-this x",
        "python -m pytest tests/unit/test_none.py",
        "docker compose -f deploy/compose.yaml --profile none up -d",
        "promtool test rules deploy/prometheus/none.yml",
        "nobody knows",
    ],
)
def test_what_is_wrong_is_told(line: str) -> None:
    assert [wrong_with(words) for words in commands_of(line)] != [None]
