"""Device profiles: what a flavor's ``accel:device_profile`` names.

    profile = client.profile('fpga')
    spec.requested_resources = profile.request_groups()      # what the scheduler asks Placement for

A group of a profile says what is wanted of one device (``resources:FPGA`` = '1', ``trait:CUSTOM_X`` = 'required'); its
other keys (``accel:…``) are between Cyborg and the device.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.objects import RequestGroup
from kilonova.pci.request import ACCELERATORS

# The extra spec.
EXTRA_SPEC = 'accel:device_profile'
# Of one server: no host has more devices, and each is some requests to Cyborg.
MOST = 64
# What Cyborg lets a profile be called, and what a name may be as long as.
_NAME = re.compile(r'[A-Za-z0-9_-]{1,255}')
_CLASS = re.compile(r'[A-Z0-9_]{1,255}')


class DeviceProfileError(errors.Invalid):
    msg_fmt = 'Device profile name %(name)s: %(msg)s'


@dataclass(frozen=True)
class Profile:
    """``groups``: as Cyborg has them, their numbers are their places."""

    name: str
    groups: tuple[Mapping[str, str], ...]

    def of_port(self, port_id: str) -> list[RequestGroup]:
        """The same of a port's profile, which is for one accelerator. DeviceProfileError."""
        groups = self.request_groups(port_id)
        if [sum(group.resources.values()) for group in groups] != [1]:
            raise DeviceProfileError(name=self.name, msg='a port is one accelerator, and it asks for others')
        return groups

    def request_groups(self, port_id: str = '') -> list[RequestGroup]:
        """A group of the request to Placement for each of ours, each of one provider, called ``device_profile_<n>``;
        that of a port has its id behind it. DeviceProfileError: it can't be asked for."""
        found = [self._group(number, group, port_id) for number, group in enumerate(self.groups)]
        if sum(sum(group.resources.values()) for group in found) > MOST:
            raise DeviceProfileError(name=self.name, msg=f'it asks for more than {MOST} accelerators')
        return found

    def _group(self, number: int, keys: Mapping[str, str], port_id: str) -> RequestGroup:
        resources: dict[str, int] = {}
        traits: dict[str, set[str]] = {'required': set(), 'forbidden': set()}
        for key, value in keys.items():
            what, _, word = key.partition(':')
            if what == 'resources':
                resources[self._word(number, key, word)] = self._amount(number, key, value)
            elif what == 'trait' and value in traits:
                traits[value].add(self._word(number, key, word))
            elif what == 'trait':
                raise DeviceProfileError(name=self.name, msg=f'group {number} has {key}={value!r}, which is neither '
                                                             'required nor forbidden')
        if not resources:
            raise DeviceProfileError(name=self.name, msg=f'group {number} asks for no resources')
        return RequestGroup(use_same_provider=True, resources=resources, required_traits=traits['required'],
                            forbidden_traits=traits['forbidden'], requester_id=group_name(number, port_id))

    def _word(self, number: int, key: str, word: str) -> str:
        if _CLASS.fullmatch(word) is None:
            raise DeviceProfileError(name=self.name, msg=f'group {number} has {key!r}, which Placement cannot have')
        return word

    def _amount(self, number: int, key: str, value: str) -> int:
        if not re.fullmatch('[0-9]{1,4}', value) or not 1 <= int(value) <= MOST:
            raise DeviceProfileError(name=self.name,
                                     msg=f'group {number} has {key}={value!r}; 1 to {MOST} are accepted')
        return int(value)


def group_name(number: int, port_id: str = '') -> str:
    """What the scheduler and Placement's mappings call a profile's group."""
    return f'{ACCELERATORS}{number}{port_id}'


def name_of(extra_specs: Mapping[str, str]) -> str | None:
    """The device profile that a flavor names; None: it wants no accelerators."""
    return extra_specs.get(EXTRA_SPEC) or None


def check_name(name: str) -> None:
    """DeviceProfileError for what no profile can be called."""
    if _NAME.fullmatch(name) is None:
        raise DeviceProfileError(name=repr(name[:80]), msg='letters, digits, _ and - are accepted, at most 255')


def only(name: str, found: Sequence[Any]) -> Profile:
    """The profile of an answer of Cyborg's; DeviceProfileError unless it is exactly one."""
    if not found:
        raise DeviceProfileError(name=name, msg='Expected 1 device profile but got nothing.')
    if len(found) > 1:
        raise DeviceProfileError(name=name, msg=f'Expected 1 device profile but got {len(found)}.')
    groups = found[0].get('groups') or []
    if not 1 <= len(groups) <= MOST:
        raise DeviceProfileError(name=name, msg=f'it has {len(groups)} groups; 1 to {MOST} are accepted')
    return Profile(name, tuple({str(key): str(value) for key, value in group.items()} for group in groups))
