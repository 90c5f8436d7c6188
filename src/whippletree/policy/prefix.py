"""The trainer's forward pass: the common prompt of a group's rollouts is computed once, with its gradient.

Rows that begin alike form a family. One pass computes the prefixes, a second the rest of every row against its family's
keys and values; both are differentiable, so that the gradient equals that of the rows computed one by one. What a
prompt of hundreds of tokens and answers of tens cost is then close to what the answers cost.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from whippletree.trajectory.packing import Family
from whippletree.types import Ids, Sample


def hidden_states(model: PreTrainedModel, samples: Sequence[Sample], batch: Sequence[Family]) -> list[Tensor]:
    """Per row of the batch, in the order of its families, the hidden states from its prefix on, (T - prefix, D)."""
    rows = [(number, samples[row].ids[family.prefix :]) for number, family in enumerate(batch) for row in family.rows]
    lengths = [len(ids) for _, ids in rows]
    ids_BT = _padded([ids for _, ids in rows])
    if not batch[0].prefix:
        hidden = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        return [hidden[row, :length] for row, length in enumerate(lengths)]
    prefix_F = torch.tensor([family.prefix for family in batch])
    reach = int(prefix_F.max())
    prefixes_FP = torch.stack(
        [
            torch.nn.functional.pad(
                torch.from_numpy(samples[family.rows[0]].ids[: family.prefix]), (reach - family.prefix, 0)
            )
            for family in batch
        ]
    )
    places_P = torch.arange(reach)
    start_F1 = (reach - prefix_F)[:, None]
    # Padding sees itself, so that no softmax is empty; nothing sees padding.
    sees_FPP = (places_P[:, None] >= places_P) & (places_P >= start_F1[:, :, None]) | torch.eye(reach, dtype=torch.bool)
    cache = DynamicCache()
    model.base_model(
        input_ids=prefixes_FP,
        attention_mask=sees_FPP[:, None],
        position_ids=(places_P - start_F1).clamp(min=0),
        cache=cache,
        use_cache=True,
    )
    number_B = torch.tensor([number for number, _ in rows])
    cache.batch_select_indices(number_B)
    width = ids_BT.shape[1]
    places_T = torch.arange(width)
    sees_prefix_BTP = (places_P >= start_F1)[number_B][:, None].expand(-1, width, -1)
    sees_row_BTT = (places_T[:, None] >= places_T).expand(len(rows), -1, -1)
    hidden = model.base_model(
        input_ids=ids_BT,
        attention_mask=torch.cat([sees_prefix_BTP, sees_row_BTT], -1)[:, None],
        position_ids=prefix_F[number_B][:, None] + places_T,
        cache=cache,
        use_cache=True,
    ).last_hidden_state
    return [hidden[row, :length] for row, length in enumerate(lengths)]


def _padded(rows: Sequence[Ids]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
