"""When everything works again, each server must still be of use: it is taken off its host and comes back, one server
after the other, so that there is room for it.

    Probe(cloud, users, checks, wrong).go()
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.checks import Checks
from tests.simulation.cloud import Cloud
from tests.simulation.users import Known, Users

# What is asked of a server in a status, and what it must be then; of one in another status nothing is.
STEPS = {
    'ACTIVE': (('shelve', 'SHELVED_OFFLOADED'), ('unshelve', 'ACTIVE')),
    'SHUTOFF': (('shelve', 'SHELVED_OFFLOADED'), ('unshelve', 'ACTIVE')),
    'VERIFY_RESIZE': (('confirmResize', 'ACTIVE SHUTOFF'),),
    'SHELVED_OFFLOADED': (('unshelve', 'ACTIVE'),),
}
# Servers with accelerators behind their ports stay where they are.
REFUSED = 'Feature not supported with Ports that have accelerators'


class Probe:
    """Once a run."""

    def __init__(self, cloud: Cloud, users: Users, checks: Checks, wrong: Callable[[str], None]) -> None:
        self._cloud, self._users, self._checks, self._wrong = cloud, users, checks, wrong

    def go(self) -> None:
        """Those without a host come last."""
        if self._cloud.cyborg is not None:
            self._cloud.cyborg.calm()
        told = {known.number: self._users.status(known) for known in self._users.known.values() if known.uuid}
        known = [known for known in self._users.known.values() if known.uuid]
        for one in sorted(known, key=lambda one: (told[one.number] or ('',))[0] == 'SHELVED_OFFLOADED'):
            self._one(one, (told[one.number] or ('',))[0])

    def _one(self, known: Known, status: str) -> None:
        cloud, path = self._cloud, f'/servers/{known.uuid}/action'
        for act, statuses in STEPS.get(status, ()) if not self._has_lost_its_disk(known) else ():
            answer = cloud.request('POST', path, {act: None})
            cloud.timeline.tell(f'probe: {act} s{known.number}: {answer.status_int}')
            if answer.status_int == 400 and REFUSED in answer.text:
                break
            self._rest()
            found = self._users.status(known)
            if answer.status_int >= 300 or found is None or found[0] not in statuses.split():
                self._wrong(
                    f'probe: s{known.number} is {found} after {act}, which was answered '
                    f'{answer.status_int}: {answer.text[:200]} {self._checks.fault(known.uuid or "")}'
                )
                return
            self._checks.agree()
        cloud.request('POST', path, {'forceDelete': None})
        self._rest()

    def _has_lost_its_disk(self, known: Known) -> bool:
        """The volume that it boots from was deleted by force."""
        return self._cloud.cinder is not None and f'{known.number}/boot' in self._cloud.cinder.lost

    def _rest(self) -> None:
        self._cloud.pause(5.0)
        self._checks.wait()
        if self._cloud.neutron is not None:
            self._cloud.tell_of_ports(self._checks.servers())
            self._checks.wait()
