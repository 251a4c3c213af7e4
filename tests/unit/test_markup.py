"""What notebooks show: well-formed, whatever names and reasons hold, and a curve that is one."""

import math
from xml.etree import ElementTree

import pytest

from heddle import markup
from heddle.broker.metrics import Metric
from heddle.states.judgement import Judgement
from heddle.states.shown import Curve, Workers, curve_of

EVIL = '<script>alert("x")</script>&\'<img src=x onerror=y>'


def parsed(html: str) -> ElementTree.Element:
    """The same as a tree, which only well-formed markup has; fails for elements that nobody meant."""
    tree = ElementTree.fromstring(f"<all>{html}</all>")
    ours = {"all", "div", "b", "table", "thead", "tbody", "tr", "td", "th", "title", "svg", "rect", "polyline"}
    assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= ours
    return tree


@pytest.mark.parametrize(
    "html",
    [
        markup.facts(EVIL, EVIL, [(EVIL, EVIL)]),
        markup.table([EVIL], [[EVIL], [1.5]], empty=EVIL),
        markup.table([], [], empty=EVIL),
        markup.curve([(0.0, 1.0), (1.0, 2.0)], label=EVIL),
        markup.curve([], label=EVIL),
        Judgement(EVIL, EVIL, EVIL, EVIL, because=(Judgement("b" + EVIL, EVIL, EVIL),))._repr_html_(),
        Workers({EVIL: Judgement(EVIL, "dead", EVIL)})._repr_html_(),
        Curve(EVIL, EVIL, ((0.0, 1.0), (2.0, 3.0)))._repr_html_(),
    ],
)
def test_nothing_that_is_given_becomes_markup(html: str) -> None:
    said = "".join(parsed(html).itertext())
    assert "<script>" not in html and "<img" not in html
    assert EVIL in said


def test_a_curve_goes_where_its_points_go() -> None:
    tree = parsed(markup.curve([(0, 0.0), (5, math.nan), (10, 4.0), (20, 1.0)], label="return"))
    (line,) = [element for element in tree.iter() if element.tag.endswith("polyline")]
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places) and len(places) == 3
    (_, first), (_, highest), (_, last) = places
    assert highest < last < first, "up is down in SVG"
    assert "least 0, most 4" in "".join(tree.itertext())


def test_a_long_curve_is_drawn_with_its_extremes_and_few_points() -> None:
    points = [(float(x), math.sin(x / 50)) for x in range(100_000)]
    points[77_777] = (77_777.0, 9.0)
    kept = markup.thinned(points)
    assert len(kept) <= markup.MOST_POINTS + 2
    assert (77_777.0, 9.0) in kept and kept[0] == points[0] and kept[-1] == points[-1]
    assert kept == sorted(kept)


def test_a_long_table_tells_how_much_more_there_is() -> None:
    assert "and 50 more" in "".join(parsed(markup.table(["a"], [[n] for n in range(250)], empty="")).itertext())


def test_a_metric_that_tells_no_steps_stands_where_the_last_one_stood() -> None:
    metrics = [Metric("1-0", 1, 1, {"env_steps": 10.0, "return": 1.0}), Metric("2-0", 2, 1, {"eval_return": 5.0})]
    assert curve_of("a", metrics, "eval_return").points == ((10.0, 5.0),)
