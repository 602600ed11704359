"""Whom flows ask, and what silence of hosts means for a choice."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.environment import HostsNotReporting
from kilonova.errors import Forbidden, NoValidHost, Unanswered, Unsent
from tests.unit.conductor.site import IMAGE, Site


def test_all_databases(site: Site) -> None:
    assert site.env.api is site.api
    assert site.env.all_databases() == [site.api, site.cell0, site.cell]


def test_an_image_that_may_not_be_deleted_stays(site: Site) -> None:
    site.images.refusals = [Forbidden('protected')]
    site.env.drop_image(IMAGE)
    assert site.images.deleted == []
    site.env.drop_image(IMAGE)
    assert site.images.deleted == [IMAGE]
    site.images.refusals = [Unanswered(who='images', reason='x')]
    with pytest.raises(Unanswered):
        site.env.drop_image(IMAGE)


def select(site: Site) -> Any:
    return site.env.select_destinations(site.ctxt, spec_obj=site.spec(), instance_uuids=['i'])


def test_a_choice(site: Site) -> None:
    site.choose('gpu1')
    ((found,),) = select(site)
    assert found.service_host == 'gpu1'


def test_no_host_is_left(site: Site) -> None:
    site.answers['select_destinations'] = NoValidHost(reason='none')
    with pytest.raises(NoValidHost, match='none'):
        select(site)


def test_no_host_while_some_may_be_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.answers['select_destinations'] = NoValidHost(reason='none')
    asked: list[Any] = []

    def unsure(db: Any, since: float) -> list[str]:
        asked.append((db, since))
        return ['gpu1', 'gpu2'] if db is site.cell else []

    monkeypatch.setattr(site.env.liveness, 'unsure', unsure)
    monkeypatch.setattr(site.env.liveness, 'now', lambda: 17.0)
    with pytest.raises(
        HostsNotReporting,
        match=(
            r'after an interruption of messaging, no heartbeat of gpu1, gpu2 has arrived '
            r'\(No valid host was found. none\)'
        ),
    ):
        select(site)
    assert asked == [(site.cell0, 17.0), (site.cell, 17.0)]


def test_what_was_not_sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """This conductor is cut off: that hosts weren't heard says nothing."""
    cut: list[int] = []
    monkeypatch.setattr(site.env.liveness, 'cut_off', lambda: cut.append(1))
    site.answers['select_destinations'] = Unsent(who='scheduler', reason='x')
    with pytest.raises(Unsent):
        select(site)
    assert cut == [1]


@pytest.mark.parametrize(
    ('client', 'option'),
    [
        ('networks', r'\[neutron\]'),
        ('volumes', r'\[cinder\]'),
        ('accelerators', r'\[cyborg\] or \[keystone_authtoken\]'),
    ],
)
def test_a_service_without_an_account_is_named(site: Site, client: str, option: str) -> None:
    """The operation waits: an operator sets the account and starts the conductor anew."""
    with pytest.raises(Unanswered, match=f'no account is set in {option}'):
        getattr(site.env, client)
