"""Knowledge distillation: how far a student's class probabilities are from a teacher's (Hinton et al., 2015)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Distillation loss: T^2 times the batch mean of KL(teacher || student) of class probabilities softened by
    ``temperature`` T.

    Logits of shape (B, C) each; the teacher's get no gradient.
    """
    targets = F.log_softmax(teacher.detach() / temperature, dim=1)
    found = F.log_softmax(student / temperature, dim=1)
    return temperature**2 * F.kl_div(found, targets, reduction="batchmean", log_target=True)
