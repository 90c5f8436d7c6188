from dataclasses import replace

import numpy as np
import pytest
import torch
from contract import asynchronous, group_of, learn, sample_of, tokens
from tiny import CONTEXT, local_policy

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.errors import PolicyError

KINDS = pytest.mark.parametrize("kind", ["model", "head"])


def with_critic(kind, model="nano", **options):
    """The head says something from the start."""
    policy = local_policy(model, **options)
    policy.add_critic(kind, lr=1e-2)
    torch.manual_seed(1)
    torch.nn.init.normal_(policy.critic.head.weight)
    return policy


def samples():
    return [sample_of(9), *group_of(40, 9, 20, 3), sample_of(30, temperature=0.7), sample_of(4)]


def towards(target):
    """Squared error of the values; the policy's loss is there too, with nothing to say."""
    return lambda batch: (((batch.values_N - target) ** 2).sum(), {})


async def value_error(policy):
    return sum(((found - 1) ** 2)[sample.weights > 0].sum() for found, sample in zip(
        await policy.score(samples(), "critic"), samples(), strict=True))  # fmt: skip


# ---- scores -----------------------------------------------------------------------------------------------------


@asynchronous
async def test_scores_by_the_policy_are_its_logprobs_on_the_trained_tokens():
    policy = local_policy()
    for sample, found in zip(samples(), await policy.score(samples(), "policy"), strict=True):
        (expected,) = await policy.logprobs([sample.ids], sample.temperature)
        np.testing.assert_allclose(found[1:], expected * (sample.weights[1:] > 0), atol=1e-4)
        assert found[0] == 0
    assert await policy.score([], "policy") == []
    await policy.close()


@KINDS
@pytest.mark.parametrize("model", ["nano", "gpt2"])
@asynchronous
async def test_a_value_is_that_of_the_state_before_the_token(kind, model):
    policy = with_critic(kind, model)
    for sample, found in zip(samples(), await policy.score(samples(), "critic"), strict=True):
        trunk = policy.critic.trunk or policy.model.base_model
        with torch.no_grad():
            states = trunk(input_ids=torch.from_numpy(sample.ids)[None]).last_hidden_state[0]
            values = policy.critic.head(states)[:, 0].numpy()
        np.testing.assert_allclose(found[1:], values[:-1] * (sample.weights[1:] > 0), atol=1e-4)
    await policy.close()


@KINDS
@asynchronous
async def test_the_loss_sees_the_values_that_scoring_gives(kind):
    policy, seen = with_critic(kind), []

    def loss(batch):
        seen.extend(zip(batch.columns_N["before"].tolist(), batch.values_N.tolist(), strict=True))
        return negative_log_likelihood(batch)

    before = await policy.score(samples(), "critic")
    given = [replace(s, columns={"before": values}) for s, values in zip(samples(), before, strict=True)]
    await policy.forward_backward(given, loss)
    np.testing.assert_allclose(*np.array(seen).T, atol=1e-5)
    assert len(seen) == sum((sample.weights > 0).sum() for sample in given)
    await policy.close()


@asynchronous
async def test_a_new_critic_expects_nothing():
    policy = local_policy()
    policy.add_critic("model", lr=1e-3)
    assert all((values == 0).all() for values in await policy.score(samples(), "critic"))
    await policy.close()


@asynchronous
async def test_scores_that_nobody_can_give_are_refused_with_advice():
    policy = local_policy()
    with pytest.raises(PolicyError, match=r'no critic.*algorithm\.type = "ppo"'):
        await policy.score(samples(), "critic")
    with pytest.raises(PolicyError, match=r"no reference.*algorithm\.kl"):
        await policy.score(samples(), "reference")
    await policy.close()


@asynchronous
async def test_a_sample_longer_than_the_context_is_refused_by_name():
    policy = local_policy()
    long = replace(sample_of(CONTEXT + 1), rollout_id="train/0/h/t/3")
    for act in (policy.score([long], "policy"), policy.forward_backward([long], negative_log_likelihood)):
        with pytest.raises(PolicyError, match=f"'train/0/h/t/3' has {CONTEXT + 1} tokens, more than .* {CONTEXT}"):
            await act
    await policy.close()


# ---- learning ---------------------------------------------------------------------------------------------------


@KINDS
@asynchronous
async def test_values_are_learned_and_the_policy_does_not_move(kind):
    policy = with_critic(kind)
    before, first = policy.fingerprint(), await value_error(policy)
    for _ in range(5):
        await policy.forward_backward(samples(), towards(1.0))
        norms = await policy.optim_step(lr=1e-2, max_grad_norm=1.0)
        assert norms["critic_grad_norm"] > 0 == norms["grad_norm"] == norms["skipped_update"]
    assert await value_error(policy) < 0.95 * first
    assert policy.fingerprint() == before
    await policy.close()


@KINDS
@asynchronous
async def test_the_policy_learns_the_same_beside_a_critic(kind):
    alone, beside = local_policy(), with_critic(kind)
    for policy in (alone, beside):
        await learn(policy, samples())
    assert alone.fingerprint() == beside.fingerprint()
    for policy in (alone, beside):
        await policy.close()


@KINDS
@asynchronous
async def test_a_loss_that_is_no_number_moves_nothing_and_names_the_rollouts(kind, caplog):
    policy = with_critic(kind, micro_batch_tokens=1)
    before, values = policy.fingerprint(), await policy.score(samples(), "critic")
    poor = replace(sample_of(6), rollout_id="train/7/h/t/2", advantages=np.full(6, np.nan, np.float32))

    def loss(batch):
        return (batch.advantages_N * (batch.logprobs_N + batch.values_N)).sum(), {"tokens": len(batch.weights_N)}

    statistics = await policy.forward_backward([*samples(), poor], loss)
    assert statistics == {"tokens": sum((sample.weights > 0).sum() for sample in samples())}
    assert "update 1 is skipped: the loss over these rollouts is nan: train/7/h/t/2" in caplog.text
    assert (await policy.optim_step(lr=1e-2, max_grad_norm=1.0))["skipped_update"] == 1.0
    assert policy.fingerprint() == before
    np.testing.assert_equal(await policy.score(samples(), "critic"), values)
    await policy.forward_backward(samples(), loss)
    assert (await policy.optim_step(lr=1e-2, max_grad_norm=1.0))["skipped_update"] == 0.0
    assert policy.fingerprint() != before
    await policy.close()


# ---- keeping ----------------------------------------------------------------------------------------------------


@KINDS
@asynchronous
async def test_a_saved_critic_goes_on_bit_by_bit(kind, tmp_path):
    policy, restored = with_critic(kind), local_policy()
    restored.add_critic(kind, lr=1e-2)
    await policy.forward_backward(samples(), towards(1.0))
    await policy.optim_step(lr=1e-2, max_grad_norm=1.0)
    policy.save(tmp_path)
    restored.load(tmp_path)
    for each in (policy, restored):
        await each.forward_backward(samples(), towards(0.5))
        await each.optim_step(lr=1e-2, max_grad_norm=1.0)
    np.testing.assert_equal(*[await each.score(samples(), "critic") for each in (policy, restored)])
    for each in (policy, restored):
        await each.close()


@asynchronous
async def test_a_checkpoint_without_this_critic_is_refused(tmp_path):
    plain, head, model = local_policy(), with_critic("head"), with_critic("model")
    plain.save(tmp_path / "plain")
    head.save(tmp_path / "head")
    with pytest.raises(PolicyError, match="trained without a critic"):
        head.load(tmp_path / "plain")
    with pytest.raises(PolicyError, match="another kind or size"):
        model.load(tmp_path / "head")
    plain.load(tmp_path / "head")  # evaluation needs none
    for each in (plain, head, model):
        await each.close()


@asynchronous
async def test_weights_alone_leave_the_critic(tmp_path):
    policy = with_critic("head")
    policy.save(tmp_path, optimizer=False)
    before = await policy.score(samples(), "critic")
    policy.load(tmp_path)
    np.testing.assert_equal(await policy.score(samples(), "critic"), before)
    await policy.close()


# ---- the reference ----------------------------------------------------------------------------------------------


@asynchronous
async def test_the_reference_stays_what_it_was():
    policy = local_policy()
    policy.keep_reference()
    before = await policy.score(samples(), "policy")
    await learn(policy, samples())
    moved, fingerprint = await policy.score(samples(), "policy"), policy.fingerprint()
    assert not np.allclose(moved[0], before[0], atol=1e-3)
    for _ in range(2):
        np.testing.assert_equal(await policy.score(samples(), "reference"), before)
        assert policy.fingerprint() == fingerprint
        np.testing.assert_equal(await policy.score(samples(), "policy"), moved)
    await policy.close()


@asynchronous
async def test_a_reference_can_be_another_model_of_the_same_architecture(tmp_path):
    policy, other, smaller = local_policy(), local_policy(), local_policy("qwen2")
    await learn(other, samples())
    other.save(tmp_path / "other")
    smaller.save(tmp_path / "smaller")
    policy.keep_reference(tmp_path / "other")
    np.testing.assert_equal(await policy.score(samples(), "reference"), await other.score(samples(), "policy"))
    with pytest.raises(PolicyError, match="reference model differs from the policy"):
        policy.keep_reference(tmp_path / "smaller")
    for each in (policy, other, smaller):
        await each.close()


@asynchronous
async def test_the_reference_shares_what_is_not_trained_and_leaves_when_scoring_fails():
    policy = local_policy()
    policy.model.get_input_embeddings().requires_grad_(False)
    policy.keep_reference()
    assert len(policy.reference._pairs) == len(list(policy.model.parameters())) - 1
    await learn(policy, samples())
    before = policy.fingerprint()
    with pytest.raises(IndexError):
        await policy.score([sample_of(9), replace(sample_of(9), ids=tokens(9) + 10**6)], "reference")
    assert policy.fingerprint() == before
    await policy.close()
