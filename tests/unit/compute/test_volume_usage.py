"""What a host counts of its guests' volumes, and tells."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.compute import records, volume_usage
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeCounters
from tests.unit.compute.cell import new_context
from tests.unit.virt.builders import VOLUME, VOLUME2, new_volume

SERVERS = [f'{number}1111111-1111-4111-8111-111111111111' for number in range(4)]

COUNTED = (
    'instance_uuid',
    'volume_id',
    'curr_reads',
    'curr_read_bytes',
    'curr_writes',
    'curr_write_bytes',
    'project_id',
    'user_id',
    'availability_zone',
)


class Server:
    project_id, user_id, availability_zone = 'p', 'u', 'nova'

    def __init__(self, uuid: str, *volumes: str) -> None:
        self.uuid, self.volumes = uuid, [new_volume(volume_id=volume) for volume in volumes]


@pytest.fixture
def looks(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``looks(counters)``: of a host with guests that count so, {server: {volume: counters}, or an error}; how many
    volumes it told of, and the calls to the conductor, the events."""
    manager = cloud.host('gpu1')

    def look(guests: dict[str, Any], most: int = 1000) -> tuple[int, list[list[Any]], list[Any]]:
        calls: list[list[Any]] = []
        events: list[Any] = []

        def usage(instance: Any) -> Any:
            found = guests[instance.uuid]
            if isinstance(found, Exception):
                raise found
            return found

        def count(conn: Any, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
            calls.append([tuple(one[name] for name in COUNTED) for one in found])
            return found[:1]

        servers = [Server(uuid, *(found if isinstance(found, dict) else [VOLUME])) for uuid, found in guests.items()]
        monkeypatch.setattr(records, 'instances', lambda ctxt, host: servers if host == 'gpu1' else [])
        monkeypatch.setattr(manager.host.driver.volumes, 'usage', usage)
        monkeypatch.setattr('kilonova.db.queries.volume_usage.count', count)
        monkeypatch.setattr(
            manager.host,
            'notify',
            type(
                'Notify',
                (),
                {'emit': staticmethod(lambda ctxt, event, **facts: events.append((event, facts['usage'].volume_id)))},
            ),
        )
        monkeypatch.setattr(volume_usage, 'MOST', most)
        return volume_usage.poll(manager.host, new_context()), calls, events

    return look


def test_one_call_takes_what_all_guests_count(looks: Any) -> None:
    """What the conductor answers is told."""
    told, calls, events = looks(
        {
            SERVERS[0]: {VOLUME: VolumeCounters(1, 2, 3, 4), VOLUME2: VolumeCounters()},
            SERVERS[1]: {},
            SERVERS[2]: {VOLUME: VolumeCounters(5, 6, 7, 8)},
        }
    )
    assert calls == [
        [
            (SERVERS[0], VOLUME, 1, 2, 3, 4, 'p', 'u', 'nova'),
            (SERVERS[0], VOLUME2, 0, 0, 0, 0, 'p', 'u', 'nova'),
            (SERVERS[2], VOLUME, 5, 6, 7, 8, 'p', 'u', 'nova'),
        ]
    ]
    assert (told, events) == (1, [('volume.usage', VOLUME)])


def test_no_call_is_too_large_and_none_is_empty(looks: Any) -> None:
    guests = {uuid: {VOLUME: VolumeCounters()} for uuid in SERVERS[:3]}
    told, calls, _ = looks(guests, most=2)
    assert (told, [len(call) for call in calls]) == (2, [2, 1])
    assert looks({}) == looks({SERVERS[0]: {}}) == (0, [], [])


def test_a_guest_that_goes_meanwhile_stops_no_other(looks: Any, caplog: pytest.LogCaptureFixture) -> None:
    told, calls, _ = looks(
        {
            SERVERS[0]: GuestFailed(act='usage', uuid=SERVERS[0], reason='it is off'),
            SERVERS[1]: {VOLUME: VolumeCounters(9)},
        }
    )
    assert told == 1 and [call[0][0] for call in calls] == [SERVERS[1]]
    assert 'Could not read the volume statistics' in caplog.text and 'it is off' in caplog.text
    with pytest.raises(errors.Unavailable):
        looks({SERVERS[0]: HypervisorUnavailable(host='gpu1', reason='gone')})
