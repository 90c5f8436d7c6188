import asyncio
import json
import random
import re
import shutil
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree import nano
from whippletree.chat.compact import SPECIAL_TOKENS, CompactRenderer
from whippletree.config import PolicySection
from whippletree.errors import ConfigError
from whippletree.harness.designs import PAPER_HELD_OUT, PAPER_TRAINING
from whippletree.policy.weights import load_model
from whippletree.run import open_policy
from whippletree.sandbox import open_sandboxes
from whippletree.tasks.paddock import Paddock, pools

SMALL = nano.NanoRecipe(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    mlp_size=64,
    num_traces=64,
    copy_steps=3,
    epochs=4,
    batch_size=8,
    copies_per_batch=0,
    context_weight=0.0,
    lr=2e-2,
)
QUICK = SMALL.model_copy(update={"num_traces": 8, "copies_per_batch": 2, "epochs": 1})


@pytest.mark.parametrize("word", [*pools.WORDS, *pools.STEMS, *pools.FOLDERS])
def test_a_word_of_the_pools_is_one_token(word, tokenizer):
    (alone,) = tokenizer.encode(word).ids
    assert tokenizer.encode(f"{word} {word}\n{word}").ids.count(alone) == 3


def test_programs_are_one_token(tokenizer):
    for said in (nano.FINAL, "rm", "cp", "mv", "cat", "head", "tail", "grep", "sed"):
        assert len(tokenizer.encode(said).ids) == 1, said


def test_traces_read_back_as_they_were_written(tokenizer):
    for task in Paddock().tasks("train")[:60]:
        for text in (task.instruction, task.gold, *task.files.values()):
            assert tokenizer.decode(tokenizer.encode(text).ids).removeprefix(" ").replace("\n ", "\n") == text


@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_no_trace_is_in_a_held_out_harness(seed, base_share, training_share):
    recipe = nano.NanoRecipe(base_share=base_share, training_share=training_share)
    assert nano.draw_harness(recipe, random.Random(seed)).id not in PAPER_HELD_OUT


def test_harnesses_are_drawn_in_the_shares_of_the_recipe():
    recipe, rng = nano.NanoRecipe(base_share=0.5, training_share=0.3), random.Random(0)
    drawn = [nano.draw_harness(recipe, rng).id for _ in range(2000)]
    others = {name for name in drawn if name not in PAPER_TRAINING and name != nano.BASE}
    assert 0.45 < drawn.count(nano.BASE) / len(drawn) < 0.6
    assert set(PAPER_TRAINING) <= set(drawn)
    assert all(len(re.findall("[12]", name)) == 1 for name in others)


@given(st.integers(0, 2**32), st.integers(200, 1024))
def test_the_copies_can_be_told_from_what_was_before(seed, vocab_size):
    sample = nano.copy_sample(np.random.default_rng(seed), vocab_size)
    ids, trained = sample.ids.tolist(), np.flatnonzero(sample.weights)
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert max(ids) < vocab_size
    assert len(trained)
    before = [set(pairwise(ids[:t])) for t in trained]
    assert all((ids[t - 1], ids[t]) in pairs for t, pairs in zip(trained, before, strict=True))


def make(recipe, kind):
    """The policy's fingerprint, and the losses that were reported on the way."""
    said = []

    async def story():
        sandboxes = open_sandboxes(kind)
        policy = await nano.make(recipe, sandboxes, lambda what, done, of: said.append((what, done, of)))
        await sandboxes.close()
        await policy.close()
        return policy.fingerprint()

    fingerprint = asyncio.run(story())
    losses = {"copying": [], "imitating": []}
    for what, _, _ in said:
        if "loss" in what:
            stage, loss = what.split(", loss ")
            losses[stage].append(float(loss))
    return fingerprint, losses, said


@pytest.fixture(scope="module")
def made(sandbox_kind):
    return make(SMALL, sandbox_kind)


def test_the_recipe_runs_and_its_loss_falls(made):
    _, losses, said = made
    assert [len(losses[stage]) for stage in ("copying", "imitating")] == [3, 32]
    assert np.mean(losses["imitating"][-3:]) < 0.7 * np.mean(losses["imitating"][:3])
    assert said[-1][1:] == (32, 32)
    assert ("traces", 64, 64) in said


def test_what_is_made_is_a_directory_that_holds_its_recipe(tiny):
    recipe = nano.NanoRecipe.model_validate(json.loads((tiny / "recipe.json").read_text()))
    assert recipe.hidden_size == load_model(tiny).config.hidden_size
    assert {path.name for path in tiny.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.skipif(not shutil.which("bwrap"), reason="nano is made in bubblewrap sandboxes")
def test_what_is_saved_is_what_the_recipe_makes_again(tmp_path):
    said = []
    path = tmp_path / "new" / "weights"
    asyncio.run(nano.make_and_save(QUICK, path, said.append))
    assert said[0].startswith("copying, loss ")
    assert said[-1].endswith(": 1/1")
    assert json.loads((path / "recipe.json").read_text()) == QUICK.model_dump()
    policy = open_policy(PolicySection(model=str(path)))
    asyncio.run(policy.close())
    assert policy.fingerprint() == make(QUICK, "process")[0]


def test_a_path_that_cannot_be_written_is_found_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    said = []
    with pytest.raises(OSError, match="file"):
        asyncio.run(nano.make_and_save(SMALL, tmp_path / "file", said.append))
    assert said == []


def test_mistakes_in_a_recipe_are_named():
    with pytest.raises(ConfigError, match=r"the recipe of nano: epochs = 'two'.*\nunknown key 'layers'"):
        nano.recipe_of({"layers": 2, "epochs": "two"})


def test_a_trace_imitates_what_is_said_and_reads_the_rest(tokenizer, sandbox_kind):
    """Said tokens weigh 1, read ones the recipe's context weight; the gold commands are among what is said."""
    recipe = SMALL.model_copy(update={"noise": 0.0, "slips": 0.0, "context_weight": 0.25})
    renderer = CompactRenderer(tokenizer)
    paddock = Paddock(kinds=("two_steps",), per_split={"train": 1})
    task = paddock.tasks("train")[0]

    async def story():
        sandboxes = open_sandboxes(sandbox_kind)
        base = nano.harness(nano.BASE)
        samples = await nano.trace(recipe, renderer, sandboxes, paddock, task, base, random.Random(0))
        await sandboxes.close()
        return samples

    (sample,) = asyncio.run(story())
    assert set(np.unique(sample.weights)) <= {0.0, 0.25, 1.0}
    said = renderer.text(sample.ids[sample.weights == 1.0])
    read = renderer.text(sample.ids[sample.weights == 0.25])
    assert task.instruction in read
    assert nano.FINAL in said
    for command in task.gold.split("\n"):
        assert command.split()[-1] in said
