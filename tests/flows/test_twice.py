"""Each message of a flow is delivered twice: right after the first time, and when everything is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.errors import KilonovaError
from tests.fixtures.cloud import Cloud
from tests.flows.cases import ASKING_HOSTS, CASES, check, everything, in_flow
from tests.flows.test_fencing import forget_keys
from tests.flows.test_undos import NAMES, Failure


def once_more(deliver: Callable[[], Any]) -> None:
    """Nobody waits for this answer."""
    with contextlib.suppress(KilonovaError):
        deliver()


class Kept:
    """What delivers each message of a flow once more."""

    def __init__(self, cloud: Cloud) -> None:
        self.messages: list[tuple[str, Callable[[], Any]]] = []
        cloud.on_message = self.on_message

    def on_message(
        self, kind: str, topic: str, host: str | None, method: str, args: dict[str, Any], deliver: Callable[[], Any]
    ) -> Any:
        if kind == 'cast' or in_flow():
            self.messages.append((method, deliver))
        return deliver()

    def deliver_again(self, cloud: Cloud) -> None:
        """All of them, one by one: nothing changes."""
        cloud.on_message = None
        before = everything(cloud)
        for method, deliver in self.messages:
            once_more(deliver)
            cloud.settle()
            now = everything(cloud)
            assert now == before, f'{method} came again and changed something'


@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_each_message_comes_again_at_once(ground, name):
    case, twice = CASES[name], []
    server = case.before(ground)

    def on_message(kind, topic, host, method, args, deliver):
        answer = deliver()
        if kind == 'cast' or in_flow():
            twice.append(method)
            once_more(deliver)
        return answer

    ground.on_message = on_message
    server = case.act(ground, server)
    ground.settle()
    ground.on_message = None
    check(ground, case, server, case.good)
    assert len(twice) > 1


@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_each_message_comes_again_when_everything_is_over(ground, name):
    """Ten minutes later: hosts know nothing of what they did."""
    case = CASES[name]
    server = case.before(ground)
    kept = Kept(ground)
    server = case.act(ground, server)
    ground.settle()
    forget_keys(ground)
    kept.deliver_again(ground)
    check(ground, case, server, case.good)
    assert len(kept.messages) > 1


@pytest.mark.parametrize('name', NAMES)
def test_each_message_of_a_failed_flow_comes_again(ground, monkeypatch, name):
    """Of its undos too, when the next one of the same kind went well."""
    case = CASES[name]
    server = case.before(ground)
    with monkeypatch.context() as patch:
        failure, kept = Failure(ground, patch, case), Kept(ground)

        def on_message(kind, topic, host, method, args, deliver):
            return kept.on_message(
                kind, topic, host, method, args, lambda: failure.on_message(kind, topic, host, method, args, deliver)
            )

        ground.on_message = on_message
        server = case.act(ground, server)
        ground.settle()
    ground.on_message = None
    check(ground, case, server, case.bad)
    assert failure.happened
    # From now on a message isn't disturbed any more.
    failure.over = True
    if case.kind != 'boot':
        case.act(ground, server)
        ground.settle()
        assert case.status(ground, server) == case.good
    forget_keys(ground)
    kept.deliver_again(ground)
    ground.assert_clean()
