from __future__ import annotations

import pytest
from oslo_config import cfg

from kilonova import errors
from kilonova.clients import session
from kilonova.conf import glance, keystone_authtoken, placement


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    for section in (glance, keystone_authtoken, placement):
        conf.register_opts(section.OPTS, group=section.GROUP)
    conf([], project='kilonova', default_config_files=[])
    return conf


def test_section_gives_endpoint_timeout_and_type(conf):
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://127.0.0.1:1/placement', 'placement')
    adapter = session.adapter(conf, 'placement')
    assert adapter.get_endpoint() == 'http://127.0.0.1:1/placement'
    assert adapter.service_type == 'placement'
    assert adapter.session.timeout == 60


def test_credentials_fall_back_to_another_section(conf):
    conf.set_override('auth_type', 'none', 'keystone_authtoken')
    assert session.adapter(conf, 'glance').session.auth is None
    assert session.adapter(conf, 'glance', fallback='keystone_authtoken').session.auth is not None


def test_nobody_listening_is_unanswered(conf):
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://127.0.0.1:1', 'placement')
    with pytest.raises(errors.Unanswered, match='Placement does not answer'):
        session.send(session.adapter(conf, 'placement'), 'Placement', 'PUT', '/allocations/x')


def test_no_credentials_at_all_is_unanswered(conf):
    with pytest.raises(errors.Unanswered):
        session.send(session.adapter(conf, 'placement'), 'Placement', 'GET', '/')
