"""Device profiles, which flavors name in the extra spec ``accel:device_profile``.

    profile = client.profile('fpga')
    spec.requested_resources = profile.request_groups()      # groups of the scheduler's query to Placement

A group of a profile is a dict that describes requested devices: ``resources:FPGA`` = '1', ``trait:CUSTOM_X`` =
'required'. Its other keys (``accel:…``) are only for Cyborg and the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.objects import RequestGroup
from kilonova.pci.request import ACCELERATORS

# The extra spec that names a device profile.
EXTRA_SPEC = 'accel:device_profile'
# Maximum number of accelerators of one server. No host has more devices, and each needs several requests to Cyborg.
MOST = 64
# Patterns of the valid names of device profiles in Cyborg, and of resource classes and traits in Placement.
_NAME = re.compile(r'[A-Za-z0-9_-]{1,255}')
_CLASS = re.compile(r'[A-Z0-9_]{1,255}')


class DeviceProfileError(errors.Invalid):
    """A device profile does not exist or can't be used."""

    msg_fmt = 'Device profile name %(name)s: %(msg)s'


@dataclass(frozen=True)
class Profile:
    """A device profile. ``groups`` are in Cyborg's order. The number of a group is its index."""

    name: str
    groups: tuple[Mapping[str, str], ...]

    def of_port(self, port_id: str) -> list[RequestGroup]:
        """Return the request groups of the Placement query for the device profile of a port.

        Raises DeviceProfileError if the profile requests more than one accelerator, which a port can't have, or if the
        profile can't be used.
        """
        groups = self.request_groups(port_id)
        if [sum(group.resources.values()) for group in groups] != [1]:
            raise DeviceProfileError(
                name=self.name, msg='the device profile of a port must request exactly one accelerator'
            )
        return groups

    def request_groups(self, port_id: str = '') -> list[RequestGroup]:
        """Return one request group of the Placement query for each group of the profile.

        All resources of a group come from one provider. The group's name is ``device_profile_<n>``, followed by the
        port's id if the profile is a port's. Raises DeviceProfileError if a group can't be requested.
        """
        found = [self._group(number, group, port_id) for number, group in enumerate(self.groups)]
        if sum(sum(group.resources.values()) for group in found) > MOST:
            raise DeviceProfileError(name=self.name, msg=f'the profile requests more than {MOST} accelerators')
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
                raise DeviceProfileError(
                    name=self.name,
                    msg=f"group {number} has {key}={value!r}; the value must be 'required' or 'forbidden'",
                )
        if not resources:
            raise DeviceProfileError(name=self.name, msg=f'group {number} requests no resources')
        return RequestGroup(
            use_same_provider=True,
            resources=resources,
            required_traits=traits['required'],
            forbidden_traits=traits['forbidden'],
            requester_id=group_name(number, port_id),
        )

    def _word(self, number: int, key: str, word: str) -> str:
        if _CLASS.fullmatch(word) is None:
            raise DeviceProfileError(name=self.name, msg=f'group {number} has {key!r}, which is not valid in Placement')
        return word

    def _amount(self, number: int, key: str, value: str) -> int:
        if not re.fullmatch('[0-9]{1,4}', value) or not 1 <= int(value) <= MOST:
            raise DeviceProfileError(
                name=self.name, msg=f'group {number} has {key}={value!r}; a group may request 1 to {MOST} accelerators'
            )
        return int(value)


def group_name(number: int, port_id: str = '') -> str:
    """Return the name of group ``number`` of a profile in the scheduler's query and in Placement's mappings.

    ``port_id`` is the port that has the device profile, or '' if the flavor names the profile.
    """
    return f'{ACCELERATORS}{number}{port_id}'


def name_of(extra_specs: Mapping[str, str]) -> str | None:
    """Return the name of the device profile that a flavor's extra specs name, or None if they name none."""
    return extra_specs.get(EXTRA_SPEC) or None


def check_name(name: str) -> None:
    """Raise DeviceProfileError if Cyborg accepts no profile with this name."""
    if _NAME.fullmatch(name) is None:
        raise DeviceProfileError(name=repr(name[:80]), msg='a name has 1 to 255 letters, digits, _ and -')


def only(name: str, found: Sequence[Any]) -> Profile:
    """Return the only profile in a response of Cyborg.

    Raises DeviceProfileError if the response does not contain exactly one valid profile.
    """
    if not found:
        raise DeviceProfileError(name=name, msg='Expected 1 device profile but got nothing.')
    if len(found) > 1:
        raise DeviceProfileError(name=name, msg=f'Expected 1 device profile but got {len(found)}.')
    groups = found[0].get('groups') or []
    if not 1 <= len(groups) <= MOST:
        raise DeviceProfileError(
            name=name, msg=f'the profile has {len(groups)} groups; 1 to {MOST} groups are accepted'
        )
    return Profile(name, tuple({str(key): str(value) for key, value in group.items()} for group in groups))
