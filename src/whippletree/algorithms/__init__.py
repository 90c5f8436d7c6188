"""Credit and loss: from graded groups to weighted samples, and from tokens to a scalar."""

from typing import Annotated

from pydantic import Field

from whippletree.algorithms.grpo import GRPO
from whippletree.algorithms.harness_rl import HarnessRL
from whippletree.algorithms.ppo import PPO

AnyAlgorithm = Annotated[GRPO | PPO | HarnessRL, Field(discriminator="type")]
"""What `[algorithm] type` can name."""
