"""Trial of a user's network on images with their channels last in memory, which convolutions are faster with."""

from __future__ import annotations

from torch import Tensor, nn

from fedml_dapper.errors import USER_CODE_ERRORS
from fedml_dapper.inputs import Inputs, channels_last, tensors_of
from fedml_dapper.models.admission import copied
from fedml_dapper.models.passing import called
from fedml_dapper.models.running import in_mode, undisturbed


def takes_channels_last(module: nn.Module, inputs: Inputs, label: str) -> bool:
    """Return whether ``module``, which runs on ``inputs``, does so too where images have their channels last.

    One that counts on the order of axes does not, as ``x.view(len(x), -1)`` after a convolution. True where no inputs
    are images. A copy of the module, called ``label`` in errors, is tried, in training and in evaluation.
    """
    images = channels_last(inputs)
    if all(_are_laid_out_alike(one, other) for one, other in zip(tensors_of(images), tensors_of(inputs), strict=True)):
        return True
    probe = copied(module, label)
    try:
        with undisturbed(inputs):
            for training in (True, False):
                called(in_mode(probe, training), images)
    except USER_CODE_ERRORS:  # it has run on the same values in another layout
        return False
    return True


def _are_laid_out_alike(one: Tensor, other: Tensor) -> bool:
    return one.stride() == other.stride()
