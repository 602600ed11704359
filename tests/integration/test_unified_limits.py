"""Limits of a real Keystone, by the type of GPU: an API of the test's own beside the cloud's."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.beside import Beside, free_port
from tests.integration.site import ALIAS, MICROVERSION, Site
from tools.cloud import http, identity

NAME = f'alias:{ALIAS}'


def test_limits_of_keystone(site: Site, tmp_path: Path) -> None:
    """A registered limit holds for every project, a project's own instead of it; both from the next request on."""
    keystone = identity.Keystone(site.url('keystone'), site.cloud.secrets['admin'])
    flavor, port = site.flavor('limited-gpu', gpus=1), free_port()
    service = keystone.named('services')['kilonova']['id']
    endpoint = next(
        row for row in keystone.rows('endpoints') if (row['service_id'], row['interface']) == (service, 'public')
    )

    def register(kind: str, **more: object) -> str:
        body = {kind: [{'service_id': service, 'region_id': endpoint['region_id'], 'resource_name': NAME, **more}]}
        made = http.call('POST', f'{keystone.url}/{kind}', body, token=keystone.token).data
        return f'{keystone.url}/{kind}/{made[kind][0]["id"]}'

    # As the service catalogue's region is that of the endpoint, so are the limits.
    made = [register('registered_limits', default_limit=0)]
    settings = '\n'.join(
        (
            '[DEFAULT]',
            'host = limits',
            f'osapi_compute_listen_port = {port}',
            '[health]',
            f'api_port = {free_port()}',
            '[quota]',
            'driver = nova.quota.UnifiedLimitsDriver',
            'unified_limits_resource_list =',
            '[oslo_limit]',
            'auth_type = password',
            f'auth_url = {keystone.url}',
            'username = admin',
            'user_domain_name = Default',
            f'password = {site.cloud.secrets["admin"]}',
            'system_scope = all',
            f'endpoint_id = {endpoint["id"]}',
            '',
        )
    )
    headers = {
        'X-Auth-Token': site.token('demo'),
        'Content-Type': 'application/json',
        'OpenStack-API-Version': f'compute {MICROVERSION}',
    }

    def create() -> http.Reply:
        body = {'server': {'name': 'limited', 'flavorRef': flavor, 'imageRef': site.image, 'networks': 'none'}}
        return http.send(
            'POST', f'http://127.0.0.1:{port}/v2.1/servers', data=json.dumps(body).encode(), headers=headers, timeout=60
        )

    try:
        with Beside(site, 'kilonova-api', directory=tmp_path, settings=settings) as api:
            api.until(lambda: http.answers(f'http://127.0.0.1:{port}/', (200, 300)), 'an answer')
            refused = create()
            assert (refused.status, refused.data['forbidden']['message']) == (
                403,
                f'Quota exceeded for {NAME}: Requested 1, but already used 0 of 0 {NAME}',
            ), refused.body
            project = keystone.named('projects')['demo']['id']
            made.insert(0, register('limits', project_id=project, resource_limit=1))
            accepted = create()
            assert accepted.status == 202, accepted.body
            again = create()
            assert again.data['forbidden']['message'] == (
                f'Quota exceeded for {NAME}: Requested 1, but already used 1 of 1 {NAME}'
            )
            site.await_status([accepted.data['server']['id']], 'ACTIVE')
            assert api.terminate() == 0
    finally:
        for url in made:
            http.call('DELETE', url, token=keystone.token)
