import pytest
from matplotlib import pyplot

from fedml_dapper.evaluation import footprint_bars, learning_curves, loss_per_level, seconds_per_level
from fedml_dapper.evaluation.figures import accuracy_against, domain_colours, level_colours


@pytest.fixture
def rounds(make_round):
    return [make_round(1, 10, 30), make_round(2), make_round(3, 50, 70)]


def _lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_learning_curves_show_tested_rounds_only(make_run, rounds):
    lines = _lines(learning_curves(make_run(), rounds))

    assert lines["mnist"].get_xydata().tolist() == [[1, 10], [3, 50]]
    assert lines["global (mean)"].get_xydata().tolist() == [[1, 20], [3, 60]]
    assert lines["global (mean)"].get_linewidth() > lines["usps"].get_linewidth()


def test_loss_is_the_mean_of_a_levels_clients_with_their_range(make_run, make_round):
    figure = loss_per_level(make_run(), [make_round(1), make_round(2, losses=(0.5, 1.0, 5.0))])

    assert _lines(figure)["level 2 (ratio 0.5)"].get_xydata().tolist() == [[1, 3], [2, 3]]
    band = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1, 5)


def test_level_without_clients_has_no_line(make_run, make_round):
    record = make_round(1)
    only_strong = record.model_copy(update={"clients": record.clients[:1]})

    assert list(_lines(seconds_per_level(make_run(), [only_strong]))) == ["level 1 (ratio 0)"]


def test_bars_are_shares_of_the_dense_model_with_absolute_labels(make_run):
    axes = footprint_bars(make_run()).axes[0]

    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100, 100, 49.999975, 50.000625])
    assert "2.00\xa0M (50.0\xa0%)" in [text.get_text() for text in axes.texts]
    assert axes.get_xlabel() == "share of the dense model (%)"


def test_clients_on_their_own_have_bars_without_traffic(make_run):
    alone = tuple(row.model_copy(update={"bytes_up": 0, "bytes_down": 0}) for row in make_run().footprints)
    axes = footprint_bars(make_run(footprints=alone)).axes[0]

    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100, 0, 49.999975, 0])
    assert "0\xa0B (\N{EN DASH})" in [text.get_text() for text in axes.texts]


def test_bars_do_not_call_a_slim_model_dense(make_run):
    slim_only = footprint_bars(make_run(footprints=make_run().footprints[1:]))

    assert slim_only.axes[0].get_xlabel() == "share of the largest model (%)"


@pytest.mark.parametrize(
    "draw", [learning_curves, loss_per_level, seconds_per_level, lambda run, _: footprint_bars(run)]
)
def test_every_axis_says_what_it_is(make_run, rounds, draw):
    figure = draw(make_run(suite="digits (subset)"), rounds)

    axes = figure.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert figure.legends


def test_accuracy_stands_over_what_was_spent_by_then(make_run, make_round):
    rounds = [make_round(1, 10, 30), make_round(2), make_round(3, 50, 70)]
    run, sent = make_run(), sum(client.bytes_up + client.bytes_down for client in rounds[0].clients)

    axes = accuracy_against("bytes", run, rounds).axes[0]
    assert axes.get_lines()[0].get_xydata().tolist() == [[sent / 1e6, 20], [3 * sent / 1e6, 60]]
    assert axes.get_xlabel() == "MB both ways"
    assert accuracy_against("wall clock", run, rounds).axes[0].get_lines()[0].get_xdata().tolist() == [10, 30]
    assert accuracy_against("virtual time", run, rounds) is None
    assert accuracy_against("energy", run, rounds) is None


def test_colours_are_distinct_and_shared(make_run, rounds):
    run = make_run()

    assert _lines(learning_curves(run, rounds))["usps"].get_color() == domain_colours(run)["usps"]
    assert _lines(loss_per_level(run, rounds))["level 2 (ratio 0.5)"].get_color() == level_colours(run)[2]
    assert len({*domain_colours(run).values(), *level_colours(run).values()}) == 4


def test_drawing_leaves_pyplot_alone(make_run, rounds):
    learning_curves(make_run(), rounds)

    assert pyplot.get_fignums() == []
