"""The trainer's forward pass over a pack: every token of a tree of rows is computed once, with its gradient.

On a GPU, where the model can, the tokens lie flat in one sequence in depth-first order, and `flex_attention` skips what
a token does not see. Elsewhere the tree is computed level by level: each pass takes segments of about one length and
attends to the keys and values of what is above them. Both are differentiable, so that states and gradients equal those
of rows computed one by one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# torch and transformers are typed in part only, and the choice of attention has no public name.

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from whippletree.trajectory.packing import Pack
from whippletree.types import Ids, Sample

KeysAndValues = dict[int, tuple[Tensor, Tensor]]
"""Per layer, each (places, heads, width)."""


def can_pack(model: PreTrainedModel) -> bool:
    """Whether a token depends on those before it through the keys and values of all of them alone.

    A layer with a window or a state (a recurrence, a convolution) needs more than that.
    """
    config = model.config.get_text_config()
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ["full_attention"]
    full = set(kinds) == {"full_attention"} and getattr(config, "sliding_window", None) is None
    return full and not getattr(model, "_is_stateful", False)


def hidden_states(model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    """Last hidden states of the tokens of a pack in its order, (N, D); those of row i are at `pack.places[i]`."""
    return (_flat if takes_block_mask(model) else _by_levels)(model, samples, pack)


def takes_block_mask(model: PreTrainedModel) -> bool:
    """Whether its attention is `flex_attention`, or can be and the model lies on a GPU."""
    if model.config._attn_implementation == "flex_attention":
        return True
    return model.device.type == "cuda" and bool(getattr(model, "_supports_flex_attn", False)) and can_pack(model)


@contextmanager
def recomputing_layers(*models: PreTrainedModel | None) -> Generator[None]:
    """Passes inside keep the states between layers and what later levels see; backward computes the rest again."""
    modules = (module for model in models if model is not None for module in model.modules())
    layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


# ---- flat -----------------------------------------------------------------------------------------------------------


def _flat(model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    device = model.device
    seen_until_N = torch.from_numpy(pack.seen_until).to(device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < seen_until_N[key])

    ids = np.concatenate([samples[segment.row].ids[segment.start : segment.end] for segment in pack.segments])
    positions = np.concatenate([np.arange(segment.start, segment.end) for segment in pack.segments])
    mask = create_block_mask(sees, None, None, len(ids), len(ids), device=device)
    with _attending_by(model, "flex_attention"):
        return model.base_model(
            input_ids=torch.from_numpy(ids).to(device)[None],
            attention_mask=mask,
            position_ids=torch.from_numpy(positions).to(device)[None],
            use_cache=False,
        ).last_hidden_state[0]


@contextmanager
def _attending_by(model: PreTrainedModel, implementation: str) -> Generator[None]:
    """The sampler's masks are for another implementation; layers look theirs up in the configuration at each call."""
    usual = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = usual


# ---- by levels ------------------------------------------------------------------------------------------------------


class PathCache(Cache):
    """Lets one pass see keys and values of earlier ones: those at places_BS, of which padding comes first."""

    def __init__(self, earlier: KeysAndValues, places_BS: Tensor, *, keep: bool) -> None:
        super().__init__(layers=[])
        self.earlier, self.places, self.keep = earlier, places_BS, keep
        self.own: KeysAndValues = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take (B, H, n, D), return what the rows can see, (B, H, S + n, D)."""
        if self.keep:
            self.own[layer_idx] = (key_states.transpose(1, 2).flatten(0, 1), value_states.transpose(1, 2).flatten(0, 1))
        if not self.places.shape[1]:
            return key_states, value_states
        keys, values = self.earlier[layer_idx]
        return self._path(keys, key_states), self._path(values, value_states)

    def _path(self, earlier: Tensor, own: Tensor) -> Tensor:
        above = earlier.index_select(0, self.places.flatten()).unflatten(0, self.places.shape)
        return torch.cat([above.transpose(1, 2), own], 2)

    def taken(self) -> KeysAndValues:
        """What the pass computed, padding included. A layer that is computed again leaves nothing here."""
        self.keep, own = False, self.own
        self.own = {}
        return own

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        return self.places.shape[1]


def _by_levels(model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    deepest = max(segment.level for segment in pack.segments)
    found: list[Tensor] = []
    at, end = np.zeros(pack.num_tokens, dtype=np.int64), 0
    """Where the token at each place of the pack lies among all that passes have computed, padding included."""
    kept: list[KeysAndValues] = []
    for level, passes in groupby(pack.passes(), key=lambda numbers: pack.segments[numbers[0]].level):
        kept = [_joined(kept)]
        for numbers in passes:
            segments = [pack.segments[number] for number in numbers]
            above = [at[pack.paths[number][: segment.start]] for number, segment in zip(numbers, segments, strict=True)]
            ids = [samples[segment.row].ids[segment.start : segment.end] for segment in segments]
            cache = PathCache(kept[0], _padded(above, model.device, left=True), keep=level < deepest)
            hidden_BTD = _pass(model, ids, [len(path) for path in above], cache)
            kept.append(cache.taken())
            for row, segment in enumerate(segments):
                begin = end + row * hidden_BTD.shape[1]
                at[segment.first : segment.first + len(segment)] = np.arange(begin, begin + len(segment))
            end += hidden_BTD.shape[0] * hidden_BTD.shape[1]
            found.append(hidden_BTD.flatten(0, 1))
    return torch.cat(found).index_select(0, torch.from_numpy(at).to(model.device))


def _pass(model: PreTrainedModel, ids: Sequence[Ids], starts: Sequence[int], cache: PathCache) -> Tensor:
    """Hidden states (B, T, D) of segments that begin at these places of their rows, padded on the right."""
    ids_BT, reach = _padded(ids, model.device), cache.places.shape[1]
    if not reach:
        path = cache if cache.keep else None
        return model.base_model(input_ids=ids_BT, cache=path, use_cache=cache.keep).last_hidden_state
    starts_B1 = torch.tensor(starts, device=model.device)[:, None]
    last_B1 = torch.tensor([len(row) - 1 for row in ids], device=model.device)[:, None]
    width = ids_BT.shape[1]
    places_T, places_S = torch.arange(width, device=model.device), torch.arange(reach, device=model.device)
    sees_path_BTS = (places_S >= reach - starts_B1)[:, None].expand(-1, width, -1)
    sees_own_BTT = (places_T[:, None] >= places_T).expand(len(ids), -1, -1)
    return model.base_model(
        input_ids=ids_BT,
        attention_mask=torch.cat([sees_path_BTS, sees_own_BTT], -1)[:, None],
        position_ids=starts_B1 + torch.minimum(places_T, last_B1),  # padding must not run out of positions
        cache=cache,
        use_cache=True,
    ).last_hidden_state


def _joined(parts: Sequence[KeysAndValues]) -> KeysAndValues:
    """All of them one after the other; what a level of leaves left is empty."""
    full = [part for part in parts if part]
    layers = full[0] if full else {}
    return {
        layer: (torch.cat([part[layer][0] for part in full]), torch.cat([part[layer][1] for part in full]))
        for layer in layers
    }


def _padded(rows: Sequence[Ids], device: torch.device, *, left: bool = False) -> Tensor:
    side = "left" if left else "right"
    tensors = [torch.from_numpy(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side=side).to(device)
