import copy
import sys
from functools import partial

import numpy as np
import pytest
import torch
from contract import PolicyContract, asynchronous, group_of, learn, sample_of, tokens
from tiny import CONTEXT, MODELS, TOKENIZER, closed_at_the_end, llama, nano, policy_options

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.chat.compact import CompactRenderer
from whippletree.errors import ConfigError, PolicyError
from whippletree.policy.local import LocalPolicy
from whippletree.policy.lora import WEIGHTS, Lora, add_adapters, open_model
from whippletree.policy.packed import hidden_states
from whippletree.trajectory.packing import micro_batches

SAMPLES = [sample_of(9), *group_of(40, 9, 20, 3), sample_of(30)]


def lora_policy(kind="nano", lora=None, **options):
    torch.manual_seed(0)
    model = MODELS[kind]()
    keeper = add_adapters(model, kind, lora or Lora(rank=4, alpha=8))
    return LocalPolicy(model, CompactRenderer(TOKENIZER), keeper=keeper, **policy_options(options))


def names(policy):
    return [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]


class TestAdapters(PolicyContract):
    @pytest.fixture(params=["nano", "llama", "gpt2"])
    def make(self, request):
        with closed_at_the_end(partial(lora_policy, request.param)) as make:
            yield make


# ---- what learns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "per_layer", "more"), [("nano", 7, 2), ("llama", 7, 0), ("gpt2", 4, 0)])
def test_every_linear_module_but_the_output_has_an_adapter_and_nothing_else_learns(kind, per_layer, more):
    policy = lora_policy(kind)
    assert len(names(policy)) == 2 * (2 * per_layer + more)
    assert all("lora_" in name for name in names(policy))
    assert sum(map(len, (group["params"] for group in policy.optimizer.param_groups))) == len(names(policy))


def test_targets_can_be_named():
    found = names(lora_policy(lora=Lora(targets=("q_proj", "shifts.1"))))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in found} == {"q_proj", "1"}
    with pytest.raises(ConfigError, match=r"'query' matches no linear module of 'llama'; .* in down_proj, .*v_proj"):
        lora_policy("llama", Lora(targets=("q_proj", "query")))
    with pytest.raises(ConfigError, match="'embed_tokens' matches no linear module"):
        lora_policy("nano", Lora(targets=("embed_tokens",)))


@asynchronous
async def test_new_adapters_change_nothing_and_a_step_moves_them_alone():
    whole, policy = LocalPolicy(model_of("nano"), CompactRenderer(TOKENIZER), max_context=CONTEXT), lora_policy()
    np.testing.assert_array_equal(*[(await each.logprobs([tokens(30)]))[0] for each in (whole, policy)])
    fixed = {name: p.clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
    before = policy.fingerprint()
    await learn(policy, SAMPLES)
    assert policy.fingerprint() != before
    after = dict(policy.model.named_parameters())
    assert all(torch.equal(after[name], p) for name, p in fixed.items())
    for each in (whole, policy):
        await each.close()


def model_of(kind):
    torch.manual_seed(0)
    return MODELS[kind]()


@pytest.mark.parametrize("make", [nano, llama])
def test_the_gradient_of_the_adapters_is_that_of_the_merged_weights(make):
    torch.manual_seed(1)
    model, scale = make().double(), 2.0
    merged = copy.deepcopy(model)
    add_adapters(model, "it", Lora(rank=3, alpha=3 * scale))
    model.double()
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    for name, layer in layers.items():
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
        update = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        merged.get_submodule(name).weight.data += scale * update.detach()
    (pack,) = micro_batches(SAMPLES[1:4], 1000)
    outs = [hidden_states(each, SAMPLES[1:4], pack) for each in (model, merged)]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-10, atol=1e-10)
    weigh = torch.randn(outs[0].shape, dtype=torch.float64)
    for out in outs:
        (out * weigh).sum().backward()
    for name, layer in layers.items():
        whole = merged.get_submodule(name).weight.grad
        low, high = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        torch.testing.assert_close(high.grad, scale * whole @ low.T, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(low.grad, scale * high.T @ whole, rtol=1e-9, atol=1e-9)


@asynchronous
async def test_dropout_is_the_updates_alone_and_the_same_for_the_same_version():
    found = []
    for dropout in (0.0, 0.5, 0.5):
        policy = lora_policy(lora=Lora(rank=4, dropout=dropout))
        await learn(policy, SAMPLES)  # adapters that change something
        scored = [await policy.score(SAMPLES, "policy") for _ in range(2)]
        np.testing.assert_equal(*scored)
        await policy.forward_backward(SAMPLES, negative_log_likelihood)
        found.append((await policy.gradient_sketch(16, seed=0), await policy.publish()))
        await policy.close()
    assert not np.allclose(found[0][0], found[1][0])
    np.testing.assert_equal(*found[1:])


# ---- beside the policy ------------------------------------------------------------------------------------------


@asynchronous
async def test_a_reference_is_the_model_without_adapters_and_costs_no_second_one(tmp_path):
    torch.manual_seed(0)
    nano().save_pretrained(tmp_path / "base")
    policy = lora_policy()
    policy.keep_reference()
    assert len(policy.reference._pairs) == len(names(policy))
    before = await policy.score(SAMPLES, "policy")
    await learn(policy, SAMPLES)
    np.testing.assert_equal(await policy.score(SAMPLES, "reference"), before)
    assert not np.allclose((await policy.score(SAMPLES, "policy"))[0], before[0], atol=1e-3)
    policy.keep_reference(tmp_path / "base")
    assert len(policy.reference._pairs) == len(names(policy))
    np.testing.assert_equal(await policy.score(SAMPLES, "reference"), before)
    torch.manual_seed(7)
    other = nano()
    other.save_pretrained(tmp_path / "other")
    policy.keep_reference(tmp_path / "other")
    whole = LocalPolicy(other, CompactRenderer(TOKENIZER), max_context=CONTEXT)
    for found, expected in zip(
        await policy.score(SAMPLES, "reference"), await whole.score(SAMPLES, "policy"), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for each in (policy, whole):
        await each.close()


@pytest.mark.parametrize("kind", ["model", "head"])
@asynchronous
async def test_a_critic_learns_beside_adapters_and_is_kept(kind, tmp_path):
    policy, restored = lora_policy(), lora_policy()
    for each in (policy, restored):
        each.add_critic(kind, lr=1e-2)
    before, first = policy.fingerprint(), await value_error(policy)
    fixed = {id(p) for p in policy.model.parameters() if not p.requires_grad}
    assert kind == "head" or fixed & {id(p) for p in policy.critic.parameters()}
    for _ in range(3):
        await policy.forward_backward(SAMPLES, lambda batch: (((batch.values_N - 1) ** 2).sum(), {}))
        assert (await policy.optim_step(lr=1e-2, max_grad_norm=1.0))["critic_grad_norm"] > 0
    assert await value_error(policy) < first
    assert policy.fingerprint() == before
    policy.save(tmp_path)
    restored.load(tmp_path)
    np.testing.assert_equal(*[await each.score(SAMPLES, "critic") for each in (policy, restored)])
    for each in (policy, restored):
        await each.close()


async def value_error(policy):
    values = await policy.score(SAMPLES, "critic")
    return sum(((found - 1) ** 2)[s.weights > 0].sum() for found, s in zip(values, SAMPLES, strict=True))


# ---- keeping ----------------------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path):
    """A model on the disk that has no adapters."""
    torch.manual_seed(5)
    llama().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


async def trained(base, path, lora=None):
    model, keeper = open_model(base, lora or Lora(rank=2))
    policy = LocalPolicy(model, CompactRenderer(TOKENIZER), max_context=CONTEXT, keeper=keeper)
    await learn(policy, SAMPLES)
    policy.save(path)
    await policy.close()
    return policy.fingerprint()


@asynchronous
async def test_a_checkpoint_is_small_and_opens_by_its_path(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = await trained(base.relative_to(tmp_path), tmp_path / "saved")
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    assert (tmp_path / "saved" / WEIGHTS).stat().st_size < (base / "model.safetensors").stat().st_size
    monkeypatch.chdir("/")
    for lora in (None, Lora(rank=2)):
        model, keeper = open_model(tmp_path / "saved", lora)
        policy = LocalPolicy(model, CompactRenderer(TOKENIZER), max_context=CONTEXT, keeper=keeper)
        assert policy.fingerprint() == saved
        await policy.close()
    with pytest.raises(PolicyError, match=r"have rank=2 .* but policy\.lora is rank=8 .*; leave it out"):
        open_model(tmp_path / "saved", Lora(rank=8))


@asynchronous
async def test_a_base_that_is_missing_or_another_is_told(base, tmp_path):
    await trained(base, tmp_path / "saved")
    whole = lora_policy("llama")
    with pytest.raises(PolicyError, match="those of 'llama' have"):
        whole.load(tmp_path / "saved")
    await whole.close()
    base.rename(tmp_path / "moved")
    with pytest.raises(PolicyError, match=r"adapters of the model in '.*base', which is not there"):
        open_model(tmp_path / "saved", None)
    torch.manual_seed(6)
    llama().save_pretrained(base)
    with pytest.raises(PolicyError, match="put back the model of these adapters"):
        open_model(tmp_path / "saved", None)


@asynchronous
async def test_whole_weights_are_no_adapters(base):
    policy = lora_policy()
    with pytest.raises(PolicyError, match="holds no adapters"):
        policy.load(base)
    await policy.close()


def test_a_missing_package_is_told(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs the package peft.*whippletree\[lora\]"):
        open_model(base, Lora())
