"""The weights of a causal LM on the disk, and how a policy keeps them: whole here, as adapters in `lora.py`.

Invariant: what a keeper has saved it takes back, into a model opened in the same way, bit by bit.
"""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part only.

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import whippletree.policy.nano.modeling  # noqa: F401  # pyright: ignore[reportUnusedImport]  (registers nano)
from whippletree.errors import PolicyError
from whippletree.policy.slots import output_logits

NANO = "nano"
NANO_WEIGHTS = Path(str(resources.files("whippletree.policy.nano") / "weights"))


class Keeper(Protocol):
    """How the trained weights of a model are saved and taken back."""

    def save(self, model: PreTrainedModel, path: Path) -> None: ...

    def take(self, model: PreTrainedModel, path: Path) -> None:
        """The saved weights into `model`, which stays as it is where PolicyError is raised: those of another model."""
        ...

    def open(self, path: Path | str) -> PreTrainedModel:
        """Another model, whose parameters have the names of this one's."""
        ...


class Whole:
    """All of them."""

    def save(self, model: PreTrainedModel, path: Path) -> None:
        model.save_pretrained(path)

    def take(self, model: PreTrainedModel, path: Path) -> None:
        loaded, own = load_model(path).state_dict(), model.state_dict()
        shapes = [{(name, tuple(tensor.shape)) for name, tensor in weights.items()} for weights in (own, loaded)]
        if differing := sorted(shapes[0] ^ shapes[1]):
            raise PolicyError(
                f"the weights in '{path}' are of another architecture: {len(differing)} names and shapes differ, "
                f"the first is {differing[0]}; load what was saved from the same model"
            )
        model.load_state_dict(loaded)

    def open(self, path: Path | str) -> PreTrainedModel:
        return load_model(path)


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of all parameters: equal exactly where the weights are."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def load_model(path: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal LM from a directory or a hub name, or `nano`; raises PolicyError where there is none."""
    place = NANO_WEIGHTS if path == NANO else path
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"cannot load a model from '{path}': {error}. Expected 'nano', a directory written by save_pretrained, "
            "or the name of a Hugging Face model"
        ) from error
    with torch.no_grad():
        ids_1T = torch.arange(min(8, int(model.config.vocab_size)))[None]
        expected: Tensor = model(input_ids=ids_1T).logits.float()
        found = output_logits(model, model.base_model(input_ids=ids_1T).last_hidden_state)
    if not torch.allclose(expected, found, rtol=1e-3, atol=1e-3):
        raise PolicyError(
            f"the model '{path}' changes its logits after the output embedding (by a scale or a soft cap), "
            "which sampling and training here would leave out; choose a model that does not"
        )
    return model
