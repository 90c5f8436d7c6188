"""The tools of the Responses protocol: functions and free-form tools, alone or in namespaces.

Invariant: each has one name by which the model knows it, and a call by that name is written back as its offer says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.gateway.dialects.base import DialectError, list_of, object_of, shown, text_of
from whippletree.gateway.dialects.openai import described, function_tool
from whippletree.types import Json, Tool


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as the harness offers it."""

    name: str
    """By which the model knows it."""
    inner: str
    """By which the harness knows it, within its namespace."""
    namespace: str | None
    spec: Mapping[str, Json]
    where: str

    @property
    def written(self) -> dict[str, Json]:
        """What marks a call of it in the reply; empty for a plain function."""
        if self.namespace is not None:
            return {"type": self.spec["type"], "name": self.inner, "namespace": self.namespace}
        return {"type": "custom", "name": self.inner} if self.spec["type"] == "custom" else {}


def offers_of(raw: Json) -> list[Offer]:
    """Functions and custom tools, those in namespaces included; what the server should run itself is left out."""
    found: list[tuple[str, str | None, Mapping[str, Json], str]] = []
    for i, each in enumerate(list_of(raw, "tools") if raw is not None else ()):
        where = f"tools[{i}]"
        tool = object_of(each, where)
        kind = text_of(tool.get("type"), f"{where}.type")
        if kind in ("function", "custom"):
            found.append((text_of(tool.get("name"), f"{where}.name"), None, tool, where))
        elif kind == "namespace":
            namespace = text_of(tool.get("name"), f"{where}.name")
            for j, inner in enumerate(list_of(tool.get("tools"), f"{where}.tools")):
                place = f"{where}.tools[{j}]"
                told = object_of(inner, place)
                if text_of(told.get("type"), f"{place}.type") in ("function", "custom"):
                    found.append((text_of(told.get("name"), f"{place}.name"), namespace, told, place))
    times = Counter(name for name, *_ in found)
    offers: dict[str, Offer] = {}
    for inner, namespace, spec, where in found:
        name = f"{namespace}__{inner}" if namespace is not None and times[inner] > 1 else inner
        if name in offers:
            raise DialectError(f"{where}.name must be the only one, got {shown(name)}, as is {offers[name].where}")
        offers[name] = Offer(name, inner, namespace, spec, where)
    return list(offers.values())


def tool_of(offer: Offer) -> Tool:
    if offer.spec["type"] == "function":
        return function_tool(offer.spec, offer.name, offer.where)
    told: dict[str, Json] = {"type": "string"}
    form = offer.spec.get("format")
    form = object_of({} if form is None else form, f"{offer.where}.format")
    if form.get("type") == "grammar":
        syntax = text_of(form.get("syntax"), f"{offer.where}.format.syntax")
        definition = text_of(form.get("definition"), f"{offer.where}.format.definition")
        told["description"] = f"Text that follows this {syntax} grammar:\n{definition}"
    schema = {"type": "object", "properties": {"input": told}, "required": ["input"]}
    return Tool(offer.name, described(offer.spec, offer.where), schema)


def renamed(item: Json, offers: Sequence[Offer]) -> Json:
    """A call in a namespace under the name by which the model knows the tool; any other item as it is."""
    match item:
        case {"namespace": str(namespace), "name": str(inner)}:
            told: dict[str, Json] = item
            names = [offer.name for offer in offers if (offer.namespace, offer.inner) == (namespace, inner)]
            return {**told, "name": names[0]} if names else told
        case _:
            return item
