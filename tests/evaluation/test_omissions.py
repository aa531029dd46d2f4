"""A report never fails a finished run: what cannot be drawn is left out, and said."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.datasets import contact_sheet
from fedml_dapper.evaluation import figures, write_report, write_run_report
from fedml_dapper.evaluation.omissions import Omissions
from fedml_dapper.federation import RoundRecord, RunRecord

from ..brought import brought, load_of
from ..examples.pictures import make_pictures

READ_ONCE = """
class ReadOnce(TensorDataset):
    def __getitem__(self, index):
        if os.path.exists(os.path.join(os.path.dirname(__file__), "gone")):
            raise OSError("the drive is gone")
        return super().__getitem__(index)
TensorDataset, Kept = ReadOnce, TensorDataset
"""


@pytest.mark.long
@pytest.mark.parametrize("labels", ["y + 1", "torch.where(y == 2, 3, y)", "y * 0"])
def test_classes_without_a_training_picture_leave_gaps(tmp_path: Path, labels: str) -> None:
    stranger = brought(tmp_path, load_of(f"y = {labels}; y[-1] = 4"))
    result = stranger.run()
    assert result.exit_code == 0, result.output
    page = (stranger.run_dir / "report.html").read_text()
    assert "What the images look like" in page
    assert "Which classes are confused" in page
    assert "goes without" not in page


def test_a_class_without_a_picture_is_an_empty_cell(tmp_path: Path) -> None:
    sheet = contact_sheet(brought(tmp_path, load_of("y = y + 1")).suite)
    assert sheet is not None
    assert [picture is None for picture in sheet.rows["a"]] == [True, False, False, False, False]


@pytest.mark.long
def test_data_that_can_be_read_no_more_leave_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = brought(tmp_path, READ_ONCE + load_of())
    assert stranger.run().exit_code == 0
    (tmp_path / "gone").touch()
    with caplog.at_level(logging.WARNING):
        page = write_run_report(stranger.run_dir).read_text()
    assert "the report goes without sample images: " in caplog.text
    assert "What this page goes without" in page
    assert "the drive is gone" in page
    assert "against what it cost" in page


@pytest.mark.long
def test_a_chart_that_fails_is_named_and_the_others_are_there(
    tmp_path: Path, make_run: Callable[..., RunRecord], make_round: Callable[..., RoundRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no <scale>")

    whole = tmp_path / "whole.html"
    write_report(whole, make_run(), [make_round(1, 50.0, 60.0)])
    monkeypatch.setattr(figures, "learning_curves", fails)
    path, omissions = tmp_path / "report.html", Omissions()
    write_report(path, make_run(), [make_round(1, 50.0, 60.0)], omissions=omissions)
    assert omissions.reasons == {"the chart of curves": "ZeroDivisionError: no <scale>"}
    assert "the chart of curves: ZeroDivisionError: no &lt;scale&gt;" in path.read_text()
    assert path.read_text().count("<svg class=") == whole.read_text().count("<svg class=") - 1


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_times_that_an_earlier_server_took_from_a_silo_unchecked_leave_the_rest(
    tmp_path: Path, make_run: Callable[..., RunRecord], make_round: Callable[..., RoundRecord]
) -> None:
    record = make_round(1, 50.0, 60.0)
    clients = tuple(client.model_copy(update={"seconds": 1.7e308}) for client in record.clients)
    omissions = Omissions()
    write_report(
        tmp_path / "report.html", make_run(), [record.model_copy(update={"clients": clients})], omissions=omissions
    )
    assert list(omissions.reasons) == ["the chart of seconds"]
    assert "<svg class=" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["$x^$", r"\frac{$a$", "50 $ to 100 $ \\"])
def test_names_begin_no_formula(
    tmp_path: Path, make_run: Callable[..., RunRecord], make_round: Callable[..., RoundRecord], name: str
) -> None:
    record = make_round(1, 50.0, 60.0)
    scores = record.scores
    assert scores is not None
    renamed = scores.model_copy(update={"domain_accuracy": {name: 50.0, "mnist": 60.0}})
    run = make_run(domains=("mnist", "usps", name))
    omissions = Omissions()
    write_report(tmp_path / "report.html", run, [record.model_copy(update={"scores": renamed})], omissions=omissions)
    assert not omissions.reasons
    assert (tmp_path / "report.html").read_text().count(f">{name}</text>") == 1


@pytest.mark.long
def test_a_report_for_which_there_is_no_place_takes_nothing_from_the_run(tmp_path: Path) -> None:
    stranger = brought(tmp_path, load_of())
    assert stranger.run().exit_code == 0
    (stranger.run_dir / "report.html").unlink()
    (stranger.run_dir / "report.html").mkdir()
    asked = ["run", "-c", str(stranger.experiment), "--output", str(stranger.run_dir), "--resume"]
    result = CliRunner().invoke(main, asked, prog_name="fedml-dapper")  # of a finished run it writes the report alone
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "global (mean)" in words
    assert "The report was not written: " in words
    assert "report.html" in words


def test_data_that_have_gained_a_domain_leave_the_rest(tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures", per_class=4)
    stranger = brought(tmp_path, load_of())
    of_folder = ("data_args={dataset: folder, image_size: 8}", f"data_cache_dir={tmp_path / 'pictures'}")
    assert stranger.run(*of_folder, "client_num_in_total=4", "client_num_per_round=4").exit_code == 0
    first = next(path for path in (tmp_path / "pictures").iterdir() if path.is_dir())
    shutil.copytree(first, tmp_path / "pictures" / "another")
    page = write_run_report(stranger.run_dir).read_text()
    assert "the data have domains another, " in page
    assert "against what it cost" in page
