"""Semantic segmentation: one class per pixel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.inputs import Inputs
from fedml_dapper.metric import Metric
from fedml_dapper.tasks.contract import Task, described
from fedml_dapper.tasks.cross_entropy import cross_entropy, unknown_class

MEAN_IOU = Metric("mean IoU", "%")
_COLOURS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0))
"""Colours of classes in pictures: those of Okabe and Ito, which colour-blind people can tell apart; they repeat from
the eighth class on."""
_CROP_PADDING = 8
"""Part of the image's side by which crops shift it at most: one eighth."""


class Segmentation(Task):
    """Cross-entropy of logits (B, C, H, W) with masks, int64 (B, H, W), over the pixels that have a class.

    Mean IoU is the mean over classes of intersection over union, each summed over all pixels of all images; classes
    that neither masks nor predictions hold do not count. Both it and pixel accuracy are in percent. Pixels of the
    ``ignore_index`` count nowhere.
    """

    name = "segmentation"
    headline = MEAN_IOU
    panels = ("image", "truth", "prediction")

    def __init__(self, ignore_index: int = 255, augment: bool = True) -> None:
        """Configure the task; with ``augment`` images and masks are flipped and cropped at random in training."""
        self._ignored = ignore_index
        self._augments = augment

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        total = cross_entropy(outputs, targets, reduction="sum", ignored=self._ignored)
        return total / self.weight(targets).clamp(min=1)

    def weight(self, targets: Tensor) -> Tensor:
        return (targets != self._ignored).sum()

    def sums(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return numbers of pixels by class, (C,) each: ``truth``, ``predicted``, and ``hits``, which are both."""
        classes = outputs.shape[1]
        counted = targets != self._ignored
        truth = targets[counted]
        predicted = self.prediction(outputs)[counted]
        by_class = {"truth": truth, "predicted": predicted, "hits": truth[truth == predicted]}
        try:
            return {name: torch.bincount(of, minlength=classes).view(classes) for name, of in by_class.items()}
        except RuntimeError as error:  # a class below 0, or one that makes the count too long
            if strange := unknown_class(targets, classes, self._ignored):
                raise DataError(strange) from error
            raise

    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        hits = sums["hits"]
        unions = sums["truth"] + sums["predicted"] - hits
        seen = unions > 0
        return {
            MEAN_IOU.name: 100 * float((hits[seen] / unions[seen]).mean()),
            "pixel accuracy": 100 * float(hits.sum() / sums["truth"].sum()),
        }

    def prediction(self, outputs: Tensor) -> Tensor:
        """Return the most likely class of each pixel, int64 (B, H, W)."""
        return outputs.argmax(dim=1)

    def augment(self, inputs: Inputs, targets: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """Mirror half of the images, and shift all by up to an eighth of their side; new pixels are ignored."""
        if not self._augments:
            return inputs, targets
        if not isinstance(inputs, Tensor):
            raise ConfigError(
                "train_args.task: segmentation flips and crops images, one tensor an input, and these are several; set"
                " train_args.task_arguments.augment to false"
            )
        flipped = torch.rand(len(inputs), generator=generator) < 0.5
        height, width = inputs.shape[-2:]
        reach = max(1, min(height, width) // _CROP_PADDING)
        shifts = torch.randint(-reach, reach + 1, (len(inputs), 2), generator=generator)
        rows = torch.arange(height) + shifts[:, :1]
        columns = torch.arange(width).expand(len(inputs), -1)
        columns = torch.where(flipped[:, None], columns.flip(1), columns) + shifts[:, 1:]
        outside = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None, :]
        sample = torch.arange(len(inputs))[:, None, None].to(inputs.device)
        outside = outside.to(inputs.device)
        rows = rows.clamp(0, height - 1)[:, :, None].to(inputs.device)
        columns = columns.clamp(0, width - 1)[:, None, :].to(inputs.device)
        moved = inputs.movedim(1, -1)[sample, rows, columns].movedim(-1, 1)
        masks = targets[sample, rows, columns].masked_fill(outside, self._ignored)
        return moved.masked_fill(outside[:, None], 0), masks

    def draw(self, inputs: Inputs, targets: Tensor, outputs: Tensor) -> Tensor:
        """Draw image, truth and prediction with one colour per class; pixels without a class are white."""
        if not isinstance(inputs, Tensor):
            raise ConfigError("segmentation draws images, one tensor an input, and these are several")
        images = inputs[:, :3] if inputs.shape[1] >= 3 else inputs[:, :1].expand(-1, 3, -1, -1)
        low = images.amin(dim=(1, 2, 3), keepdim=True)
        high = images.amax(dim=(1, 2, 3), keepdim=True)
        shown = ((images - low) / (high - low).clamp(min=1e-6) * 255).byte().permute(0, 2, 3, 1).cpu()
        masks = [self._coloured(mask.cpu()) for mask in (targets, self.prediction(outputs))]
        return torch.stack([shown, *masks], dim=1)

    def _coloured(self, mask: Tensor) -> Tensor:
        """Colour classes (B, H, W), to uint8 (B, H, W, 3)."""
        colours = torch.tensor(_COLOURS, dtype=torch.uint8)[mask % len(_COLOURS)]
        return colours.masked_fill((mask == self._ignored)[..., None], 255)

    def misfit(self, outputs: Tensor, num_classes: int) -> str:
        if num_classes < 2:
            return f"the data state {num_classes} classes, and masks need 2 or more; list them in data_args.classes"
        if outputs.ndim != 4 or outputs.shape[1] != num_classes:
            given = ", ".join(("B", *map(str, outputs.shape[1:])))
            return f"it gives ({given}), and (B, {num_classes}, H, W) is expected for masks of {num_classes} classes"
        return ""

    def misfit_of_targets(self, targets: Tensor, num_classes: int) -> str:
        wanted = "a mask is int64 of shape (B, H, W), a class a pixel"
        if targets.ndim == 4 and targets.shape[1] == 1:
            return f"{described(targets)}, and {wanted}; mask.squeeze(0).long() makes one"
        if targets.ndim != 3:
            return f"{described(targets)}, and {wanted}"
        if targets.dtype != torch.int64:
            return f"{described(targets)}, and {wanted}; mask.long() makes one of whole numbers"
        strange = targets[(targets != self._ignored) & ((targets < 0) | (targets >= num_classes))]
        if len(strange):
            return (
                f"masks with the class {int(strange[0])}, and there are {num_classes} classes, which count from 0"
                f" (data_args.classes says which; pixels of train_args.task_arguments.ignore_index,"
                f" {self._ignored}, have none)"
            )
        return ""
