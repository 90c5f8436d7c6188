"""Low-rank adapters (Hu et al., 2022): a large model is fixed, and small matrices beside its linear modules learn.

Invariant: a checkpoint holds the adapters in peft's format, and in `base.json` which model they belong to. They are
never loaded beside another one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# peft, torch and transformers are typed in part only.

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from whippletree.errors import ConfigError, PolicyError
from whippletree.policy.weights import NANO, Keeper, Whole, fingerprint, load_model

ALL_LINEAR = "all-linear"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"


class Lora(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(default=16, ge=1, description="Of the adapters; any key of policy.lora trains them alone.")
    alpha: float = Field(default=32.0, gt=0, description="The adapters' part is multiplied by alpha / rank.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of an adapter's inputs left out in the update.")
    targets: str | tuple[str, ...] = Field(
        default=ALL_LINEAR,
        description="all-linear: every linear module but the output; or the names of modules, or how they end.",
    )

    @field_validator("targets")
    @classmethod
    def _all_or_names(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not targets or (isinstance(targets, str) and targets != ALL_LINEAR):
            raise ValueError('expected "all-linear", or a list of module names such as ["q_proj", "v_proj"]')
        return targets


@dataclass(frozen=True, slots=True)
class Adapters:
    """Keeps the adapters of one base model alone."""

    base: str
    """A directory, `nano`, or a name on the hub."""
    digest: str
    """Of the base model's weights."""
    lora: Lora

    def save(self, model: PreTrainedModel, path: Path) -> None:
        peft = _peft()
        path.mkdir(parents=True, exist_ok=True)
        adapters: dict[str, Tensor] = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        save_file({name: tensor.contiguous() for name, tensor in adapters.items()}, path / WEIGHTS, {"format": "pt"})
        _config_of(model).save_pretrained(path)
        told = {
            "model": self.base,
            "digest": self.digest,
            "max_positions": getattr(model.config, "max_position_embeddings", None),
            "lora": self.lora.model_dump(mode="json"),
        }
        (path / BASE).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    def take(self, model: PreTrainedModel, path: Path) -> None:
        told = _told(path)
        if told["digest"] != self.digest:
            raise PolicyError(
                f"'{path}' holds adapters of '{told['model']}' as it was when its weights had the digest "
                f"{told['digest']}; those of '{self.base}' have {self.digest}: put back the model of these adapters"
            )
        _require_same(self.lora, Lora(**told["lora"]), path)
        _peft().set_peft_model_state_dict(model, load_file(path / WEIGHTS))

    def open(self, path: Path | str) -> PreTrainedModel:
        return open_model(path, self.lora)[0]


def open_model(path: Path | str, lora: Lora | None) -> tuple[PreTrainedModel, Keeper]:
    """A model to train: whole, or by adapters, new ones or those of a checkpoint that holds some.

    Raises ConfigError where peft is missing or a target matches nothing, PolicyError where the model that a
    checkpoint's adapters belong to is missing or another.
    """
    if path != NANO and (Path(path) / BASE).exists():
        return _with_saved_adapters(Path(path), lora)
    model = load_model(path)
    if lora is None:
        return model, Whole()
    base = str(Path(path).absolute()) if Path(path).is_dir() else str(path)
    return model, add_adapters(model, base, lora)


def add_adapters(model: PreTrainedModel, base: str, lora: Lora) -> Adapters:
    """Fix the model, known as `base`, and put adapters into it that change nothing yet, the same ones each time."""
    keeper = Adapters(base, fingerprint(model), lora)
    _inject(model, keeper)
    return keeper


def _with_saved_adapters(path: Path, lora: Lora | None) -> tuple[PreTrainedModel, Keeper]:
    told = _told(path)
    saved = Lora(**told["lora"])
    _require_same(lora or saved, saved, path)
    if Path(told["model"]).is_absolute() and not Path(told["model"]).exists():
        raise PolicyError(
            f"'{path}' holds adapters of the model in '{told['model']}', which is not there; put it back, or change "
            f"its place in {path / BASE}"
        )
    model = load_model(told["model"])
    if told["max_positions"] is not None:
        model.config.max_position_embeddings = told["max_positions"]
    keeper = add_adapters(model, told["model"], saved)
    keeper.take(model, path)
    return model, keeper


def _told(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / BASE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"'{path}' holds no adapters ({error}); with policy.lora a run goes on from what it has saved itself"
        ) from None


def _require_same(given: Lora, saved: Lora, path: Path) -> None:
    if given != saved:
        raise PolicyError(f"the adapters in '{path}' have {saved}, but policy.lora is {given}; leave it out")


# ---- peft -------------------------------------------------------------------------------------------------------


def _peft() -> Any:
    try:
        import peft  # it takes a second, which only those who use it should wait
    except ImportError:
        raise ConfigError(
            "policy.lora needs the package peft, which is not installed; run `pip install 'whippletree[lora]'`"
        ) from None
    return peft


def _config_of(model: PreTrainedModel) -> Any:
    return model.peft_config["default"]  # pyright: ignore[reportAttributeAccessIssue]  (peft leaves it there)


def _inject(model: PreTrainedModel, keeper: Adapters) -> None:
    peft, lora = _peft(), keeper.lora
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets if isinstance(lora.targets, str) else _targets(model, keeper),
        base_model_name_or_path=keeper.base,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)  # it is set right, which is what it says
        peft.inject_adapter_in_model(config, model)
    model.eval()


def _targets(model: PreTrainedModel, keeper: Adapters) -> list[str]:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    for target in keeper.lora.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            there = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"policy.lora.targets: '{target}' matches no linear module of '{keeper.base}'; it has those that end "
                f"in {', '.join(there)}"
            )
    return list(keeper.lora.targets)


@contextmanager
def dropping_out(model: nn.Module, seed: int) -> Generator[None]:
    """The adapters' dropout is on inside, from this seed; where there is none, nothing changes."""
    dropouts = [m for name, m in model.named_modules() if ".lora_dropout." in name and isinstance(m, nn.Dropout)]
    with torch.random.fork_rng(devices=[], enabled=bool(dropouts)):
        if dropouts:
            torch.manual_seed(seed)
        for dropout in dropouts:
            dropout.train()
        try:
            yield
        finally:
            for dropout in dropouts:
                dropout.eval()
