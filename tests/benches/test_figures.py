import pytest
from matplotlib import pyplot

from fedml_dapper.benches import bench_figures, diagnosis_figures
from fedml_dapper.benches.grid import Published, Variant
from fedml_dapper.benches.looks import looks
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import build_tables


@pytest.fixture
def results(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1, 2))
    store.cell("Ours", 1, [10, 40, 30], suite="digits (subset)", diagnosed=True)
    store.cell("Ours", 2, [20, 50, 60], suite="digits (subset)", diagnosed=True)
    store.cell("FedAvg", 1, [10, 20, 30], suite="digits (subset)", diagnosed=True)
    return load_results(folder)


def lines(axes) -> dict[str, list[list[float]]]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}


def test_curves_are_means_with_a_band_from_lowest_to_highest(results):
    axes = bench_figures.learning_curves(results).axes[0]

    assert lines(axes)["Ours"] == [[1, 15], [2, 45], [3, 45]]
    assert lines(axes)["FedAvg"] == [[1, 10], [2, 20], [3, 30]]
    [band] = axes.collections
    vertices = band.get_paths()[0].vertices.tolist()
    assert [3, 30] in vertices
    assert [3, 60] in vertices


def test_best_so_far_never_falls(results):
    curves = bench_figures.learning_curves(results, best_so_far=True)
    assert lines(curves.axes[0])["Ours"] == [
        [1, 15],
        [2, 45],
        [3, 50],
    ]


def test_domains_have_axes_of_their_own(results):
    mnist, usps = bench_figures.domain_curves(results).axes

    assert (mnist.get_title(), usps.get_title()) == ("mnist", "usps")
    assert lines(usps)["FedAvg"] == [[1, 8], [2, 18], [3, 28]]


def test_cost_markers_at_the_same_cost_stand_side_by_side_with_bars_where_there_are_intervals(results):
    bytes_up, _ = bench_figures.accuracy_against_cost(results, build_tables(results)).axes

    ours, fedavg = bytes_up.containers
    assert ours[0].get_xdata()[0] == pytest.approx(10, abs=0.3)
    assert ours[0].get_xdata()[0] < fedavg[0].get_xdata()[0]
    assert ours[2]
    assert not fedavg[2], "one seed has no interval"


def test_radar_has_a_spoke_per_level(results):
    axes = diagnosis_figures.level_radar(results, build_tables(results)).axes[0]

    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "level 1\n(ratio 0)", "level 2\n(ratio 0.4)", "level 3\n(ratio 0.8)"
    ]  # fmt: skip
    assert axes.get_lines()[0].get_ydata().tolist() == [60, 55, 50, 60]


def test_there_is_no_radar_where_each_variant_has_other_levels(results):
    tables = build_tables(results)
    assert diagnosis_figures.has_level_radar(tables)
    others = {"Ours": {1, 2}, "FedAvg": {3}}
    apart = tables.model_copy(update={"levels": tuple(row for row in tables.levels if row.level in others[row.label])})
    assert not diagnosis_figures.has_level_radar(apart)


def test_confusions_are_shares_of_the_true_class(results):
    axes = diagnosis_figures.confusion_matrices(results, results["Ours"]).axes[0]

    assert axes.collections[0].get_array().ravel().tolist() == [80, 20, 10, 90]
    assert axes.get_title() == "mnist (20 images)"


def test_representations_of_the_reference_and_fedavg(results):
    pair = diagnosis_figures.embedded_pair(results, build_tables(results))
    assert [variant.label for variant in pair] == ["Ours", "FedAvg"]

    figure = diagnosis_figures.embeddings(results, pair)

    assert len(figure.axes) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mnist", "usps", "backpack", "bike"]
    assert sum(len(dots.get_offsets()) for dots in figure.axes[0].collections) == 3


@pytest.fixture
def sweep(store):
    def point(series: str, x: float) -> Variant:
        published = {"global": Published(mean=90 - 10 * x)} if series == "Ours" else {}
        return Variant(
            label=f"{series} {x}", method="m", panel="pruning ratio", series=series, x=x, published=published
        )

    variants = [point(name, x) for name in ("Ours", "FedMP") for x in (0.2, 0.8)]
    folder = store.bench(variants, seeds=(1, 2))
    for place, variant in enumerate(variants):
        for seed in (1, 2):
            store.cell(variant.label, seed, [50, 60 + place, 55 + place + seed], validation=[1, 2, 3])
    return load_results(folder)


def test_sweep_has_a_line_per_series_and_published_values_hollow(sweep):
    axes = bench_figures.sweep_panels(sweep, build_tables(sweep)).axes[0]

    drawn = axes.get_lines()
    [hollow] = [line for line in drawn if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert hollow.get_ydata().tolist() == pytest.approx([88, 82])
    assert [line.get_ydata().tolist() for line in drawn if line.get_linestyle() == "-"] == [[56.5, 57.5], [58.5, 59.5]]
    assert [line.get_ydata().tolist() for line in drawn if line.get_linestyle() == ":"] == [[60, 61]]
    assert axes.get_xlabel() == "pruning ratio"


def test_all_of_a_sweeps_legend_is_in_the_picture(sweep):
    figure = bench_figures.sweep_panels(sweep, build_tables(sweep))
    figure.draw_without_rendering()

    legend = figure.legends[0].get_window_extent()
    assert "hollow: published; dotted: best round" in figure.legends[0].get_title().get_text().replace("\n", " ")
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1


def test_sweep_curves_have_axes_per_series_and_a_line_per_value(sweep):
    ours, fedmp = bench_figures.learning_curves(sweep).axes

    assert (ours.get_title(), fedmp.get_title()) == ("Ours", "FedMP")
    assert list(lines(fedmp)) == ["0.2", "0.8"]


def test_panels_without_an_axis_are_places_on_one(store):
    variants = [
        Variant(label=f"{name}, {domain}", method="m", panel=f"{domain} unseen", series=name)
        for domain in ("dslr", "webcam") for name in ("Ours", "FedBN")
    ]  # fmt: skip
    folder = store.bench(variants, seeds=(1,), statistic="unseen")
    for variant in variants:
        store.cell(variant.label, 1, [50, 60, 70], unseen=[40, 30, 20])
    results = load_results(folder)

    [axes] = bench_figures.sweep_panels(results, build_tables(results)).axes

    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["dslr\nunseen", "webcam\nunseen"]
    assert len(bench_figures.learning_curves(results).axes) == 2


def every_figure(results):
    tables = build_tables(results)
    yield bench_figures.learning_curves(results)
    yield bench_figures.domain_curves(results)
    yield bench_figures.accuracy_against_cost(results, tables)
    yield diagnosis_figures.level_radar(results, tables)
    yield diagnosis_figures.confusion_matrices(results, results["Ours"])
    yield diagnosis_figures.embeddings(results, [results["Ours"]])


def test_every_figure_says_what_it_shows(results):
    for figure in every_figure(results):
        words = [str(text.get_text()) for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
        assert any("digits (subset)" in text and "seed" in text and "profile small" in text for text in words)
        axes = figure.axes[0]
        if axes.name == "rectilinear":
            assert axes.get_xlabel()
            assert axes.get_ylabel()
    assert pyplot.get_fignums() == []


def test_looks_are_distinct_for_thirteen_methods(store):
    results = load_results(store.bench([f"Method {number}" for number in range(13)]))

    found = looks(results)

    assert found["Method 0"].colour == "#000000"
    assert len({(look.colour, look.style, look.marker) for look in found.values()}) == 13
