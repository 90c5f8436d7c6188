"""The critic: what the rest of a rollout is expected to bring, told from each state on the way.

A critic never moves the policy: it has a trunk of its own (`model`), or reads the policy's states without passing a
gradient back (`head`), and in both cases an optimizer of its own. So the values can be trained for some steps before
the policy moves, and a wrong value costs the policy noise and nothing else.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whippletree.errors import PolicyError
from whippletree.policy.base import CriticKind

FILE = "critic.pt"


class Critic(nn.Module):
    """V(state), one number; 0 for every state at the beginning."""

    def __init__(self, policy: PreTrainedModel, kind: CriticKind, *, lr: float) -> None:
        super().__init__()
        fixed = {id(parameter): parameter for parameter in policy.parameters() if not parameter.requires_grad}
        trunk = cast(PreTrainedModel, copy.deepcopy(policy.base_model, fixed)) if kind == "model" else None
        self.trunk: PreTrainedModel | None = trunk
        """Has weights of its own for what the policy trains; what is fixed is there once."""
        self.head = nn.Linear(int(policy.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.optimizer = torch.optim.AdamW(self._trained().values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.eval()

    def values(self, states_ND: Tensor) -> Tensor:
        """Of the trunk's states, or of the policy's where the critic has no trunk; shape (N,)."""
        return self.head(states_ND if self.trunk is not None else states_ND.detach()).squeeze(-1)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def save(self, path: Path) -> None:
        weights = {name: parameter.detach() for name, parameter in self._trained().items()}
        torch.save({"weights": weights, "optimizer": self.optimizer.state_dict()}, path / FILE)

    def load(self, path: Path) -> None:
        """Raises PolicyError where the directory has no critic of this kind."""
        try:
            state: dict[str, Any] = torch.load(path / FILE, weights_only=True)
            fixed = {name: own for name, own in self.state_dict().items() if name not in self._trained()}
            self.load_state_dict(fixed | state["weights"])
        except FileNotFoundError:
            raise PolicyError(
                f"'{path}' holds a policy in training, but no {FILE}: it was trained without a critic. "
                "Start a new run from it with policy.model instead of resuming"
            ) from None
        except RuntimeError as error:
            raise PolicyError(f"the critic in '{path}' is of another kind or size: {error}") from error
        self.optimizer.load_state_dict(state["optimizer"])
