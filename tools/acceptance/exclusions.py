"""Which tests of the suite are left out, and why: ``exclusions.txt``.

    [guests] no packets reach them
    tempest.api.compute.servers.test_z.*
    [lacks] what an entry needs that isn't built
    tempest.api.compute.servers.test_x.SomeTest.test_y     # the reason of this one

Under ``guests`` and ``elsewhere`` an entry may end in ``.*`` (all below a package, module or class) and the section's
title is its reason; under the others it names one test and says its reason after ``#``. Entries of some sections count
only for one kind of guests (SECTIONS).

A reason that says that Kilonova lacks something has one of two forms. A unit test compares it with the code and fails
when the feature exists:

    # no route for `POST /servers/{server_id}/action (os-x)`
    # `hw:tpm_version` is refused, as guests have no emulated TPM
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_name('exclusions.txt')
# What the names of the tests begin with, by the kind of guests. Without real guests: all of the API, and the scenarios
# that look into no guest. With real ones: all scenarios, and the tests of the API that log in to a guest, or whose
# outcome depends on what a guest, its network or its disks do; what the others test is the same with any guest.
_BOOT = 'tempest.scenario.test_volume_boot_pattern.TestVolumeBootPattern.test_'
_ADMIN, _SERVERS = 'tempest.api.compute.admin.test_', 'tempest.api.compute.servers.test_'
PREFIXES = {
    'test': (
        'tempest.api.compute.',
        f'{_BOOT}bootable_volume_',
        f'{_BOOT}create_server_from_volume_snapshot',
        f'{_BOOT}image_defined_boot_from_volume',
        'tempest.scenario.test_server_advanced_ops.',
        'tempest.scenario.test_server_multinode.',
        'tempest.scenario.test_server_volume_attachment.',
    ),
    'qemu': (
        'tempest.scenario.',
        'tempest.api.compute.volumes.test_attach_volume.',
        'tempest.api.compute.volumes.test_volume_snapshots.',
        *(
            f'{_ADMIN}{name}'
            for name in ('assisted_volume_snapshots.', 'create_server.', 'live_migration.', 'volume.', 'volume_swap.')
        ),
        *(
            f'{_SERVERS}{name}'
            for name in (
                'attach_interfaces.',
                'create_server.',
                'device_tagging.',
                'novnc.',
                'server_actions.',
                'server_personality.',
                'server_rescue.',
            )
        ),
    ),
}
# The kind of guests for which the entries of a section count; of the others they count for each.
SECTIONS = {'guests': 'test', 'pretended': 'test', 'elsewhere': 'qemu', 'real': 'qemu'}
# Sections whose title is the reason of all their entries.
WHOLE = ('guests', 'elsewhere')
_SECTION = re.compile(r'^\[(?P<name>[a-z]+)\] (?P<title>\S.*)$')
_ENTRY = re.compile(r'^(?P<test>tempest\.(?:api\.compute|scenario)\.[\w.]+?(?P<all>\.\*)?)(?:\s+#\s*(?P<why>\S.*))?$')


# What Kilonova lacks, in the two forms that can be compared with the code.
_NO_ROUTE = re.compile(r'no route for `(?P<method>[A-Z]+) (?P<path>\S+?)(?: \((?P<action>\S+)\))?`')
_REFUSED = re.compile(r'`(?P<name>[^`]+)` is refused')
# Words by which a reason says that Kilonova lacks something. What the one-machine cloud lacks is said in other words:
# "it needs a service that this cloud does not have".
_LACKS = re.compile(
    r"there (?:is|are) no|no route|(?:is|are)(?: not|n't) (?:built|there|implemented|supported|possible)|doesn't exist"
    r'|unsupported|not implemented|not yet|missing|guests have no emulated',
    re.IGNORECASE,
)


class ExclusionsError(Exception):
    """The list can't stand as it is; says which line or entry."""


@dataclass(frozen=True)
class Exclusion:
    """An entry of exclusions.txt: a test, or all tests whose names begin alike, that is left out.

    ``test`` is a test's whole name, or the beginning of names if ``below`` is true. ``section`` is guests, lacks and so
    on.
    """

    test: str
    below: bool
    section: str
    reason: str

    def matches(self, name: str) -> bool:
        """Return whether the entry is about a test; ``name`` has no attributes in brackets."""
        return name.startswith(f'{self.test}.') if self.below else name == self.test


def plain(identifier: str) -> str:
    """Return a test's name without the attributes that Tempest puts after it: ``…test_x[id-…,smoke]``."""
    return identifier.partition('[')[0]


def parse(text: str) -> list[Exclusion]:
    """Return the entries of exclusions.txt in order.

    Raises ExclusionsError if a line cannot be read, an entry is there twice, or an entry has no reason.
    """
    found: dict[str, Exclusion] = {}
    section = title = ''
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith('#'):
            continue
        if head := _SECTION.match(line):
            section, title = head['name'], head['title']
            continue
        entry = _ENTRY.match(line)
        if entry is None or not section:
            raise ExclusionsError(f'line {number}: cannot read {line!r}')
        if section not in WHOLE and (entry['all'] or not entry['why']):
            raise ExclusionsError(
                f'line {number}: outside of {" and ".join(WHOLE)} an entry names one test, and after # what is missing'
            )
        test = entry['test'].removesuffix('.*')
        if test in found:
            raise ExclusionsError(f'line {number}: {test} stands here twice')
        found[test] = Exclusion(test, bool(entry['all']), section, entry['why'] or title)
    return list(found.values())


@dataclass(frozen=True)
class Lack:
    """A thing that Kilonova lacks, by the reason of an exclusion: a route, or a name in a request, flavor or image."""

    route: tuple[str, str, str | None] | None = None
    refused: str | None = None


def lacks(reason: str) -> list[Lack]:
    """Return what the reason says that Kilonova lacks.

    Raises ExclusionsError if the reason says so in words that cannot be compared with the code.
    """
    found = [Lack(route=(one['method'], one['path'], one['action'])) for one in _NO_ROUTE.finditer(reason)]
    found += [Lack(refused=one['name']) for one in _REFUSED.finditer(reason)]
    if not found and _LACKS.search(reason):
        raise ExclusionsError(f'name the route, or what is refused: {reason!r}')
    return found


def of_guests(exclusions: Iterable[Exclusion], guests: str) -> list[Exclusion]:
    """Return the entries that count where guests are of this kind (``test`` or ``qemu``) and tests of theirs run."""
    return [
        entry
        for entry in exclusions
        if SECTIONS.get(entry.section, guests) == guests and f'{entry.test}.'.startswith(PREFIXES[guests])
    ]


def split(identifiers: Iterable[str], exclusions: Iterable[Exclusion]) -> tuple[list[str], dict[str, Exclusion]]:
    """Return the tests to run, and a dict from each test that is left out to its entry.

    Raises ExclusionsError if an entry matches no test.
    """
    run, left, used = [], {}, set()
    exclusions = list(exclusions)
    for identifier in identifiers:
        found = next((entry for entry in exclusions if entry.matches(plain(identifier))), None)
        if found is None:
            run.append(identifier)
        else:
            left[identifier] = found
            used.add(found)
    if idle := [entry.test for entry in exclusions if entry not in used]:
        raise ExclusionsError(f'no test is left out by: {", ".join(idle)}')
    return run, left
