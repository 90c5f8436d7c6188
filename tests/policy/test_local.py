import asyncio
import copy

import pytest
from contract import PolicyContract
from tiny import CONTEXT, MODELS, local_policy

from whippletree.policy.slots import SlotDecoder


class TestLocal(PolicyContract):
    @pytest.fixture(params=MODELS)
    def make(self, request):
        opened = []

        def make(**options):
            opened.append(local_policy(request.param, **options))
            return opened[-1]

        yield make
        for policy in opened:
            asyncio.run(policy.close())

    @pytest.fixture
    def break_sampler(self):
        def break_sampler(policy):
            other = copy.deepcopy(policy.model)
            other.get_output_embeddings().weight.data[:40] *= 1.5
            policy._decoder = SlotDecoder(other, num_slots=4, max_context=CONTEXT)

        return break_sampler
