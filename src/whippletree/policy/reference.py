"""The reference policy: fixed weights that the trained ones can be compared with.

Only what is trained or differs is kept twice; so a reference beside adapters costs no second model. The model itself is
there once: to score by the reference its weights change places with the policy's, which nobody else may use meanwhile.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from whippletree.errors import PolicyError


class Reference:
    def __init__(self, model: PreTrainedModel, source: PreTrainedModel) -> None:
        """The weights of `source` for `model`; raises PolicyError where it is of another architecture."""
        given = dict(source.named_parameters())
        own = dict(model.named_parameters())
        if differing := [name for name, p in own.items() if name not in given or given[name].shape != p.shape]:
            raise PolicyError(
                f"the reference model differs from the policy in {len(differing)} parameters, the first is "
                f'{differing[0]}; choose one of the same architecture, or reference = "start"'
            )
        self._pairs = [
            (parameter, given[name].detach().clone().to(parameter))
            for name, parameter in own.items()
            if parameter.requires_grad or not torch.equal(parameter, given[name].to(parameter))
        ]

    @contextmanager
    def in_place(self) -> Generator[None]:
        """The model is the reference inside."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for parameter, kept in self._pairs:
                parameter.data, kept.data = kept.data, parameter.data
