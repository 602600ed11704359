"""Computes of the cloud in one process have no database: a conductor writes their objects, asked by a message."""

from __future__ import annotations

from typing import Any

from kilonova import objects
from tests.fixtures.cloud import Cloud

ASKED = [('call', 'conductor', None, 'object_action')]


def test_an_object_that_a_compute_asked_for_writes_by_a_message(emptied: Cloud) -> None:
    """Both an object of its own and one inside a list, whose answer came from a conductor."""
    server = emptied.boot(emptied.flavor())
    host = emptied.host_of(server)
    ctxt = emptied.compute_context(host)
    service = objects.Service.get_by_args(ctxt, host, 'nova-compute')
    (instance,) = objects.InstanceList.get_by_host(ctxt, host)
    emptied.messages.clear()
    service.disabled_reason = 'busy'
    service.save()
    assert emptied.messages == ASKED
    instance.display_description = 'changed'
    instance.save()
    assert emptied.messages == ASKED * 2
    assert objects.Instance.get_by_uuid(ctxt, server).display_description == 'changed'


def test_an_object_that_a_compute_was_sent_writes_by_a_message(emptied: Cloud, monkeypatch: Any) -> None:
    server = emptied.boot(emptied.flavor())
    endpoint: Any = emptied.computes[emptied.host_of(server)].endpoint
    stop, found = endpoint.stop_instance, []

    def stopped(ctxt: Any, instance: objects.Instance, **rest: Any) -> Any:
        before = len(emptied.messages)
        instance.display_description = 'changed'
        instance.save()
        found.extend(emptied.messages[before:])
        return stop(ctxt, instance=instance, **rest)

    monkeypatch.setattr(endpoint, 'stop_instance', stopped)
    emptied.action(server, 'os-stop')
    assert emptied.status(server) == 'SHUTOFF'
    assert found == ASKED
