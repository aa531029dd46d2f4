"""Export of a finished run's model to a folder: files, each read again and measured, a sidecar and a model card."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedml_dapper import __version__
from fedml_dapper.config import short_name
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.export.card import CARD_NAME, Card, FileFigures
from fedml_dapper.export.deployed import Deployed
from fedml_dapper.export.for_peft import FOLDER_NAME, write_for_peft
from fedml_dapper.export.formats import FORMATS, Product, Runtime
from fedml_dapper.export.measurement import TestSets, accuracy, largest_difference, milliseconds, sets_of
from fedml_dapper.export.quantisation import INT8, INT8_NAME, calibration_batches, quantise
from fedml_dapper.export.sidecar import SIDECAR_NAME, Port, Sidecar
from fedml_dapper.export.subjects import Subject
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.files.atomic import scratch_folder
from fedml_dapper.inputs import Inputs, tensors_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.adapters import has_adapters, merged
from fedml_dapper.process.provenance import commit, machine
from fedml_dapper.pruning import DENSE
from fedml_dapper.pruning.filled import filled_channels
from fedml_dapper.pruning.footprint import count_macs, count_parameters


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
        _check_finite(subject)
        batches = calibration_batches(self.run, pictures) if self.int8 else []
        with _filled(out) as folder:
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
                dense=self.run.method.model_size(DENSE),
                tested={name: test.num_samples for name, test in sets.for_network.items()},
                without_data=self.run.without_data,
                machine=machine(),
            )
            (folder / SIDECAR_NAME).write_text(card.about.model_dump_json(indent=1) + "\n", encoding="utf-8")
            (folder / CARD_NAME).write_text(card.markdown(), encoding="utf-8")
        return card

    def _written(self, name: str, product: Product, subject: Subject, sets: TestSets, folder: Path) -> FileFigures:
        chosen = FORMATS[name]
        path = folder / chosen.file_name
        chosen.write(product, path)
        try:
            runtime = chosen.read(path)
        except DataError as error:
            raise ConfigError(f"{error}; it was written so: choose another --format") from error
        difference = largest_difference(runtime, subject.model, sets, chosen.file_name)
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
            self._dense[name] = chosen.read(place / chosen.file_name)
            shutil.rmtree(place)
        return [self._dense[name]]

    def _accuracy_of(self, subject: Subject, sets: TestSets) -> dict[str, float]:
        """Accuracy by domain of a model that is not written to a file."""
        deployed = Deployed(subject.model, self.run.origin.preprocessing)
        return accuracy(deployed, self.run.method.problem.task, sets.for_files)

    def _product(self, model: Backbone) -> Product:
        origin = self.run.origin
        task = self.run.method.problem.task
        return Product(
            model=model,
            deployed=Deployed(model, origin.preprocessing),
            origin=origin,
            round=self.run.state.round,
            label=f"the network {model.label}",
            input_names=_names(origin.example) if origin.preprocessing is None else ("pixels",),
            output_name="scores" if task.name == "classification" else "outputs",
            kept=filled_channels(self.run.method.problem.layout, model),
        )

    def _about(self, subject: Subject, product: Product, files: dict[str, str]) -> Sidecar:
        run = self.run
        ports = _ports(product)
        with torch.no_grad():
            outputs = product.deployed(product.example)
        parameters, macs = self._size(subject)
        return Sidecar(
            network=short_name(run.settings.model_args.model),
            files=files,
            input=ports[0] if len(ports) == 1 else ports,
            output=Port(
                name=product.output_name,
                dtype=_kind(outputs),
                shape=(None, *outputs.shape[1:]),
                meaning="a score a class; softmax gives probabilities"
                if product.output_name == "scores"
                else f"what the network gives for task {run.method.problem.task.name}",
            ),
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
            parameters, macs = method.model_size(DENSE)
        else:
            cost = method.footprint(subject.ratio)
            parameters, macs = cost.parameters, cost.macs
        layout = method.problem.layout
        tensors = {name: spec for name, spec in layout.tensors.items() if has_adapters([name])}
        widths = method.problem.widths(subject.ratio)
        adapters = replace(layout, tensors=tensors, products={})
        return parameters - count_parameters(adapters, widths), macs - count_macs(adapters, widths)


def _names(example: Inputs) -> tuple[str, ...]:
    """Names under which a file takes the tensors of inputs like ``example``."""
    if isinstance(example, Tensor):
        return ("inputs",)
    return tuple(example) if isinstance(example, dict) else tuple(f"inputs_{place}" for place in range(len(example)))


def _ports(product: Product) -> tuple[Port, ...]:
    """Inputs of a file, in order."""
    meaning = _meaning_of_input(product)
    return tuple(
        Port(name=name, dtype=_kind(part), shape=(None, *part.shape[1:]), meaning=meaning)
        for name, part in zip(product.input_names, tensors_of(product.example), strict=True)
    )


def _meaning_of_input(product: Product) -> str:
    preprocessing = product.origin.preprocessing
    if preprocessing is None:
        return "what the data set gives"
    side = preprocessing.input_size
    return (
        "pictures in RGB, 0 to 255, upright as EXIF says (16 bits divided by 257, what is transparent made white),"
        f" resized to {side} x {side} whatever their proportions (bilinear, antialiased); normalisation is inside"
    )


def _check_finite(subject: Subject) -> None:
    """Check that the model's numbers are finite.

    Raises:
        ConfigError: They are not, so the model is useless.
    """
    not_finite = [name for name, tensor in subject.model.state_dict().items() if not bool(tensor.isfinite().all())]
    if not_finite:
        raise ConfigError(
            f"{subject.whose} holds numbers that are not finite (NaN or infinite) in {len(not_finite)} tensors,"
            f" `{not_finite[0]}` first: its training went astray; look for such values in the data, lower"
            " train_args.learning_rate, or set train_args.max_grad_norm, and train again"
        )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextmanager
def _filled(out: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes ``out`` when the block ends and is removed when it fails."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already and not empty; choose another folder by -o")
    if not out.name or out.name == "..":  # a folder that is replaced, with whoever stands in it
        raise ConfigError(f"{out} is no name that the new folder could have; name one by -o")
    place = next(folder for folder in out.absolute().parents if folder.is_dir())
    try:
        with scratch_folder(place) as scratch:
            filled = scratch / out.name
            filled.mkdir()
            with _without_its_place(filled):
                yield filled
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.exists():
                out.rmdir()
            filled.rename(out)
    except OSError as error:
        raise DataError(
            f"cannot write {out.absolute()}: {error.strerror or error}; mend that, or choose another folder"
        ) from error


@contextmanager
def _without_its_place(scratch: Path) -> Iterator[None]:
    """Leave the folder ``scratch``, which is gone when errors are read, out of the paths in our errors."""
    try:
        yield
    except DapperError as error:
        if str(scratch) not in str(error):
            raise
        raise type(error)(str(error).replace(f"{scratch}/", "")) from error
