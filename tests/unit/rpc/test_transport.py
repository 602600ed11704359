"""Errors on the bus: the class and the text come back, the other side's traceback doesn't."""
from __future__ import annotations

import sys

from oslo_messaging._drivers import common

from kilonova.errors import REMOTE_MODULES, KilonovaError, NoValidHost
from kilonova.rpc import transport


class Elsewhere(KilonovaError):
    msg_fmt = 'device %(address)s is odd'


def over_the_bus(error: KilonovaError) -> KilonovaError:
    """What the caller's side of oslo.messaging makes of it."""
    try:
        raise transport._for_the_bus(error)
    except KilonovaError:
        data = common.serialize_remote_exception(sys.exc_info())
    return common.deserialize_remote_exception(data, REMOTE_MODULES)


def test_an_error_comes_back_as_its_own_class_without_the_traceback() -> None:
    received = over_the_bus(NoValidHost(reason='There are not enough hosts available.'))
    assert 'Traceback' in str(received)
    error = transport._as_own(received)
    assert type(error) is NoValidHost
    assert str(error) == 'No valid host was found. There are not enough hosts available.'


def test_a_class_that_the_other_side_does_not_take_keeps_name_and_text() -> None:
    error = transport._as_own(over_the_bus(Elsewhere(address='0000:08:00.0')))
    assert type(error) is KilonovaError
    assert str(error) == 'Elsewhere: device 0000:08:00.0 is odd'
