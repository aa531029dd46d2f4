"""Export of a finished run's model to a folder: files, each read again and measured, a sidecar and a model card."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedml_dapper import __version__
from fedml_dapper.config import short_name
from fedml_dapper.datasets import ClientData
from fedml_dapper.deployment.deployed import Deployed
from fedml_dapper.deployment.formats import FORMATS, Product, Runtime
from fedml_dapper.deployment.new_folder import new_folder
from fedml_dapper.deployment.parity import largest_difference, written_and_read
from fedml_dapper.deployment.products import check_finite, input_ports, output_port, product_of, size_when_merged
from fedml_dapper.deployment.sidecar import SIDECAR_NAME, Sidecar
from fedml_dapper.errors import ConfigError
from fedml_dapper.export.card import CARD_NAME, Card, FileFigures
from fedml_dapper.export.for_peft import FOLDER_NAME, write_for_peft
from fedml_dapper.export.measurement import TestSets, accuracy, milliseconds, sets_of
from fedml_dapper.export.quantisation import INT8, INT8_NAME, calibration_batches, quantise
from fedml_dapper.export.subjects import Subject
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.models import Backbone
from fedml_dapper.models.adapters import has_adapters, merged
from fedml_dapper.process.provenance import commit, machine
from fedml_dapper.pruning import DENSE
from fedml_dapper.pruning.filled import filled_channels


@dataclass(frozen=True, eq=False)
class Exporter:
    """Exports models of one ``run``, each in all of ``formats``, and as int8 besides if asked for.

    Raises:
        ConfigError: This machine lacks what a format needs, or int8 is asked for without ONNX.
    """

    run: FinishedRun
    formats: Sequence[str] = ("onnx",)
    int8: bool = False
    peft: bool = False
    """Whether to write the adapters alone too."""
    _dense: dict[str, Runtime] = field(default_factory=dict)
    """Format -> runtime of the uncut network, which is timed only, whatever its weights."""

    def __post_init__(self) -> None:
        for name in self.formats:
            FORMATS[name].check_installed()
        if self.int8 and "onnx" not in self.formats:
            raise ConfigError("--int8 quantises the ONNX file; add --format onnx")

    def export(
        self, subject: Subject, out: Path, *, before: Subject | None = None, pictures: ClientData | None = None
    ) -> Card:
        """Write ``subject`` into ``out``, a new or empty folder, and return its card.

        Args:
            out: Folder to write; nothing is left behind on errors.
            before: The model that it was adapted from, if it was.
            pictures: Pictures that int8 ranges are measured on; training samples by default.

        Raises:
            ConfigError: ``out`` is not empty, or a file's outputs are not the model's.
        """
        check_finite(subject.model, subject.whose)
        batches = calibration_batches(self.run, pictures) if self.int8 else []
        with new_folder(out) as folder:
            if self.peft:
                write_for_peft(subject.model, self.run.method.problem.backbone, folder / FOLDER_NAME)
            product = self._product(merged(subject.model))
            sets = sets_of(self.run, subject.client)
            files = [self._written(name, product, subject, sets, folder) for name in self.formats]
            if self.int8:
                onnx = FORMATS["onnx"]
                quantise(folder / onnx.file_name, product.input_names, batches, folder / INT8_NAME)
                runtime = onnx.read(folder / INT8_NAME)
                files.append(self._figures(INT8, folder / INT8_NAME, runtime, subject, sets, difference=None))
            card = Card(
                about=self._about(subject, product, {each.format: each.file for each in files}),
                files=tuple(files),
                before=None if before is None else self._accuracy_of(before, sets),
                metric=self.run.record.metric,
                clients=self.run.record.clients,
                dense=self._merged_size(0.0, self.run.method.model_size(DENSE)),
                tested={name: test.num_samples for name, test in sets.for_network.items()},
                without_data=self.run.without_data,
                machine=machine(),
            )
            (folder / SIDECAR_NAME).write_text(card.about.model_dump_json(indent=1) + "\n", encoding="utf-8")
            (folder / CARD_NAME).write_text(card.markdown(), encoding="utf-8")
        for name in self.formats:
            FORMATS[name].note_own(out / FORMATS[name].file_name)
        return card

    def _written(self, name: str, product: Product, subject: Subject, sets: TestSets, folder: Path) -> FileFigures:
        path, runtime = written_and_read(name, product, folder)
        difference = largest_difference(runtime, subject.model, sets.compared, path.name)
        return self._figures(name, path, runtime, subject, sets, difference)

    def _figures(
        self, name: str, path: Path, runtime: Runtime, subject: Subject, sets: TestSets, difference: float | None
    ) -> FileFigures:
        dense = self._dense_runtime(name, subject, path.parent)
        own_time, *dense_time = milliseconds([runtime, *dense], sets)
        return FileFigures(
            format=name,
            file=path.name,
            bytes=path.stat().st_size,
            difference=difference,
            accuracy=accuracy(runtime, self.run.method.problem.task, sets.for_files),
            milliseconds=own_time,
            dense_milliseconds=next(iter(dense_time), None),
        )

    def _dense_runtime(self, name: str, subject: Subject, folder: Path) -> list[Runtime]:
        """The uncut network in the same format, or in ONNX for int8; none where nothing was cut."""
        if not self.run.method.slims or subject.ratio == 0:
            return []
        name = "onnx" if name == INT8 else name
        if name not in self._dense:
            chosen = FORMATS[name]
            place = folder / "dense"
            place.mkdir()
            chosen.write(self._product(merged(self.run.method.problem.backbone)), place / chosen.file_name)
            self._dense[name] = chosen.read(place / chosen.file_name, trust_code=True)  # written a moment ago
            shutil.rmtree(place)
        return [self._dense[name]]

    def _accuracy_of(self, subject: Subject, sets: TestSets) -> dict[str, float]:
        """Accuracy by domain of a model that is not written to a file."""
        deployed = Deployed(subject.model, self.run.origin.preprocessing)
        return accuracy(deployed, self.run.method.problem.task, sets.for_files)

    def _product(self, model: Backbone) -> Product:
        kept = filled_channels(self.run.method.problem.layout, model)
        return product_of(model, self.run.origin, self.run.state.round, self.run.method.problem.task.name, kept)

    def _about(self, subject: Subject, product: Product, files: dict[str, str]) -> Sidecar:
        run = self.run
        ports = input_ports(product)
        parameters, macs = self._size(subject)
        return Sidecar(
            network=short_name(run.settings.model_args.model),
            files=files,
            input=ports[0] if len(ports) == 1 else ports,
            output=output_port(product, run.method.problem.task.name),
            task=run.method.problem.task.name,
            classes=run.origin.classes,
            suite=run.record.suite,
            method=run.method.name,
            rounds=run.state.round,
            whose=subject.whose,
            changes=subject.changes,
            level=subject.level,
            ratio=subject.ratio,
            client=subject.client,
            parameters=parameters,
            macs=macs,
            version=__version__,
            commit=commit(),
        )

    def _size(self, subject: Subject) -> tuple[int, int]:
        """Parameters, and multiply-accumulates of one input, of the model with its adapters merged."""
        method = self.run.method
        if subject.level is None:
            return self._merged_size(subject.ratio, method.model_size(DENSE))
        cost = method.footprint(subject.ratio)
        return self._merged_size(subject.ratio, (cost.parameters, cost.macs))

    def _merged_size(self, ratio: float, size: tuple[int, int]) -> tuple[int, int]:
        """What is left of a model's parameters and multiply-accumulates once its adapters are merged."""
        problem = self.run.method.problem
        if not has_adapters(problem.layout.tensors):  # a method that cuts in depth has levels that no widths come to
            return size
        return size_when_merged(problem.layout, problem.widths(ratio), size)
