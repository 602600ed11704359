"""What of an error's text users get to read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kilonova.compute import operation
from kilonova.compute.keys import RunningTask
from kilonova.conductor import work
from kilonova.errors import Cause, DevicesFailed, KilonovaError, shortened, without_paths


@pytest.mark.parametrize(
    ('text', 'read'),
    [
        ("Could not open '/srv/kilonova/instances/u/disk': No space left", "Could not open 'disk': No space left"),
        ('qemu-img: /var/lib/x/disk.new: error (/dev/vfio/12)', 'qemu-img: disk.new: error (12)'),
        ('path=/a/b/c.xml,rest', 'path=c.xml,rest'),
        ('"/a/b/"', '"b"'),
    ],
)
def test_of_paths_of_a_host_only_the_name_is_left(text, read):
    assert without_paths(text) == read


@pytest.mark.parametrize(
    'text',
    [
        'http://image.test:9292/v2/images/x answers 500',
        'test:///a/b',
        'and/or, 2/3 of it',
        'device 0000:08:00.0 is gone',
        'No valid host was found. There are not enough hosts available.',
        '/',
        '',
    ],
)
def test_what_is_no_path_stays(text):
    assert without_paths(text) == text


def test_faults_and_events_have_no_paths_their_details_do():
    error = KilonovaError("The hypervisor could not start guest u: '/srv/x/disk' is missing")
    assert (
        work.readable(error)
        == operation.readable(error)
        == ("The hypervisor could not start guest u: 'disk' is missing")
    )
    started = operation.HostTask(SimpleNamespace(name='gpu1'), RunningTask('o/1.start/1'), None, None)
    started.begin('compute_start_instance')
    failure = started.event(error)
    assert '/srv/x' not in failure['details'] and '/srv/x/disk' in failure['traceback']
    assert work.readable(OSError('/srv/x/disk')) == 'OSError'


def test_devices_that_failed_are_named_and_data():
    error = DevicesFailed(addresses=['0000:08:00.0', '0000:09:00.0'], reason='cold')
    assert (error.addresses, error.reason, error.cause) == (('0000:08:00.0', '0000:09:00.0'), 'cold', Cause.DEVICE)
    assert str(error) == 'Device(s) 0000:08:00.0, 0000:09:00.0 cannot be used: cold'
    # As it comes out of a message between daemons.
    assert str(DevicesFailed(str(error))) == str(error)


@pytest.mark.parametrize(
    ('text', 'most', 'read'),
    [
        ('the disk is full', 16, 'the disk is full'),
        ('the disk is full', 15, 'the disk is…'),
        ('the disk is full', 12, 'the disk is…'),
        ('the disk is full', 11, 'the disk…'),
        ('said: no; more', 10, 'said: no…'),
        ('a ' + 'x' * 30, 10, 'a xxxxxxx…'),
        ('x' * 11, 10, 'x' * 9 + '…'),
        ('', 10, ''),
        ('some\nlines', 9, 'some…'),
    ],
)
def test_texts_end_at_the_border_of_a_word(text, most, read):
    """A text that is too long is cut at the end of a word and ends with `…`."""
    assert shortened(text, most) == read and len(read) <= most
