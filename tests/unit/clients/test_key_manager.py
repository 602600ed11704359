"""Keys of volumes: the fixed one, and those of a Barbican, which castellan itself asks here."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from oslo_config import cfg

from kilonova import conf as kilonova_conf
from kilonova.clients.key_manager import FIXED, KeyManager, KeyNotAvailable

KEY_ID, SECRET = '1d9a5a1e-7f0f-4b4a-8f57-1c0de8f3f0aa', bytes(range(32))


def new_conf(**options: Any) -> cfg.ConfigOpts:
    conf = kilonova_conf.new()
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        conf.set_override(name, value, group='key_manager')
    return conf


def test_the_fixed_key_needs_no_library() -> None:
    """It is what Cinder makes of the same option: hexadecimal digits in small letters."""
    keys = KeyManager(new_conf(fixed_key='00AB' * 16))
    assert keys.passphrase(FIXED) == '00ab' * 16 and keys._library is None


@pytest.mark.parametrize('key', [None, '', '123', 'no key'])
def test_a_fixed_key_that_is_none(key: str | None) -> None:
    with pytest.raises(
        KeyNotAvailable,
        match=f'Key {FIXED} cannot be read: .key_manager.fixed_key of this host must '
        'have the same value as in cinder.conf: pairs of hexadecimal digits',
    ):
        KeyManager(new_conf(fixed_key=key)).passphrase(FIXED)


class Services(BaseHTTPRequestHandler):
    """Keystone and Barbican, as far as a key is read."""

    asked: list[tuple[str, str]] = []
    # Keys are told while it is set.
    answers = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.asked.append(('login', body['auth']['identity']['password']['user']['name']))
        self._answer(
            {
                'token': {
                    'user': {'id': 'u', 'name': 'kilonova', 'domain': {'id': 'd', 'name': 'D'}},
                    'methods': ['password'],
                    'expires_at': '2099-01-01T00:00:00.000000Z',
                    'issued_at': '2025-01-01T00:00:00.000000Z',
                }
            },
            token='t',
        )

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get('X-Auth-Token', '')))
        url = f'http://{self.headers["Host"]}'
        if self.path.endswith('/payload'):
            self.answers.wait()
            self._answer(SECRET)
        elif self.path.endswith(KEY_ID):
            self._answer(
                {
                    'secret_ref': f'{url}/v1/secrets/{KEY_ID}',
                    'secret_type': 'symmetric',
                    'algorithm': 'aes',
                    'bit_length': 256,
                    'mode': 'cbc',
                    'status': 'ACTIVE',
                    'name': None,
                    'content_types': {'default': 'application/octet-stream'},
                    'created': '2025-01-01T00:00:00.000000',
                    'updated': None,
                    'expiration': None,
                }
            )
        elif self.path.startswith('/v1/'):
            self._answer({'title': 'Not Found', 'description': 'Secret not found.', 'code': 404}, status=404)
        else:
            self._answer(
                {
                    'version': {
                        'id': 'v3.14',
                        'status': 'stable',
                        'links': [{'rel': 'self', 'href': f'{url}/identity/v3/'}],
                    }
                }
            )

    def _answer(self, body: Any, status: int = 200, token: str | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/octet-stream' if isinstance(body, bytes) else 'application/json')
        self.send_header('Content-Length', str(len(data)))
        if token:
            self.send_header('X-Subject-Token', token)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def keys() -> Iterator[KeyManager]:
    Services.asked = []
    Services.answers.set()
    server = ThreadingHTTPServer(('127.0.0.1', 0), Services)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        url = f'http://127.0.0.1:{server.server_port}'
        made = KeyManager(new_conf())
        conf = made._conf
        made_of = {
            'key_manager': {
                'auth_type': 'keystone_password',
                'auth_url': f'{url}/identity/v3',
                'username': 'kilonova',
                'password': 'open-sesame',
                'project_name': 'service',
                'user_domain_id': 'default',
                'project_domain_id': 'default',
            },
            'barbican': {'barbican_endpoint': url, 'barbican_api_version': 'v1'},
        }
        # As an operator's file has them: the library registers its options when it is loaded.
        from castellan import options

        for group, opts in options.list_opts():
            conf.register_opts(opts, group=group)
        for group, values in made_of.items():
            for name, value in values.items():
                conf.set_override(name, value, group=group)
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_key_of_barbican(keys: KeyManager, caplog: pytest.LogCaptureFixture) -> None:
    """It stands in no log, whatever the level. One that isn't there, and services that aren't, are named."""
    with caplog.at_level(logging.DEBUG):
        assert keys.passphrase(KEY_ID) == SECRET.hex()
    assert ('login', 'kilonova') in Services.asked and (f'/v1/secrets/{KEY_ID}/payload', 't') in Services.asked
    assert SECRET.hex() not in caplog.text and repr(SECRET)[2:-1] not in caplog.text and 'sesame' not in caplog.text
    missing = KEY_ID.replace('1', '2')
    with pytest.raises(KeyNotAvailable, match=f'Key {missing} cannot be read: ManagedObjectNotFoundError: .*{missing}'):
        keys.passphrase(missing)


def test_a_service_that_hangs(keys: KeyManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete of the server waits for who waits here: no longer than other services are waited for."""
    assert keys.passphrase(KEY_ID) == SECRET.hex()
    monkeypatch.setattr('kilonova.clients.key_manager.ANSWER', 0.3)
    Services.answers.clear()
    try:
        with pytest.raises(KeyNotAvailable, match=f'Key {KEY_ID} cannot be read: there is no answer after 0.3 s'):
            keys.passphrase(KEY_ID)
    finally:
        Services.answers.set()


def test_a_key_manager_that_nobody_can_ask() -> None:
    """Without an account, and of a kind that isn't there."""
    with pytest.raises(KeyNotAvailable, match=f'Key {KEY_ID} cannot be read: AuthTypeInvalidError'):
        KeyManager(new_conf()).passphrase(KEY_ID)
    conf = new_conf()
    from castellan import key_manager

    conf.register_opts(key_manager.key_manager_opts, group='key_manager')
    conf.set_override('backend', 'nosuch.Manager', group='key_manager')
    with pytest.raises(KeyNotAvailable, match='nosuch'):
        KeyManager(conf).passphrase(KEY_ID)
