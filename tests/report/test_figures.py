"""What all pages draw is plain data, with names that cannot become markup."""

from __future__ import annotations

from parformer.report.figures import (
    bars,
    error_bars,
    heat_map,
    limit_line,
    lines,
    reference_marks,
    scatter,
    stacked,
    unbeaten,
)

EVIL = "<img src=x>"


def test_names_are_escaped_wherever_they_are_drawn() -> None:
    drawn = [
        scatter([(1, 2)], name=EVIL),
        lines([(1, 2)], name=EVIL),
        bars(["a"], [1.0], name=EVIL, colour="red", hover=""),
        *heat_map([[0.5, 0.5]], [EVIL, "f"], [1], ""),
        *reference_marks({EVIL: 1.0})["annotations"],
    ]
    assert "<img" not in str(drawn)


def test_points_answer_to_a_pointer_only_where_there_is_something_to_say() -> None:
    assert scatter([(1, 2)])["hoverinfo"] == "skip"
    assert scatter([(1, 2)], hover=["x"])["hovertext"] == ["x"]
    assert lines([(1, 2)])["hoverinfo"] == "skip"
    assert lines([(1, 2)], hover="%{y}")["hovertemplate"] == "%{y}<extra></extra>"


def test_a_line_joins_what_nothing_beats() -> None:
    drawn = unbeaten([(3.0, 1.0), (1.0, 2.0), (2.0, 1.5), (4.0, 5.0)])
    assert (drawn["x"], drawn["y"]) == ([1.0, 4.0], [2.0, 5.0])


def test_an_interval_is_drawn_around_its_value() -> None:
    drawn = error_bars([2.0], [(1.5, 3.0)], "red")
    assert (drawn["array"], drawn["arrayminus"]) == ([1.0], [0.5])


def test_a_limit_is_named_in_its_own_unit_and_none_draws_nothing() -> None:
    marks = limit_line("latency", 0.005, 0.001)
    (line,), (sign,) = marks["shapes"], marks["annotations"]
    assert (line["x0"], sign["text"]) == (5.0, "limit 5 ms")
    assert limit_line("latency", None, 1.0) == {"shapes": [], "annotations": []}


def test_stacked_figures_do_not_overlap() -> None:
    (upper, lower), _ = stacked([100, 50])
    assert 0 <= lower[0] < lower[1] < upper[0] < upper[1] <= 1
