import numpy as np
import pytest
import torch
from tiny import CONTEXT, nano
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from whippletree.policy.nano.modeling import NanoConfig, NanoForCausalLM
from whippletree.policy.slots import Job, SlotDecoder

PROMPTS = [np.random.default_rng(length).integers(10, 200, length, dtype=np.int64) for length in (3, 11, 1, 24, 2)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return nano().eval()


def left_padded():
    """Ids and mask, (B, T); the padding is a token like any other, so that only the mask tells it apart."""
    width = max(map(len, PROMPTS))
    ids, mask = torch.full((len(PROMPTS), width), 7), torch.zeros(len(PROMPTS), width, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def test_the_auto_classes_know_what_was_saved(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), NanoConfig)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, NanoForCausalLM)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    ids = torch.from_numpy(PROMPTS[3])[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, loaded(input_ids=ids).logits)


@torch.no_grad()
def test_a_position_sees_two_tokens_before_it_without_attention(model):
    ids = torch.from_numpy(PROMPTS[3])[None]
    other = ids.clone()
    other[0, 10] = 150

    def embedded(input_ids):
        entering = []
        hook = model.model.layers[0].register_forward_pre_hook(lambda module, args: entering.append(args[0]))
        model(input_ids=input_ids)
        hook.remove()
        return entering[0]

    changed = (embedded(ids) != embedded(other)).any(-1)[0]
    assert changed.nonzero()[:, 0].tolist() == [10, 11, 12]


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[24], [1] * 24, [5, 1, 1, 10, 7]])
def test_pieces_with_a_cache_equal_the_whole(model, sizes):
    ids = torch.from_numpy(PROMPTS[3])[None]
    whole = model(input_ids=ids).logits
    cache, pieces = DynamicCache(), []
    for piece in torch.split(ids, sizes, dim=1):
        pieces.append(model(input_ids=piece, cache=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_left_padding_changes_nothing(model, use_cache):
    ids, mask = left_padded()
    found = model(input_ids=ids, attention_mask=mask, use_cache=use_cache).logits
    for row, prompt in enumerate(PROMPTS):
        alone = model(input_ids=torch.from_numpy(prompt)[None]).logits[0]
        torch.testing.assert_close(found[row, -len(prompt) :], alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_right_padding_changes_nothing(model):
    whole = torch.from_numpy(PROMPTS[3])[None]
    mask = torch.ones_like(whole)
    mask[:, 15:] = 0
    found = model(input_ids=whole, attention_mask=mask).logits[:, :15]
    torch.testing.assert_close(found, model(input_ids=whole[:, :15]).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_generate_from_padded_prompts_equals_the_slot_decoder(model):
    ids, mask = left_padded()
    generated = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=10, eos_token_id=None, pad_token_id=0
    )
    decoder, found = SlotDecoder(model, num_slots=3, max_context=CONTEXT), {}
    for row, prompt in enumerate(PROMPTS):
        done = lambda sample, row=row: found.update({row: sample.ids.tolist()})  # noqa: E731
        decoder.waiting.append(Job(prompt, 10, 0.0, frozenset(), np.zeros(10, np.float32), done))
    while decoder.step():
        pass
    assert [found[row] for row in range(len(PROMPTS))] == generated[:, ids.shape[1] :].tolist()


def test_embeddings_alone_are_not_enough(model):
    with pytest.raises(ValueError, match="input_ids"):
        model.model(input_ids=torch.zeros(1, 1, dtype=torch.long), inputs_embeds=torch.zeros(1, 1, 32))
