"""One story in one process: the cloud stands, users act, things go wrong, everything works again, all is checked.

result = run(cloud, story)
result.wrong, result.digest, result.lines
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.checks import Checks
from tests.simulation.cloud import Cloud, Refused
from tests.simulation.parts import Act, Trouble
from tests.simulation.probe import Probe
from tests.simulation.prompt import Prompt
from tests.simulation.story import Story
from tests.simulation.timeline import Endless, Process
from tests.simulation.trouble import Troubles
from tests.simulation.users import Users

# Lines of the trace that are kept for a failing story.
KEPT = 200_000


@dataclass
class Result:
    """``wrong``: what didn't hold, the first thing; None: all is well."""

    seed: str
    wrong: str | None = None
    digest: str = ''
    virtual: float = 0.0
    steps: int = 0
    statements: int = 0
    messages: int = 0
    acts: int = 0
    accepted: int = 0
    cpu: float = 0.0
    lines: list[str] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """As JSON's types."""
        return asdict(self)


class Wrong(Endless):
    """Something doesn't hold."""


def run(cloud: Cloud, story: Story) -> Result:
    """Once a process: afterwards the cloud is of no use."""
    timeline = cloud.timeline
    timeline.reseed(f'{story.seed}')
    timeline.slow, timeline.slow_time, timeline.pace = story.slow, story.slow_time, story.pace
    begun, steps, statements, messages = timeline.now, timeline.steps, cloud.stores.statements, cloud.bus.messages
    timeline.limit = timeline.steps + 300_000 + 20_000 * len(story.acts)
    result = Result(story.seed)
    names: dict[str, str] = {}
    lines: list[tuple[float, str, str]] = []
    timeline.tellers.append(lambda moment, who, what: lines.append((moment - begun, who, what)))

    def wrong(text: str) -> None:
        if result.wrong is None:
            result.wrong = text
            timeline.tell(f'WRONG: {text}', 'checks')
            timeline.after(0, _stop)

    checks = Checks(cloud, wrong)
    users = Users(cloud, wrong, checks.rests)
    checks.install()
    if cloud.cyborg is not None:
        cloud.cyborg.begin(story.seed)
    if cloud.neutron is not None:
        cloud.neutron.begin(story.seed)
    if cloud.cinder is not None:
        cloud.cinder.begin(story.seed)
    try:
        timeline.complete(lambda: _play(cloud, story, users, checks))
    except Wrong:
        pass
    except Endless as error:
        result.wrong = result.wrong or f'endless: {error}'
    if timeline.failures and result.wrong is None:
        result.wrong = f'a thread ended with an error: {timeline.failures[0]}'
    result.digest, result.virtual = timeline.digest(), timeline.now - begun
    result.steps, result.acts, result.accepted = timeline.steps - steps, users.acts, users.accepted
    result.statements, result.messages = cloud.stores.statements - statements, cloud.bus.messages - messages
    if result.wrong is not None or os.environ.get('SIMULATION_TRACE'):
        names.update({known.uuid: f's{known.number}' for known in users.known.values() if known.uuid})
        result.wrong = result.wrong and _named(result.wrong, names)
        result.lines = [_named(f'{moment:9.3f}  {who:11} {what}', names) for moment, who, what in lines[-KEPT:]]
    return result


def _stop() -> None:
    raise Wrong


def _named(text: str, names: dict[str, str]) -> str:
    for uuid, name in names.items():
        if uuid[:8] in text:
            text = text.replace(uuid, name).replace(uuid[:8], name)
    return text


def _play(cloud: Cloud, story: Story, users: Users, checks: Checks) -> None:
    timeline, troubles = cloud.timeline, Troubles(cloud)
    user = Process('user')
    prompt = Prompt(cloud, story, troubles.spans, checks, users.wrong)
    users.heard = prompt.accepted
    troubles.cut = checks.power_cut.begin

    def send(act: Act) -> None:
        timeline.after(
            act.time,
            lambda: timeline.spawn(
                user, lambda: users.act(act), act.kind, seed=f'{story.seed}/{act.server}/{act.kind}/{act.time}'
            ),
        )

    def break_(trouble: Trouble) -> None:
        timeline.after(trouble.time, lambda: troubles.begin(trouble))

    for trouble in story.troubles:
        break_(trouble)
    for act in story.acts:
        send(act)
    end = max(
        [
            0.0,
            *(act.time + 5.0 for act in story.acts),
            *(one.time + min(one.lasts, 120.0) for one in story.troubles if one.kind != 'clock'),
        ]
    )
    cloud.pause(end)
    timeline.tell('the troubles are over')
    prompt.over = True
    timeline.after(0, troubles.end_all)
    timeline.slow = 0.0
    cloud.pause(5.0)
    while users.busy or troubles.busy:
        cloud.pause(5.0)
    checks.wait()
    if cloud.neutron is not None and cloud.neutron.dropped:
        # A server may have a port until Neutron tells of it once more.
        cloud.tell_of_ports(checks.servers())
        checks.wait()
    checks.settled(users)
    if cloud.shape.has_functions:
        Probe(cloud, users, checks, users.wrong).go()
    timeline.tell('all servers are deleted')
    users.all_gone()
    for server in checks.servers():
        _delete(cloud, server)
    cloud.pause(5.0)
    checks.wait()
    cloud.pause(5.0)
    checks.empty()


def _delete(cloud: Cloud, server: str) -> None:
    try:
        response = cloud.request('POST', f'/servers/{server}/action', {'forceDelete': None})
    except Refused:
        return
    cloud.timeline.tell(f'forceDelete {server}: {response.status_int}')
