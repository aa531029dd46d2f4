from io import StringIO

from rich.console import Console

from fedml_dapper.evaluation import footprint_table, result_table, summarise


def _text(table):
    console = Console(file=StringIO(), width=120)
    console.print(table)
    return console.file.getvalue().replace("\xa0", " ")


def _row(text, start):
    line = next(line for line in text.splitlines() if start in line)
    return [cell.strip() for cell in line.strip("│┃").split("│")]


def test_result_table_has_a_row_per_domain_and_the_global_one(make_run, make_round):
    run = make_run()
    rounds = [make_round(1, 90, 20), make_round(2, 60, 62)]

    text = _text(result_table(summarise(run, rounds), run))

    assert "dapperfl on digits" in text
    assert _row(text, "mnist") == ["mnist", "60.0", "75.0", "90.0", "1"]
    assert _row(text, "│ global") == ["global (mean)", "61.0", "58.0", "61.0", "2"]


def test_result_table_of_an_untested_run_says_so(make_run, make_round):
    assert "no round was tested yet" in _text(result_table(summarise(make_run(), [make_round(1)]), make_run()))


def test_labels_are_not_read_as_markup(make_run, make_round):
    run = make_run(suite="digits [red]odd[/red]")

    assert "digits [red]odd[/red]" in _text(result_table(summarise(run, [make_round(1, 1, 2)]), run))


def test_footprint_table_gives_exact_shares_and_decimal_units(make_run):
    text = _text(footprint_table(make_run().footprints, "lenet [b]5[/b]"))

    assert "lenet [b]5[/b]" in text
    assert "of dense" in text
    assert _row(text, "│     2 │") == ["2", "0.5", "2.000", "50.00 %", "125.00", "8.00", "16.00"]


def test_the_mean_says_of_how_many_rounds_it_is(make_run, make_round):
    run = make_run()
    for tested, heading in ((4, "mean of last 4"), (7, "mean of last 5")):
        rounds = [make_round(number, 50, 60) for number in range(1, tested + 1)]
        assert heading in _text(result_table(summarise(run, rounds), run))


def test_no_table_is_wider_than_80_columns_and_no_title_goes_on_in_a_second_line(make_run, make_round):
    run = make_run(method="dapperfl_slim", suite="office_caltech10 (subset)", domains=("mnist", "usps"))
    rounds = [make_round(number, 50, 60) for number in range(1, 101)]
    rounds = [record.model_copy(update={"validation_scores": record.scores}) for record in rounds]
    console = Console(file=StringIO(), width=80)
    console.print(result_table(summarise(run, rounds), run))
    lines = console.file.getvalue().splitlines()

    assert max(map(len, lines)) <= 80
    title = "dapperfl_slim on office_caltech10 (subset): Top-1 accuracy (%) of the global model"
    assert len(title) > 80, "so it needs two lines, and no more"
    assert lines[2].startswith("┏")
    shorter = make_run(method="dapperfl_slim")
    console = Console(file=StringIO(), width=80)
    console.print(result_table(summarise(shorter, [make_round(1, 50, 60)]), shorter))
    assert "dapperfl_slim on digits: Top-1 accuracy (%) of the global model" in console.file.getvalue()
