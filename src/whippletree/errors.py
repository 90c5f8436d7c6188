"""Every error a user can meet, one flat list, named by the boundary where it arises.

Messages say what happened with the value, what was expected, and what to do. The command line prints them without
a traceback and exits with `exit_code`.
"""


class WhippletreeError(Exception):
    """Base of all errors that are the user's, the machine's or an outside program's, never a bug of ours."""

    exit_code = 2


class ConfigError(WhippletreeError):
    """A key, value or combination in the configuration is not acceptable."""


class HarnessError(WhippletreeError):
    """A harness name, space, level or spec does not make sense."""


class ScheduleError(WhippletreeError):
    """A schedule cannot be used, or assigns what cannot be rolled out."""


class TaskError(WhippletreeError):
    """A task source, split or task cannot be used."""


class GradingError(WhippletreeError):
    """A task's grader has failed; a rollout that meets it is not graded."""


class SandboxError(WhippletreeError):
    """A sandbox cannot be started or has failed; a rollout that meets it is not graded."""


class PolicyError(WhippletreeError):
    """The policy cannot be loaded, sampled or trained."""


class ContextOverflow(WhippletreeError):
    """A prompt leaves no room for an answer in the policy's context."""


class BudgetSpent(WhippletreeError):
    """A rollout has used up its calls or tokens; `of` says which."""

    def __init__(self, problem: str, of: str) -> None:
        super().__init__(problem)
        self.of = of


class GatewayError(WhippletreeError):
    """The model endpoint for black-box harnesses cannot be served or reached."""


class StoreError(WhippletreeError):
    """A run directory cannot be created, read or resumed."""
