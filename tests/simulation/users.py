"""Users: what they ask for, what they were told, and what may have become of their servers.

    users = Users(cloud)
    users.act(Act(3.1, 0, 'create', 'one', 'api1'))      # in a green thread of its own
    users.known[0].may_be                                # {State('ACTIVE', 'one'), State('ERROR', 'one')}

What an accepted request can lead to is a set of states; a request without an answer adds what it would have led to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import webob

from tests.simulation.belongings import BESIDE, Belongings
from tests.simulation.cloud import IMAGE, Cloud, Refused
from tests.simulation.story import Act

GONE, SOFT = 'GONE', 'SOFT_DELETED'
# Pauses (s) after which a user looks what became of a request.
LOOKS = (2.0, 15.0)
# Seconds that a patient user waits for a server to come to rest.
PATIENCE = 60
DELETES = ('delete', 'force_delete')


@dataclass(frozen=True)
class State:
    """A status that a server may come to rest in; ``back``: what a revert leads to."""

    status: str
    flavor: str
    back: State | None = None


@dataclass
class Known:
    """What a user knows of one server."""

    number: int
    uuid: str | None = None
    may_be: set[State] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    # When it was first told to be gone.
    gone_told: float | None = None
    unknown: bool = False
    # Deletes that were sent and aren't answered yet.
    deletes: int = 0
    # What was accepted, in the order of the answers.
    accepted: list[Act] = field(default_factory=list)
    # Of the patient requests: how many there were, and the last one that was sent.
    turns: int = 0
    served: int = 0


def _resized(flavor: str | None) -> Callable[[State], set[State]]:
    return lambda state: {State('VERIFY_RESIZE', flavor or state.flavor, state), state}


def _each(state: State, *statuses: str) -> set[State]:
    return {replace(state, status=status) for status in statuses}


# What an accepted request makes of a state: {kind: (statuses in which it can be accepted, successor states)}.
_AFTER: dict[str, tuple[frozenset[str] | None, Callable[[State], set[State]]]] = {
    'migrate': (frozenset(('ACTIVE', 'SHUTOFF')), _resized(None)),
    'confirm': (frozenset(('VERIFY_RESIZE',)), lambda state: {State(state.back.status, state.flavor)}),
    'revert': (frozenset(('VERIFY_RESIZE',)), lambda state: {state.back}),
    'live': (frozenset(('ACTIVE',)), lambda state: {state}),
    'stop': (frozenset(('ACTIVE', 'ERROR')), lambda state: {replace(state, status='SHUTOFF'), state}),
    'start': (frozenset(('SHUTOFF',)), lambda state: {replace(state, status='ACTIVE'), state}),
    'reboot': (frozenset(('ACTIVE',)), lambda state: {state}),
    'hard_reboot': (
        frozenset(('ACTIVE', 'SHUTOFF', 'SUSPENDED', 'ERROR')),
        lambda state: {replace(state, status='ACTIVE'), state},
    ),
    # SHUTOFF: its host was off meanwhile, and left the guest to the operation.
    'suspend': (frozenset(('ACTIVE',)), lambda state: {*_each(state, 'SUSPENDED', 'SHUTOFF'), state}),
    'resume': (frozenset(('SUSPENDED',)), lambda state: {*_each(state, 'ACTIVE', 'SHUTOFF'), state}),
    'rescue': (frozenset(('ACTIVE', 'SHUTOFF', 'ERROR')), lambda state: {*_each(state, 'RESCUE', 'SHUTOFF'), state}),
    'unrescue': (frozenset(('RESCUE',)), lambda state: {*_each(state, 'ACTIVE', 'SHUTOFF'), state}),
    # Its disk may be lost.
    'rebuild': (
        frozenset(('ACTIVE', 'SHUTOFF', 'ERROR')),
        lambda state: {*_each(state, 'ACTIVE', 'SHUTOFF', 'ERROR'), state},
    ),
    # So may the memory of a suspended guest.
    'shelve': (
        frozenset(('ACTIVE', 'SHUTOFF', 'SUSPENDED')),
        lambda state: {*_each(state, 'SHELVED_OFFLOADED', 'SHUTOFF'), state},
    ),
    'unshelve': (frozenset(('SHELVED_OFFLOADED',)), lambda state: {replace(state, status='ACTIVE'), state}),
    'evacuate': (frozenset(('ACTIVE', 'SHUTOFF', 'ERROR')), lambda state: {replace(state, status='SHUTOFF'), state}),
    **dict.fromkeys(
        ('attach', 'detach'), (frozenset(('ACTIVE', 'SHUTOFF', 'SHELVED_OFFLOADED')), lambda state: {state})
    ),
    'restore': (frozenset((SOFT,)), lambda state: {State('ACTIVE', state.flavor), state}),
    'force_delete': (None, lambda state: {State(GONE, '')}),
}
_BODIES = {
    'migrate': {'migrate': None},
    'confirm': {'confirmResize': None},
    'revert': {'revertResize': None},
    'live': {'os-migrateLive': {'host': None, 'block_migration': 'auto'}},
    'stop': {'os-stop': None},
    'start': {'os-start': None},
    'reboot': {'reboot': {'type': 'SOFT'}},
    'hard_reboot': {'reboot': {'type': 'HARD'}},
    'restore': {'restore': None},
    **{kind: {kind: None} for kind in ('suspend', 'resume', 'rescue', 'unrescue', 'shelve', 'unshelve')},
    'rebuild': {'rebuild': {'imageRef': IMAGE}},
    'evacuate': {'evacuate': {}},
    'force_delete': {'forceDelete': None},
}


class Users:
    """``wrong(text)`` is called when an answer can't be true; ``rests(uuid)``: no operation works on that server."""

    def __init__(self, cloud: Cloud, wrong: Callable[[str], None], rests: Callable[[str], bool]) -> None:
        self._cloud, self._timeline, self.wrong, self._rests = cloud, cloud.timeline, wrong, rests
        self._belongings = Belongings(cloud)
        self._soft = bool(cloud.shape.options.get('reclaim_instance_interval'))
        self.known: dict[int, Known] = {}
        # Of ``busy`` users each asks something, or waits for a server to come to rest before it does.
        self.acts = self.accepted = self.busy = 0
        # Called with the kind of an accepted request and the server's uuid.
        self.heard: Callable[[str, str], None] = lambda kind, uuid: None

    def act(self, act: Act) -> None:
        """One request, and looks at what becomes of it."""
        if act.kind == 'create':
            known = self.known[act.server] = Known(act.server)
        elif act.server not in self.known:
            return
        else:
            known = self.known[act.server]
        self.busy += 1
        try:
            if act.patient:
                self._wait(known)
            if act.kind != 'create' and known.uuid is None:
                return
            if act.kind in BESIDE:
                self._belongings.beside(act, known.uuid or '')
                return
            self.acts += 1
            known.deletes += act.kind in DELETES
            before, others = set(known.may_be), len(known.accepted)
            response = self._send(act, known)
        except Refused as error:
            known.deletes -= act.kind in DELETES
            self._timeline.tell(f'{act.kind} s{act.server} {act.argument}: {error}')
            if 'refused' not in str(error):
                self._maybe(known, act)
            return
        finally:
            self.busy -= 1
        known.deletes -= act.kind in DELETES
        self._timeline.tell(f'{act.kind} s{act.server} {act.argument}: {response.status_int}{_reason(response)}')
        if response.status_int >= 500:
            if response.status_int != 503:
                self.wrong(f'{act.kind} s{act.server} is answered {response.status}: {response.text[:200]}')
            self._maybe(known, act)
        elif response.status_int == 400 and act.kind == 'evacuate':
            # It can't leave its host, which may not start it again while others are silent.
            known.may_be |= {replace(state, status='SHUTOFF') for state in known.may_be if state.status == 'ACTIVE'}
        elif response.status_int < 300:
            self._accepted(known, act, response, before, known.accepted[others:])
            self._look(known)
        elif response.status_int == 404 and act.kind not in ('attach', 'detach') and not self._may(known, GONE):
            # A server has no volume or port that it is asked to detach, or what it is to get was deleted.
            self.wrong(f's{act.server} is told to be gone and nobody deleted it ({act.kind})')

    def _wait(self, known: Known) -> None:
        turn = known.turns = known.turns + 1
        for _ in range(PATIENCE):
            # One after the other, and a moment after the server came to rest.
            if known.served == turn - 1 and known.uuid is not None and self._rests(known.uuid):
                break
            self._cloud.pause(1.0)
        known.served = turn

    def all_gone(self) -> None:
        """From now on every server may be gone."""
        for known in self.known.values():
            known.may_be.add(State(GONE, ''))

    def _send(self, act: Act, known: Known) -> webob.Response:
        cloud = self._cloud
        apis = [act.api, *(name for name in cloud.processes if name.startswith('api') and name != act.api)]
        for api in apis:
            try:
                return self._request(act, known, api)
            except Refused as error:
                if 'refused' not in str(error):
                    raise
        raise Refused('every API: connection refused')

    def _request(self, act: Act, known: Known, api: str) -> webob.Response:
        cloud = self._cloud
        if act.kind == 'create':
            return cloud.request(
                'POST',
                '/servers',
                {
                    'server': {
                        'name': f's{act.server}',
                        'flavorRef': self._flavor(act.argument),
                        **cloud.wishes(act.server),
                    }
                },
                api,
            )
        if act.kind == 'delete':
            return cloud.request('DELETE', f'/servers/{known.uuid}', None, api)
        if act.kind in ('attach', 'detach'):
            return cloud.request(*self._belongings.request(act, known.uuid or ''), api)
        body = {'resize': {'flavorRef': self._flavor(act.argument)}} if act.kind == 'resize' else _BODIES[act.kind]
        return cloud.request('POST', f'/servers/{known.uuid}/action', body, api)

    def _flavor(self, name: str) -> str:
        return self._cloud.flavors[[one for one, _, _ in self._cloud.shape.flavors].index(name)]

    # -- what may be --------------------------------------------------------------------------------------------------
    def _after(self, may_be: set[State], act: Act) -> set[State]:
        if act.kind == 'create':
            return {State('ACTIVE', act.argument), State('ERROR', act.argument)}
        if act.kind == 'delete':
            if not self._soft:
                return {State(GONE, '')}
            flavors = {state.flavor for state in may_be} | {state.back.flavor for state in may_be if state.back}
            # One that has no host yet is gone at once.
            return {State(GONE, ''), *(State(SOFT, flavor) for flavor in flavors if flavor)}
        statuses, after = (
            (frozenset(('ACTIVE', 'SHUTOFF')), _resized(act.argument)) if act.kind == 'resize' else _AFTER[act.kind]
        )
        return {new for state in may_be if statuses is None or state.status in statuses for new in after(state)}

    def _accepted(
        self, known: Known, act: Act, response: webob.Response, before: set[State], others: Sequence[Act]
    ) -> None:
        """``before``: what it could be when this was asked; ``others`` were answered since, and accepted before it or
        after it."""
        if act.kind == 'create':
            known.uuid = response.json['server']['id']
        elif act.kind not in DELETES and known.may_be == {State(GONE, '')} and not others:
            self.wrong(f'{act.kind} of s{act.server} is accepted after its deletion was')
        self.accepted += 1
        assert known.uuid is not None
        self.heard(act.kind, known.uuid)
        after = self._after(known.may_be, act)
        if others:
            earlier = self._after(before, act)
            for other in others:
                earlier |= self._after(earlier, other)
            after |= earlier | known.may_be
        if not after:
            self.wrong(f'{act.kind} of s{act.server} is accepted, which can only be {_names(known)}')
        known.may_be = after | ({State(GONE, '')} & known.may_be if self._soft else set())
        known.accepted.append(act)

    def _maybe(self, known: Known, act: Act) -> None:
        known.unknown = True
        if act.kind != 'create':
            known.may_be |= self._after(known.may_be, act)

    def _may(self, known: Known, status: str) -> bool:
        return any(state.status == status for state in known.may_be) or (status == GONE and known.deletes > 0)

    # -- what is told -------------------------------------------------------------------------------------------------
    def _look(self, known: Known) -> None:
        for pause in LOOKS:
            self._cloud.pause(pause)
            told = self.status(known)
            if told is None:
                continue
            if told[0] not in ('BUILD', 'RESIZE', 'REVERT_RESIZE', 'REBOOT', 'HARD_REBOOT', 'REBUILD'):
                break

    def status(self, known: Known) -> tuple[str, str] | None:
        """(status, flavor) as the API tells them now; None: it doesn't answer."""
        begun = self._timeline.now
        for api in [name for name in self._cloud.processes if name.startswith('api')]:
            try:
                response = self._cloud.request('GET', f'/servers/{known.uuid}', None, api)
            except Refused:
                continue
            if response.status_int == 404:
                told = (GONE, '')
            elif response.status_int == 200:
                server = response.json['server']
                told = (server['status'], server['flavor']['original_name'])
            else:
                if response.status_int != 503:
                    self.wrong(f'GET of s{known.number} is answered {response.status}: {response.text[:200]}')
                return None
            if told[0] == GONE and not self._may(known, GONE):
                self.wrong(f's{known.number} is told to be gone and nobody deleted it')
            if known.gone_told is not None and told[0] != GONE and begun > known.gone_told:
                self.wrong(f's{known.number} was told to be gone and is {told[0]} now')
            if told[0] == GONE and known.gone_told is None:
                known.gone_told = self._timeline.now
            if not known.told or known.told[-1] != told[0]:
                known.told.append(told[0])
                self._timeline.tell(f's{known.number} is told to be {told[0]} {told[1]}')
            return told
        return None


def _names(known: Known) -> str:
    return ', '.join(sorted(f'{state.status} {state.flavor}'.strip() for state in known.may_be)) or 'nothing'


def _reason(response: webob.Response) -> str:
    if response.status_int < 300:
        return ''
    try:
        return f' {next(iter(response.json.values()))["message"][:120]}'
    except (ValueError, KeyError, TypeError, AttributeError):
        return f' {response.text[:80]}'
