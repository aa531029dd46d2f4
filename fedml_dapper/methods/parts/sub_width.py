"""A narrower network inside a model, run in place and trained with it (FjORD's ordered dropout, slimmable networks)."""

from __future__ import annotations

from torch import Tensor, nn

from fedml_dapper.inputs import Inputs
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import ChannelLayout, PruningPlan, slim_model
from fedml_dapper.pruning.slim import KeptIndices, slim_tensor


class SubWidth:
    """The sub-network of ``model`` that ``plan`` leaves; its weights are cut out of the model's at every call.

    So gradients reach the model's own parameters: kept coordinates get what the sub-network gives them, the others
    zero. ``layout`` is the model's; where the model is slim itself, ``slim_layout`` gives it, and the plan counts the
    model's own channels. Raises :class:`ProtocolError` for a plan that does not fit the layout.

    Only parameters are the model's. Buffers are copies, made with this object. So BatchNorm, which normalises by the
    batch in training, tracks the statistics of this width here and leaves the model's alone; in evaluation it
    normalises by those tracked here.
    """

    def __init__(self, model: Backbone, layout: ChannelLayout, plan: PruningPlan) -> None:
        plan.check(layout)
        self._model = model
        self._layout = layout
        self._kept = KeptIndices(plan)
        self._network = slim_model(model, layout, plan)
        self._cut: list[tuple[nn.Module, str, str]] = []
        """Layers of the sub-network, their weights that are cut, and what the model calls these."""
        weights = dict(model.named_parameters(remove_duplicate=False))
        for prefix, layer in self._network.named_modules():
            for key, _ in list(layer.named_parameters(recurse=False, remove_duplicate=False)):
                name = f"{prefix}.{key}" if prefix else key
                if self._kept.of(layout.tensors[name]):
                    self._cut.append((layer, key, name))
                else:
                    setattr(layer, key, weights[name])
        self._let_go()

    def __call__(self, inputs: Inputs) -> Tensor:
        """The sub-network's outputs, e.g. logits of shape (B, C)."""
        outputs: Tensor = self.network()(inputs)
        self._let_go()
        return outputs

    def network(self) -> Backbone:
        """The sub-network, with the weights that the model has now and its layers' modes; good until they change."""
        for own, theirs in zip(self._network.modules(), self._model.modules(), strict=True):
            own.training = theirs.training
        weights = dict(self._model.named_parameters(remove_duplicate=False))
        for layer, key, name in self._cut:
            # past nn.Module, which takes nothing but parameters under their names; these are parts of some
            layer._parameters[key] = slim_tensor(weights[name], self._layout.tensors[name], self._kept)  # type: ignore[assignment]
        return self._network

    def _let_go(self) -> None:
        """Drop what was cut out of the model's weights: autograd holds what it needs of it."""
        for layer, key, _ in self._cut:
            layer._parameters[key] = None
