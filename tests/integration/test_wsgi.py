"""kilonova.wsgi behind a real WSGI server: requests, and casts that reach the conductor."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.beside import Beside, free_port
from tests.integration.site import MICROVERSION, Site
from tools.cloud import http


def test_the_api_behind_gunicorn(site: Site, tmp_path: Path) -> None:
    """Two processes of two threads. A boot and a delete go through; CORS and the health check answer."""
    port, flavor = free_port(), site.flavor('wsgi-gpu', gpus=1)
    own = tmp_path / 'cors.conf'
    own.write_text(f'[cors]\nallowed_origin = https://dashboard.example\n[DEFAULT]\nlog_file = {tmp_path}/api.log\n')
    command = (
        'gunicorn',
        '--bind',
        f'127.0.0.1:{port}',
        '--workers',
        '2',
        '--worker-class',
        'gthread',
        '--threads',
        '2',
        'kilonova.wsgi:application',
    )
    with Beside(
        site, *command, directory=tmp_path, configured=False, env={'KILONOVA_CONFIG_FILES': f'{site.layout.conf};{own}'}
    ) as api:
        api.until(lambda: http.answers(f'http://127.0.0.1:{port}/', (200, 300)), 'an answer')
        headers = {
            'X-Auth-Token': site.token('demo'),
            'Content-Type': 'application/json',
            'OpenStack-API-Version': f'compute {MICROVERSION}',
            'Origin': 'https://dashboard.example',
        }
        url = f'http://127.0.0.1:{port}/v2.1'
        body = {'server': {'name': 'wsgi', 'flavorRef': flavor, 'imageRef': site.image, 'networks': 'none'}}
        reply = http.send('POST', f'{url}/servers', data=json.dumps(body).encode(), headers=headers, timeout=60)
        assert reply.status == 202, reply.body
        assert reply.headers['access-control-allow-origin'] == 'https://dashboard.example'
        assert reply.headers['location'].startswith(url)
        server = reply.data['server']['id']
        site.await_status([server], 'ACTIVE')
        codes = site.at_once(
            lambda number: http.send('GET', f'{url}/servers/{server}', headers=headers, timeout=60).status, range(20)
        )
        assert set(codes) == {200}
        assert http.send('DELETE', f'{url}/servers/{server}', headers=headers, timeout=60).status == 204
        assert api.get(port, '/healthcheck').status == 200
        assert api.get(port, '/v2.1/servers').status == 401
        assert api.terminate() == 0
    assert 'Starting api node (version' in (tmp_path / 'api.log').read_text()
