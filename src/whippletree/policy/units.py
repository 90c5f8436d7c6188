"""Hidden units by what they are active on, so that a named term of a loss may change those alone (CAPO).

Known of the method (arXiv 2608.29641, by its notes): on successful trajectories the positive activations of the MLP's
up projections are summed up for each kind of token, the units with the largest sums are a kind's own, and the gradient
of its loss passes through their rows of the up projection and columns of the down projection; where kinds share a unit
it gets the sum, and everything else stands still. Inferred here: the activations are those of the state that predicts
a token, the share is taken within each layer, since layers differ in scale, and gate projections stand still.

Invariant: until the units of all names are chosen no named term changes anything; from then on they never change.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whippletree.errors import PolicyError
from whippletree.types import Sample

FILE = "units.pt"


class Units:
    """Those of `model` for each of `names`: a share of every layer, chosen once `tokens` of each name were seen."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str], *, share: float, tokens: int) -> None:
        self.share, self.tokens = share, tokens
        self.layers = _layers(model)
        widths = [up.out_features for up, _ in self.layers]
        self.sums = {name: [torch.zeros(width, dtype=torch.float64) for width in widths] for name in names}
        self.seen = dict.fromkeys(names, 0)
        self.masks: dict[str, list[Tensor]] = {}
        """Per name and layer, (units,); empty until they are chosen."""

    def probe(self, model: PreTrainedModel, samples: Sequence[Sample]) -> dict[str, float]:
        """Take in the trained tokens that the column of a name marks, until enough were seen; see `Policy`."""
        for sample in samples if not self.masks else ():
            trained = sample.weights[1:] > 0
            before = {
                name: torch.from_numpy(trained & (sample.columns[name][1:] > 0)).nonzero()[:, 0] for name in self.seen
            }
            with torch.no_grad(), self._summing(before):
                model.base_model(input_ids=torch.from_numpy(sample.ids)[None].to(model.device), use_cache=False)
            for name, places in before.items():
                self.seen[name] += len(places)
        self._choose()
        return self._statistics()

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        """Add the gradient of each term: of one that has units through these alone, of another as always."""
        weights = [layer.weight for pair in self.layers for layer in pair]
        left = [name for name in terms if name not in self.seen or self.masks]
        for name in left:
            more = name != left[-1]
            if name not in self.seen:
                terms[name].backward(retain_graph=more)
                continue
            gradients = iter(torch.autograd.grad(terms[name], weights, retain_graph=more))
            for (up, down), mask in zip(self.layers, self.masks[name], strict=True):
                _add(up.weight, next(gradients) * mask[:, None])
                _add(down.weight, next(gradients) * mask)

    def _statistics(self) -> dict[str, float]:
        layers = zip(*self.masks.values(), strict=True)
        stacked = [torch.stack(masks) for masks in layers] or [torch.zeros(1, 1)]
        some, every = (torch.cat([f(masks, 0) for masks in stacked]).float().mean() for f in (torch.any, torch.all))
        return {"units/chosen": some.item(), "units/shared": every.item()}

    def save(self, path: Path) -> None:
        torch.save({"sums": self.sums, "seen": self.seen}, path / FILE)

    def load(self, path: Path) -> None:
        """Raises PolicyError where the directory has none for these names and this model."""
        try:
            state: dict[str, Any] = torch.load(path / FILE, weights_only=True)
        except FileNotFoundError:
            raise PolicyError(
                f"'{path}' holds a policy in training, but no {FILE}: all of it was trained. "
                "Start a new run from it with policy.model instead of resuming"
            ) from None
        shapes = [
            {name: [len(one) for one in layers] for name, layers in of.items()} for of in (self.sums, state["sums"])
        ]
        if shapes[0] != shapes[1]:
            raise PolicyError(f"the units in '{path}' are those of {shapes[1]}, and this policy has {shapes[0]}")
        self.sums, self.seen, self.masks = state["sums"], state["seen"], {}
        self._choose()

    def _choose(self) -> None:
        if not self.masks and min(self.seen.values()) >= self.tokens:
            self.masks = {name: [_top(sums, self.share) for sums in layers] for name, layers in self.sums.items()}

    @contextmanager
    def _summing(self, before: Mapping[str, Tensor]) -> Generator[None]:
        """Add up what the layers put out at the places, those of the states that predict the tokens of each name."""

        def add(number: int, module: nn.Module, given: object, output: Tensor) -> None:
            for name, places in before.items():
                active = output[0, places.to(output.device)].clamp(min=0)
                self.sums[name][number] += active.sum(0, dtype=torch.float64).cpu()

        handles = [up.register_forward_hook(partial(add, number)) for number, (up, _) in enumerate(self.layers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def whole(value: Tensor | Mapping[str, Tensor]) -> Tensor:
    """What a loss minimises, as one number."""
    return value if isinstance(value, Tensor) else sum(value.values(), torch.zeros(()))


def backward(value: Tensor | Mapping[str, Tensor], units: Units | None) -> None:
    """Add the gradient of a loss, each term through its units where it has some."""
    if units is None or isinstance(value, Tensor):
        whole(value).backward()
    else:
        units.backward(value)


def _layers(model: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    """The up and the down projection of each MLP."""
    pairs = [(getattr(module, "up_proj", None), getattr(module, "down_proj", None)) for module in model.modules()]
    found = [(up, down) for up, down in pairs if isinstance(up, nn.Linear) and isinstance(down, nn.Linear)]
    if not found or not all(layer.weight.requires_grad for pair in found for layer in pair):
        raise PolicyError(
            f"a {type(model).__name__} has no hidden units of its own to train (linear up_proj and down_proj, as in "
            "Llama and Qwen, not adapters beside them); set algorithm.neurons = 0 or choose another model"
        )
    return found


def _top(sums: Tensor, share: float) -> Tensor:
    """Of the units with the largest sums; of equal ones the first."""
    mask = torch.zeros(len(sums), dtype=torch.bool)
    mask[torch.argsort(sums, descending=True, stable=True)[: max(1, round(share * len(sums)))]] = True
    return mask


def _add(weight: Tensor, gradient: Tensor) -> None:
    weight.grad = gradient if weight.grad is None else weight.grad + gradient
