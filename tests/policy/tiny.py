"""Models with random weights that are small enough to run in milliseconds, and what goes with them."""

import asyncio
from contextlib import contextmanager
from dataclasses import fields

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.policy.local import LocalPolicy
from whippletree.policy.nano.modeling import NanoConfig, NanoForCausalLM
from whippletree.policy.tokens import Learning

torch.set_num_threads(1)  # more only get in each other's way on models of this size

TOKENIZER = train_tokenizer(["a few words"], 280)
VOCAB = TOKENIZER.get_vocab_size()
CONTEXT = 96

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,  # far from uniform, so that mistakes show
    "bos_token_id": None,
    "eos_token_id": 9,
}


def nano() -> PreTrainedModel:
    return NanoForCausalLM(NanoConfig(**SHAPE, num_key_value_heads=4, tie_word_embeddings=True, pad_token_id=0))


def llama() -> PreTrainedModel:
    """With grouped queries: two heads share a key."""
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2))


def qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=1))


def qwen3() -> PreTrainedModel:
    """With norms of queries and keys."""
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8))


def gpt2() -> PreTrainedModel:
    """With learned positions, so that one too many is an error."""
    shape = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
    return GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.3, bos_token_id=None, eos_token_id=9))


MODELS = {make.__name__: make for make in (nano, llama, qwen2, qwen3, gpt2)}


def local_policy(kind: str = "nano", **options) -> LocalPolicy:
    """The same weights for the same kind; fields of Learning are options too."""
    torch.manual_seed(0)
    return LocalPolicy(MODELS[kind](), CompactRenderer(TOKENIZER), **policy_options(options))


def policy_options(options: dict) -> dict:
    """Arguments of LocalPolicy, small ones by default; fields of Learning are put into one."""
    names = {field.name for field in fields(Learning)}
    learning = Learning(**{name: value for name, value in options.items() if name in names})
    others = {name: value for name, value in options.items() if name not in names}
    return {"num_slots": 4, "max_context": CONTEXT, "learning": learning} | others


@contextmanager
def closed_at_the_end(make):
    """`make`, whose policies are closed at the end."""
    opened = []

    def made(**options):
        opened.append(make(**options))
        return opened[-1]

    yield made
    for policy in opened:
        asyncio.run(policy.close())
