import copy

import pytest
from tiny import CONTEXT

from whippletree.policy.slots import SlotDecoder

pytest.register_assert_rewrite("contract")


@pytest.fixture
def break_sampler():
    def break_sampler(policy):
        other = copy.deepcopy(policy.model)
        other.get_output_embeddings().weight.data[:40] *= 1.5
        policy._decoder = SlotDecoder(other, num_slots=4, max_context=CONTEXT)

    return break_sampler
