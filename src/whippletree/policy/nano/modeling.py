"""Nano's architecture: a Llama whose token embeddings also carry the two tokens before.

A transformer of a million parameters learns to copy only late, because copying takes two layers to meet: one that tells
each position which token came before it, one that looks for positions whose predecessor is the current token. Adding
the (projected) embeddings of the two preceding tokens to each position gives the first of them for free, and copying,
which nearly all tool use by a small model is, forms within a hundred steps.

The class is registered with `AutoConfig` and `AutoModelForCausalLM`; nothing else in the package knows that it is
special.
"""

# pyright: reportUnknownMemberType=false
# transformers is typed in part only.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

NUM_SHIFTS = 2


class NanoConfig(LlamaConfig):
    model_type = "whippletree_nano"


class NanoModel(LlamaModel):
    config_class = NanoConfig
    _supports_flex_attn = False  # a sequence that holds a tree does not tell which tokens came before

    def __init__(self, config: NanoConfig) -> None:
        super().__init__(config)
        self.shifts = nn.ModuleList(
            nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in range(NUM_SHIFTS)
        )
        self.post_init()

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, n, D) of input_ids (B, n).

        With a cache, the ids of earlier tokens are kept in it as one more layer of width one.
        """
        if inputs_embeds is not None:
            raise ValueError("nano needs input_ids: embeddings do not tell which tokens came before")
        if use_cache and cache is None:
            cache = DynamicCache()
        embedded_BnD = self.embed_tokens(input_ids)
        before_Bn2 = self._ids_before(input_ids, attention_mask, position_ids, cache)
        for shift, project in enumerate(self.shifts):
            ids_Bn = before_Bn2[..., shift]
            known = (ids_Bn >= 0).unsqueeze(-1)
            embedded_BnD = embedded_BnD + project(self.embed_tokens(ids_Bn.clamp(min=0))) * known
        return super().forward(
            inputs_embeds=embedded_BnD,
            attention_mask=attention_mask,
            position_ids=position_ids,  # pyright: ignore[reportArgumentType]  (a Tensor is never a LongTensor to pyright)
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )

    def _ids_before(
        self, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """The ids one and two places before each token, (B, n, 2); -1 where there is none."""
        (num_rows, width), device = input_ids.shape, input_ids.device
        history = input_ids if cache is None else self._remember(input_ids, cache)
        start = torch.zeros(num_rows, 1, dtype=torch.long, device=device)
        if attention_mask is not None:  # where padding on the left ends: at the first place that the last token sees
            seen = attention_mask if attention_mask.dim() == 2 else attention_mask[:, 0, -1]
            start = seen.long().argmax(1, keepdim=True)
        if position_ids is None or cache is None:
            places = torch.arange(history.shape[1] - width, history.shape[1], device=device).expand(num_rows, -1)
        else:
            places = position_ids.expand(num_rows, -1) + start
        wanted = places[:, :, None] - torch.arange(1, NUM_SHIFTS + 1, device=device)
        index = wanted.clamp(min=0, max=history.shape[1] - 1)
        ids = history.gather(1, index.reshape(num_rows, -1)).reshape(index.shape)
        return ids.masked_fill(wanted < start[:, :, None], -1)

    def _remember(self, input_ids: Tensor, cache: Cache) -> Tensor:
        """All ids so far, (B, reach), those given included."""
        layer = self.config.num_hidden_layers
        assert layer is not None
        if len(cache.layers) == layer:
            cache.layers.append(DynamicLayer())
        as_layer = input_ids[:, None, :, None].to(torch.float32)  # exact up to 2 ** 24
        seen, _ = cache.update(as_layer, as_layer, layer)
        return seen[:, 0, :, 0].round().long()


class NanoForCausalLM(LlamaForCausalLM):
    config_class = NanoConfig
    _supports_flex_attn = False

    def __init__(self, config: NanoConfig) -> None:
        super().__init__(config)
        self.model = NanoModel(config)
        self.post_init()


AutoConfig.register(NanoConfig.model_type, NanoConfig)
AutoModelForCausalLM.register(NanoConfig, NanoForCausalLM)
