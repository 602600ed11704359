"""What the Placement model keeps: providers, consumers, names; and how it says no.

state = State()
state.check_class('VCPU')                           # Refusal: there is no such class
state.providers[uuid].fits('VCPU', 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import os_resource_classes
import os_traits
from oslo_utils import uuidutils

UNDEFINED = 'placement.undefined_code'
STANDARD_TRAITS = frozenset(os_traits.get_traits())
STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)

_MALFORMED = 'The server could not comply with the request since it is either malformed or otherwise incorrect.'
_TITLES = {
    400: ('Bad Request', _MALFORMED),
    404: ('Not Found', 'The resource could not be found.'),
    409: ('Conflict', 'There was a conflict when trying to complete your request.'),
}
_UUID = re.compile('[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}')

Amounts = dict[str, int]
Allocations = dict[str, Amounts]


class NotModelled(AssertionError):
    """A request that Kilonova never sends, or that this model doesn't understand."""


class Refusal(Exception):
    """The service doesn't do what is asked; ``body`` is what it answers."""

    def __init__(self, status: int, text: str, code: str = UNDEFINED) -> None:
        super().__init__(status, text, code)
        self.status, self.text, self.code = status, text, code

    def body(self) -> dict[str, Any]:
        title, explanation = _TITLES.get(self.status, ('Error', 'The service failed.'))
        return {
            'errors': [
                {'status': self.status, 'title': title, 'detail': f'{explanation}\n\n {self.text}  ', 'code': self.code}
            ]
        }


@dataclass(slots=True)
class Provider:
    """``holders``: what each consumer has of it; ``used``: their sum, without zeros."""

    uuid: str
    name: str
    parent: str | None
    root: str
    generation: int = 0
    inventory: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)
    aggregates: set[str] = field(default_factory=set)
    holders: dict[str, Amounts] = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)

    def capacity(self, name: str) -> float:
        given = self.inventory[name]
        return (given['total'] - given['reserved']) * given['allocation_ratio']

    def fits(self, name: str, amount: int) -> bool:
        """Whether a consumer may take so much more."""
        given = self.inventory.get(name)
        return given is not None and is_unit(given, amount) and self.used.get(name, 0) + amount <= self.capacity(name)

    def row(self) -> dict[str, Any]:
        return {
            'uuid': self.uuid,
            'name': self.name,
            'generation': self.generation,
            'parent_provider_uuid': self.parent,
            'root_provider_uuid': self.root,
        }

    def summary(self) -> dict[str, Any]:
        return {
            'resources': {
                name: {'capacity': int(self.capacity(name)), 'used': self.used.get(name, 0)} for name in self.inventory
            },
            'traits': sorted(self.traits),
            'parent_provider_uuid': self.parent,
            'root_provider_uuid': self.root,
        }


@dataclass(slots=True)
class Consumer:
    """A record of a consumer. One without allocations stays behind where Placement made it and then refused."""

    project_id: str
    user_id: str
    generation: int = 0
    allocations: Allocations = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """``trees``: the providers of each, by the uuid of its root. ``uuids``: of providers, by name."""

    providers: dict[str, Provider] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    trees: dict[str, dict[str, Provider]] = field(default_factory=dict)
    custom_traits: set[str] = field(default_factory=set)
    custom_classes: set[str] = field(default_factory=set)

    def check_traits(self, names: Iterable[str]) -> None:
        """Refusal: one of them doesn't exist."""
        unknown = sorted(name for name in names if name not in STANDARD_TRAITS and name not in self.custom_traits)
        if unknown:
            raise Refusal(400, f'No such trait(s): {", ".join(unknown)}.')

    def check_class(self, name: str) -> None:
        """Refusal: it doesn't exist."""
        if name not in STANDARD_CLASSES and name not in self.custom_classes:
            raise Refusal(400, f'No such resource class {name}.')


def is_unit(given: dict[str, Any], amount: int) -> bool:
    return given['min_unit'] <= amount <= given['max_unit'] and not amount % given['step_size']


def is_member(provider: Provider, members: list[set[str]]) -> bool:
    return not any(one.isdisjoint(provider.aggregates) for one in members)


def is_uuid(value: Any) -> bool:
    """NotModelled: one that is not written as Kilonova writes them."""
    if isinstance(value, str) and _UUID.fullmatch(value):
        return True
    if isinstance(value, str) and uuidutils.is_uuid_like(value):
        raise NotModelled(f'uuid {value}')
    return False
