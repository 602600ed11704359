"""TLS to the broker and the databases: what the configuration says reaches the library that connects."""

from __future__ import annotations

import ssl
from typing import Any

import psycopg2
import pymysql
import pytest
from kombu import connection as kombu_connection

from kilonova.cmd.daemon import parts
from kilonova.context import get_admin_context
from kilonova.db import engine

# oslo.messaging says so for ssl_version and others of its own options.
pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


class Asked(Exception):
    """The connection would have been made with these arguments."""


def ask(*args: Any, **kwargs: Any) -> Any:
    raise Asked(args, kwargs)


def connect_to_broker(conf: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the AMQP library is given when the first message is sent."""
    monkeypatch.setattr(kombu_connection, 'Connection', ask)
    transport = parts.transport(conf)
    with pytest.raises(Asked) as caught:
        transport.send('cast', 'conductor', None, None, '3.0', get_admin_context(), 'ping', {})
    return caught.value.args[1]


def rabbit(parse: Any, options: str = '') -> Any:
    conf = parse(sections=f'[oslo_messaging_rabbit]\n{options}')
    conf_text = 'rabbit://kilonova:secret@broker.example:5671/'
    parts.transport(conf).close()
    conf.set_override('transport_url', conf_text)
    return conf


def test_tls_to_the_broker(parse, monkeypatch):
    conf = rabbit(
        parse,
        'ssl = true\nssl_ca_file = /etc/ssl/ca.pem\nssl_cert_file = /etc/ssl/c.pem\nssl_key_file = /etc/ssl/k.pem\n',
    )
    asked = connect_to_broker(conf, monkeypatch)['ssl']
    assert asked['ca_certs'] == '/etc/ssl/ca.pem'
    assert asked['cert_reqs'] == ssl.CERT_REQUIRED
    assert (asked['certfile'], asked['keyfile']) == ('/etc/ssl/c.pem', '/etc/ssl/k.pem')


def test_without_the_option_there_is_none(parse, monkeypatch):
    assert not connect_to_broker(rabbit(parse), monkeypatch)['ssl']


@pytest.fixture
def connect(parse):
    """Parse a configuration whose databases are at a URL, and open the section's one."""

    def connect(url: str) -> None:
        conf = parse()
        for group in ('database', 'api_database'):
            conf.set_override('connection', url, group=group)
        databases = engine.configure(conf)
        for database in (databases.api(), databases.main()):
            with pytest.raises(Asked) as caught, database.read():
                pass
        return caught.value.args[1]

    return connect


def test_tls_to_mysql(connect, monkeypatch):
    monkeypatch.setattr(pymysql, 'connect', ask)
    asked = connect(
        'mysql+pymysql://u:p@db/kilonova?ssl_ca=/etc/ssl/ca.pem&ssl_cert=/etc/ssl/c.pem'
        '&ssl_key=/etc/ssl/k.pem&ssl_check_hostname=true'
    )
    assert asked['ssl'] == {
        'ca': '/etc/ssl/ca.pem',
        'cert': '/etc/ssl/c.pem',
        'key': '/etc/ssl/k.pem',
        'check_hostname': True,
    }
    assert asked['sql_mode'] == 'TRADITIONAL'


def test_tls_to_postgresql(connect, monkeypatch):
    monkeypatch.setattr(psycopg2, 'connect', ask)
    asked = connect('postgresql+psycopg2://u:p@db/kilonova?sslmode=verify-full&sslrootcert=/etc/ssl/ca.pem')
    assert (asked['sslmode'], asked['sslrootcert']) == ('verify-full', '/etc/ssl/ca.pem')
