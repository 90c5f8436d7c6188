"""A schedule of the user's own: a class outside the package, named in the configuration as MODULE:CLASS.

Invariant: everything about it that can be wrong before a run begins is found as the configuration is read.
"""

from __future__ import annotations

from typing import Annotated, Protocol, Self, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from whippletree import outside
from whippletree.errors import ScheduleError
from whippletree.schedule.base import Plan, Scheduler
from whippletree.types import Json

FORM = "MODULE:CLASS"


class Opens(Protocol):
    def open(self, plan: Plan) -> Scheduler: ...


class External(BaseModel):
    """The keys beside `type` are the settings of the class, which is a pydantic model with a method `open(plan)`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: Annotated[str, Field(examples=[FORM])]
    _strategy: Opens = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        settings, found = self.__pydantic_extra__ or {}, strategy_class(self.type)
        for key, value in settings.items():  # the class itself may ignore what it does not know
            if key not in found.model_fields:
                known = ", ".join(found.model_fields) or "none"
                raise _refused(key, value, f"'{self.type}' has no such setting; it has {known}")
        strategy = found.model_validate(settings)
        self._strategy = cast(Opens, strategy)
        settings.update(strategy.model_dump(mode="json", exclude={"type"}))  # so that the run keeps its defaults
        return self

    def open(self, plan: Plan) -> Scheduler:
        """Raises ScheduleError where the class opens what is no scheduler."""
        scheduler = self._strategy.open(plan)
        parts = [name for name in vars(Scheduler) if not name.startswith("_")]
        if missing := [part for part in parts if not hasattr(scheduler, part)]:
            raise ScheduleError(
                f"what '{self.type}' opens is no scheduler: {type(scheduler).__name__} lacks {', '.join(missing)}; "
                "see whippletree.schedule.base.Scheduler"
            )
        return scheduler


def strategy_class(path: str) -> type[BaseModel]:
    """The class at MODULE:CLASS; raises ValidationError that says at which part of the way it is not found."""
    try:
        found = outside.load(path)
    except ValueError as error:
        raise _refused("type", path, str(error)) from error
    if not (isinstance(found, type) and issubclass(found, BaseModel) and hasattr(found, "open")):
        raise _refused("type", path, "this is no schedule; expected a pydantic model with a method open(plan)")
    return found


def _refused(key: str, value: Json, message: str) -> ValidationError:
    details = InitErrorDetails(type=PydanticCustomError("schedule", message), loc=(key,), input=value)  # type: ignore
    return ValidationError.from_exception_data("schedule", [details])
