"""Against the losses of two other trainers: the same numbers from the same tokens.

`make check-parity` installs them beside `.venv` and runs this; elsewhere it is skipped.
"""

import asyncio

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trees import groups_of, turns

from whippletree.algorithms.advantages import lambda_returns
from whippletree.algorithms.base import Credit
from whippletree.algorithms.grpo import GRPO
from whippletree.algorithms.losses import policy_loss, value_loss
from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.policy.base import TokenBatch
from whippletree.policy.local import LocalPolicy
from whippletree.types import Sample

pytestmark = [pytest.mark.slow, pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
PROMPT, LENGTHS = 5, (7, 4, 6, 1)
WIDTH = max(LENGTHS)
MASK = torch.tensor([[float(t < length) for t in range(WIDTH)] for length in LENGTHS])


def random(seed, low, high):
    return low + (high - low) * torch.rand(len(LENGTHS), WIDTH, generator=torch.Generator().manual_seed(seed))


def by_rollout(mask):
    return mask / mask.sum(1, keepdim=True) / len(mask)


def by_token(mask):
    return mask / mask.sum()


# ---- verl: functions of padded tensors --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verl():
    pytest.importorskip("verl", reason="verl is not installed: `make check-parity` does")
    from verl.trainer.ppo import core_algos

    return core_algos


def batch_of(mask, *, weights, logprobs, sampler, advantages, values=None, before=None, **columns):
    """The trained tokens of padded tensors; `before` are the values before the update."""
    at = mask > 0
    columns |= {} if before is None else {"values": before}
    return TokenBatch(
        logprobs[at], torch.ones_like(logprobs[at]), sampler[at], advantages[at], weights[at],
        None if values is None else values[at], {name: column[at] for name, column in columns.items()},
    )  # fmt: skip


def verl_actor(**changes):
    from verl.workers.config import ActorConfig

    return ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1e9,
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "weigh"), [("seq-mean-token-mean", by_rollout), ("token-mean", by_token)])
@pytest.mark.parametrize("corrected", [False, True])
def test_verl_has_the_same_policy_loss(verl, mode, weigh, corrected):
    old, advantages = random(1, -3, -0.1), random(2, -2, 2)
    ours, theirs = ((old + random(3, -0.5, 0.5) * (not corrected)).requires_grad_() for _ in range(2))
    sampler = old - random(4, -1, 1) if corrected else old
    factor = (old - sampler).exp().clamp(max=2.0) if corrected else None
    expected, _ = verl.compute_policy_loss_vanilla(
        old, theirs, advantages, MASK, loss_agg_mode=mode, config=verl_actor(), rollout_is_weights=factor
    )
    batch = batch_of(MASK, weights=weigh(MASK), logprobs=ours, sampler=sampler, advantages=advantages)
    found, _ = policy_loss(batch, **CLIP, correction=2.0 if corrected else 0.0)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_verl_has_the_same_sequence_loss(verl):
    old, advantages = random(1, -3, -0.1), random(2, -2, 2)[:, :1].expand(-1, WIDTH)
    ours, theirs = ((old + random(3, -0.5, 0.5)).requires_grad_() for _ in range(2))
    expected, _ = verl.compute_policy_loss_gspo(old, theirs, advantages, MASK, config=verl_actor())
    mean = ((ours.detach() - old) * MASK).sum(1, keepdim=True) / MASK.sum(1, keepdim=True)
    batch = batch_of(
        MASK, weights=by_rollout(MASK), logprobs=ours, sampler=old, advantages=advantages,
        log_ratio=mean.expand(-1, WIDTH),
    )  # fmt: skip
    found, _ = policy_loss(batch, **CLIP)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_verl_has_the_same_divergence(verl):
    own, reference = random(1, -3, -0.1), random(2, -3, -0.1)
    zeros = torch.zeros_like(own)
    batch = batch_of(
        MASK, weights=by_token(MASK), logprobs=own, sampler=own, advantages=zeros, reference=reference
    )  # fmt: skip
    found, _ = policy_loss(batch, **CLIP, kl=1.0)
    torch.testing.assert_close(found, (verl.kl_penalty(own, reference, "low_var_kl") * by_token(MASK)).sum())


@pytest.mark.parametrize("clip", [0.2, 1e9])
def test_verl_has_the_same_value_loss(verl, clip):
    values, before, returns = random(1, -1, 1), random(2, -1, 1), random(3, 0, 1)
    expected, _ = verl.compute_value_loss(values, returns, before, MASK, clip)
    zeros = torch.zeros_like(values)
    batch = batch_of(
        MASK, weights=by_token(MASK), logprobs=zeros, sampler=zeros, advantages=zeros, values=values,
        returns=returns, before=before,
    )  # fmt: skip
    torch.testing.assert_close(value_loss(batch, clip=0.0 if clip > 1 else clip)[0], expected)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
def test_verl_has_the_same_returns_where_tool_results_lie_between_turns(verl, gamma, gae_lambda):
    mask = torch.tensor([[1.0, 1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]])
    values, rewards = random(1, -1, 1), torch.zeros_like(mask)
    for row, one in enumerate(mask):
        rewards[row, int(one.nonzero()[-1])] = 1.0
    _, expected = verl.compute_gae_advantage_return(
        rewards, values, mask, torch.tensor(gamma), torch.tensor(gae_lambda)
    )
    for row, one in enumerate(mask > 0):
        arrays = (array[row][one].double().numpy() for array in (rewards, values))
        found = lambda_returns(*arrays, gamma=gamma, gae_lambda=gae_lambda)
        np.testing.assert_allclose(found, expected[row][one].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalise_std", [False, True])
def test_verl_has_the_same_group_advantages_up_to_its_deviation_of_a_sample(verl, normalise_std):
    rewards = [1.0, 0.0, 0.25, 1.0, 0.5]
    groups = groups_of(
        [(f"t{g}", "h", [(r, turns(2)) for r in part]) for g, part in enumerate((rewards[:3], rewards[3:]))]
    )
    scores, index = torch.zeros(5, 2), np.array([0, 0, 0, 1, 1])
    scores[:, -1] = torch.tensor(rewards)
    expected, _ = verl.compute_grpo_outcome_advantage(
        scores, torch.ones(5, 2), index, norm_adv_by_std_in_grpo=normalise_std
    )
    found = [sample.advantages[-1] for sample in GRPO(normalise_std=normalise_std).credit(groups).samples]
    sizes = np.array([3, 3, 3, 2, 2])
    factor = np.sqrt(sizes / (sizes - 1)) if normalise_std else 1.0
    np.testing.assert_allclose(found, expected[:, 0].numpy() * factor, rtol=1e-4)


# ---- TRL: its trainer on the same model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a few words"], 280)


def model_of(tokenizer):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3,
            bos_token_id=None, eos_token_id=9, pad_token_id=0,
        )
    )  # fmt: skip


@pytest.fixture
def trl_trainer(tokenizer, tmp_path):
    pytest.importorskip("trl", reason="trl is not installed: `make check-parity` does")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: `make check-parity` does")
    from trl import GRPOConfig, GRPOTrainer

    path = tmp_path / "model"
    model_of(tokenizer).save_pretrained(path)

    def make(**settings):
        args = GRPOConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=2, use_cpu=True, bf16=False,
            report_to=[],
            model_init_kwargs={"dtype": "float32"}, epsilon=0.2, epsilon_high=0.28, **settings,
        )  # fmt: skip
        words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|end|>", eos_token="<|end|>")
        trainer = GRPOTrainer(
            model=str(path),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=datasets.Dataset.from_list([{"prompt": "a"}]),
            processing_class=words,
        )
        trainer.model.eval()
        return trainer

    return make


async def our_gradient(model, algorithm, ids, sampler, advantages):
    """Loss and gradient by way of a policy; the reference is the model before it is moved by `nudge`."""
    policy = LocalPolicy(model, CompactRenderer(train_tokenizer(["a few words"], 280)), max_context=64)
    algorithm.attach(policy)
    nudge(model)
    total = sum(LENGTHS)
    samples = []
    for sequence, logprobs, advantage in zip(ids, sampler, advantages, strict=True):
        trained = np.arange(len(sequence)) >= PROMPT
        weight = 1 / total if algorithm.weighting == "token" else 1 / (len(ids) * trained.sum())
        samples.append(
            Sample(
                sequence, trained * np.float32(weight), logprobs, trained * np.float32(advantage),
                rollout_id=str(len(samples)),
            )
        )  # fmt: skip
    credit = await algorithm.appraise(policy, Credit(samples, {}))
    statistics = await policy.forward_backward(credit.samples, algorithm.loss(0))
    await policy.close()
    return statistics["loss"], flat_gradient(model)


def nudge(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def flat_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def logprobs_of(model, ids):
    """Of each token after the first, with 0 for the first."""
    with torch.no_grad():
        every = torch.log_softmax(model(torch.from_numpy(ids)[None]).logits[0, :-1], -1)
    return np.concatenate([[0], every.gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()]).astype(np.float32)


def padded(arrays):
    rows = [torch.from_numpy(array[PROMPT:]) for array in arrays]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"loss_type": "grpo"}, {"correction": 0}),
        ({"loss_type": "grpo"}, {"correction": 2.0}),
        ({"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False}, {"correction": 0, "kl": 0.3}),
        ({"loss_type": "bnpo"}, {"correction": 0, "weighting": "token"}),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            {"correction": 0, "weighting": "sequence"},
        ),
    ],
)
def test_trl_has_the_same_loss_and_gradient(trl_trainer, tokenizer, theirs, ours):
    rng = np.random.default_rng(0)
    ids = [rng.integers(10, 200, PROMPT + length) for length in LENGTHS]
    advantages = np.array([1.2, -0.7, 0.4, -1.5], np.float32)
    trainer, start, moved = trl_trainer(**theirs), model_of(tokenizer), model_of(tokenizer)
    nudge(moved)
    nudge(trainer.model)
    own, reference = ([logprobs_of(model, sequence) for sequence in ids] for model in (moved, start))
    sampler = [logprobs - rng.normal(0, 0.5, len(logprobs)).astype(np.float32) for logprobs in own]
    found, gradient = asyncio.run(our_gradient(model_of(tokenizer), GRPO(**ours), ids, sampler, advantages))
    corrected = ours["correction"] > 0
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = corrected
    expected = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.from_numpy(np.array([sequence[:PROMPT] for sequence in ids])),
            "prompt_mask": torch.ones(len(ids), PROMPT, dtype=torch.long),
            "completion_ids": padded(ids),
            "completion_mask": MASK.long(),
            "advantages": torch.from_numpy(advantages),
            "old_per_token_logps": None if corrected else padded(sampler),
            "ref_per_token_logps": padded(reference),
            "importance_sampling_ratio": (padded(own) - padded(sampler)).exp().clamp(max=2.0),
        },
    )
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(gradient, flat_gradient(trainer.model), rtol=1e-3, atol=1e-4)
