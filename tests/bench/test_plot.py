"""The charts: what is drawn where, in a picture that any XML parser reads."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from bench.plot import HEIGHT, WIDTH, Chart, brief, nice, svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_chart_has_a_dot_for_each_point_and_flat_looks_flat() -> None:
    flat = Chart("flat & even", "things", ((1, 20_000), (10, 20_000), (1_000, 20_000)))
    half = Chart("half", "things", ((1, 20_000), (2, 10_000)))
    root = ElementTree.fromstring(svg([flat, half], "what it shows"))
    assert root.attrib["viewBox"] == f"0 0 {2 * WIDTH} {HEIGHT}"
    assert root.findtext(f"{NAMESPACE}title") == "what it shows"
    words = "flat & even: 20,000 at 1, 20,000 at 1,000; half: 20,000 at 1, 10,000 at 2"
    assert root.findtext(f"{NAMESPACE}desc") == words
    first, second = root.findall(f"{NAMESPACE}g")
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in first.iter(f"{NAMESPACE}circle")]
    assert len(dots) == 3
    assert len({y for _, y in dots}) == 1
    assert dots[1][0] - dots[0][0] == pytest.approx((dots[2][0] - dots[0][0]) / 3, abs=0.2)  # by the logarithm
    high, low = (float(dot.attrib["cy"]) for dot in second.iter(f"{NAMESPACE}circle"))
    bottom = max(float(text) for text in re.findall(r"M46 ([\d.]+)H", svg([half], "")))
    assert bottom - low == pytest.approx((bottom - high) / 2, abs=0.2)  # the axis begins at 0


def test_nothing_at_all_has_a_place_before_the_first_power_of_ten() -> None:
    root = ElementTree.fromstring(svg([Chart("filters", "held", ((0, 1), (100, 1), (1_000, 1)))], ""))
    zero, hundred, thousand = (float(dot.attrib["cx"]) for dot in root.iter(f"{NAMESPACE}circle"))
    assert thousand - hundred == pytest.approx(hundred - zero, abs=0.2)


@pytest.mark.parametrize(("value", "end"), [(0, 1), (19_500, 20_000), (20_001, 40_000), (61, 80), (99, 100)])
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert nice(value) == end


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (20_000, "20k"), (1_500_000, "1.5M")])
def test_numbers_on_an_axis_are_brief(value: float, text: str) -> None:
    assert brief(value) == text
