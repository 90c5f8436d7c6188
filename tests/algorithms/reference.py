"""What credit and losses are, once more: in double precision, slow, and written to be read.

Nothing here uses the product. Tokens are known by their ids, of which the rollouts under test have no two alike.
"""

import numpy as np

# ---- what is trained --------------------------------------------------------------------------------------------


def extends(call, other):
    """Whether `call` goes on from `other`, directly or not."""
    path = [*other.prompt_ids, *other.completion_ids]
    return call is not other and len(call.prompt_ids) >= len(path) and list(call.prompt_ids[: len(path)]) == path


def trained_calls(rollout):
    """The main agent's calls that sampled something, less retries that were given up."""
    sampled = [call for call in rollout.calls if len(call.completion_ids)]

    def goes_on(call):
        return any(extends(other, call) for other in sampled)

    def given_up(call):
        alike = [o for o in sampled if o.kind == call.kind and list(o.prompt_ids) == list(call.prompt_ids)]
        return not goes_on(call) and any(goes_on(other) and other.index > call.index for other in alike)

    return [call for call in sampled if call.kind == "main" and not given_up(call)]


def branches(rollout):
    """Per leaf, first things first, the trained calls from the root to it."""
    calls = trained_calls(rollout)
    leaves = [call for call in calls if not any(extends(other, call) for other in calls)]
    return [[call for call in calls if call is leaf or extends(leaf, call)] for leaf in leaves]


def tokens(calls):
    return [int(token) for call in calls for token in call.completion_ids]


def num_tokens(rollout):
    return len(tokens(trained_calls(rollout)))


def graded(group):
    return [rollout for rollout in group.rollouts if rollout.reward is not None]


# ---- GRPO: ClawGym II, equations 5 to 7 -------------------------------------------------------------------------


def compared(groups, grouping):
    """Lists of (rollout, score)."""
    every = [rollout for group in groups for rollout in graded(group)]

    def score(rollout):
        if grouping != "residual":
            return rollout.reward.value
        elsewhere = [other for other in every if other.task_id != rollout.task_id]
        same_harness = [other for other in elsewhere if other.harness == rollout.harness]
        return rollout.reward.value - np.mean([other.reward.value for other in same_harness or elsewhere] or [0.0])

    if grouping == "task_harness":
        return [[(rollout, score(rollout)) for rollout in graded(group)] for group in groups]
    tasks = dict.fromkeys(rollout.task_id for rollout in every)
    return [[(rollout, score(rollout)) for rollout in every if rollout.task_id == task] for task in tasks]


def grpo(groups, *, grouping, weighting, normalise_std, negative_weight, keep_flat):
    """Trained token -> (weight, advantage)."""
    usable = [pool for pool in compared(groups, grouping) if len(pool) >= 2]
    total = sum(num_tokens(rollout) for pool in usable for rollout, _ in pool)
    expected = {}
    for pool in usable:
        scores = np.array([score for _, score in pool])
        flat = scores.max() - scores.min() < 1e-9
        if flat and not keep_flat:
            continue
        for rollout, score in pool:
            advantage = 0.0 if flat else score - scores.mean()
            if normalise_std:
                advantage /= np.sqrt(((scores - scores.mean()) ** 2).mean()) + 1e-6
            if advantage < 0:
                advantage *= negative_weight
            for token in tokens(trained_calls(rollout)):
                alike = 1 / (len(usable) * len(pool) * num_tokens(rollout))
                expected[token] = (1 / total if weighting == "token" else alike, advantage)
    return expected


# ---- PPO: ClawGym II, equations 2, 4 and 8; Schulman et al. 2016, equation 16 -----------------------------------


def ppo(groups, values, *, gamma, gae_lambda, weighting):
    """Trained token -> (weight, advantage, return). `values` has one for each token: of the state before it."""
    rollouts = [rollout for group in groups for rollout in graded(group)]
    total = sum(num_tokens(rollout) for rollout in rollouts)
    expected = {}
    for rollout in rollouts:
        for branch in branches(rollout):
            path = tokens(branch)
            v = [*(values[token] for token in path), 0.0]
            r = [0.0] * (len(path) - 1) + [rollout.reward.value]
            delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(path))]
            for t, token in enumerate(path):
                if token in expected:  # of a prefix that an earlier branch has counted
                    continue
                advantage = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(path) - t))
                weight = 1 / total if weighting == "token" else 1 / (len(rollouts) * num_tokens(rollout))
                expected[token] = (weight, advantage, advantage + v[t])
    return expected


# ---- Harness-RL -------------------------------------------------------------------------------------------------


def harness_rl(groups, *, grouping, weighting, normalise_std, negative_weight, process_weight, part_weights):
    """Trained token -> (weight, advantage, part); `part_weights` are those of other, action and argument tokens."""

    def normalised(values):
        centred = np.array(values, float) - np.mean(values)
        return centred / (np.sqrt((centred**2).mean()) + 1e-6) if normalise_std else centred

    def of_part(rollout, part):
        return [own for call in trained_calls(rollout) for own in call.parts if own == part]

    usable = [pool for pool in compared(groups, grouping) if len(pool) >= 2]
    every = [rollout for pool in usable for rollout, _ in pool]
    expected = {}
    for pool in usable:
        scores = np.array([score for _, score in pool])
        flat = scores.max() - scores.min() < 1e-9
        outcome = np.zeros(len(pool)) if flat else normalised(scores)
        decisions = [[call for call in rollout.calls if call.kind == "main"] for rollout, _ in pool]
        process = {}
        for place in range(max(map(len, decisions))):
            there = [(r, calls[place]) for r, calls in enumerate(decisions) if len(calls) > place]
            gained = normalised([float(call.parse_error is None) for _, call in there])
            process |= {(r, call.index): gain for (r, call), gain in zip(there, gained, strict=True)}
        if flat and not (process_weight and any(process.values())):
            continue
        for r, (rollout, _) in enumerate(pool):
            for call in trained_calls(rollout):
                advantage = outcome[r] + process_weight * process[r, call.index]
                if advantage < 0:
                    advantage *= negative_weight
                for token, part in zip(call.completion_ids, call.parts, strict=True):
                    alike = len(usable) * len(pool) * len(of_part(rollout, part))
                    number = sum(len(of_part(r, part)) for r in every) if weighting == "token" else alike
                    if part_weights[part]:
                        expected[int(token)] = (part_weights[part] / number, advantage, part)
    return expected


# ---- losses -----------------------------------------------------------------------------------------------------


def surrogate(log_ratio, advantage, clip_low, clip_high):
    ratio = np.exp(log_ratio)
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)


def policy_loss(new, old, advantage, weight, *, clip_low, clip_high, factor=1.0, reference=None, kl=0.0):
    """`old` and `factor` do not depend on `new`; all are per token."""
    gain = surrogate(new - old, advantage, clip_low, clip_high)
    if kl:
        gain = gain - kl * (np.exp(reference - new) - (reference - new) - 1)
    return -np.sum(weight * factor * gain)


def truncated(trainer, sampler, limit):
    return np.minimum(np.exp(trainer - sampler), limit)


def sequence_loss(new, old, advantage, rollout, *, clip_low, clip_high):
    """One ratio per rollout, the geometric mean of its tokens'; rollouts count alike. Zheng et al. 2025, eq. 5 to 7."""
    gains = [
        surrogate(np.mean((new - old)[rollout == one]), advantage[rollout == one][0], clip_low, clip_high)
        for one in np.unique(rollout)
    ]
    return -np.mean(gains)


def value_loss(values, before, returns, weight, *, clip=0.0):
    error = (values - returns) ** 2
    if clip:
        error = np.maximum(error, (before + np.clip(values - before, -clip, clip) - returns) ** 2)
    return 0.5 * np.sum(weight * error)


def gradient(function, x, step=1e-6):
    """By central differences; the reference's own, so that no stop-gradient of the product is repeated here."""
    found = np.empty_like(x)
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        found[i] = (function(up) - function(down)) / (2 * step)
    return found
