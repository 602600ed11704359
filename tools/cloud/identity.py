"""Projects, users, roles, services and endpoints in Keystone: creates what is missing, corrects what differs.

keystone = Keystone(url, password)
reconcile(keystone, ports, secrets)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tools.cloud import render
from tools.cloud.http import call

SERVICES = (('kilonova', 'compute', 'api'), ('glance', 'image', 'glance'), ('placement', 'placement', 'placement'))
# Besides, where the cloud has accelerators.
ACCELERATORS = ('cyborg', 'accelerator', 'cyborg')
INTERFACES = ('public', 'internal', 'admin')
# Besides, where it has networks.
NETWORKS = ('neutron', 'network', 'neutron')
# Besides, where it has volumes.
VOLUMES = ('cinder', 'block-storage', 'cinder')
# user, project, roles: the daemons' accounts, and a plain member elsewhere.
ACCOUNTS = (
    ('kilonova', 'service', ('service', 'admin')),
    ('glance', 'service', ('service', 'admin')),
    ('placement', 'service', ('service', 'admin')),
    ('cyborg', 'service', ('service', 'admin')),
    ('neutron', 'service', ('service', 'admin')),
    ('cinder', 'service', ('service', 'admin')),
    ('demo', 'demo', ('member', 'reader')),
)


class Keystone:
    """Keystone's v3 API as the administrator."""

    def __init__(self, url: str, password: str) -> None:
        self.url = url
        self._password = password
        self._token: str | None = None
        self._fetched = 0.0

    @property
    def token(self) -> str:
        """A token that is good for an hour at least."""
        if self._token is None or time.monotonic() - self._fetched > 3600:
            self._token = issue_token(self.url, 'admin', 'admin', self._password)
            self._fetched = time.monotonic()
        return self._token

    def named(self, collection: str) -> dict[str, dict[str, Any]]:
        """Return the resources of a collection by name."""
        return {row['name']: row for row in self.rows(collection)}

    def rows(self, collection: str) -> list[dict[str, Any]]:
        """Return the resources of a collection."""
        found: list[dict[str, Any]] = call('GET', f'{self.url}/{collection}', token=self.token).data[collection]
        return found

    def create(self, collection: str, **fields: object) -> dict[str, Any]:
        """Create a resource and return it."""
        kind = collection.removesuffix('s')
        made: dict[str, Any] = call('POST', f'{self.url}/{collection}', {kind: fields}, token=self.token).data[kind]
        return made

    def update(self, collection: str, identifier: str, **fields: object) -> None:
        """Change fields of a resource."""
        kind = collection.removesuffix('s')
        call('PATCH', f'{self.url}/{collection}/{identifier}', {kind: fields}, token=self.token)

    def grant(self, project: str, user: str, role: str) -> None:
        """Give a user a role in a project."""
        call('PUT', f'{self.url}/projects/{project}/users/{user}/roles/{role}', token=self.token)


def issue_token(url: str, user: str, project: str, password: str) -> str:
    """Return a token of a user of the default domain, scoped to a project."""
    default = {'name': 'Default'}
    body = {
        'auth': {
            'identity': {
                'methods': ['password'],
                'password': {'user': {'name': user, 'domain': default, 'password': password}},
            },
            'scope': {'project': {'name': project, 'domain': default}},
        }
    }
    return call('POST', f'{url}/auth/tokens', body).headers['x-subject-token']


def reconcile(
    keystone: Keystone,
    ports: Mapping[str, int],
    secrets: Mapping[str, str],
    *,
    accelerators: bool = False,
    networks: bool = False,
    volumes: bool = False,
) -> None:
    """Bring Keystone to what this cloud needs; nothing is written where nothing differs."""
    _accounts(keystone, secrets)
    _catalog(
        keystone,
        ports,
        (
            *SERVICES,
            *((ACCELERATORS,) if accelerators else ()),
            *((NETWORKS,) if networks else ()),
            *((VOLUMES,) if volumes else ()),
        ),
    )


def _accounts(keystone: Keystone, secrets: Mapping[str, str]) -> None:
    projects, users, roles = keystone.named('projects'), keystone.named('users'), keystone.named('roles')
    for user, project, granted in ACCOUNTS:
        if project not in projects:
            projects[project] = keystone.create('projects', name=project, domain_id='default')
        if user not in users:
            users[user] = keystone.create('users', name=user, domain_id='default', password=secrets[user])
        for role in granted:
            keystone.grant(projects[project]['id'], users[user]['id'], roles[role]['id'])


def _catalog(keystone: Keystone, ports: Mapping[str, int], wanted_services: Sequence[tuple[str, str, str]]) -> None:
    services = keystone.named('services')
    endpoints = {(row['service_id'], row['interface']): row for row in keystone.rows('endpoints')}
    for name, kind, server in wanted_services:
        if name not in services:
            services[name] = keystone.create('services', name=name, type=kind)
        service, wanted = services[name]['id'], render.url(ports, server)
        for interface in INTERFACES:
            there = endpoints.get((service, interface))
            if there is None:
                keystone.create('endpoints', service_id=service, interface=interface, region_id='RegionOne', url=wanted)
            elif there['url'] != wanted:
                keystone.update('endpoints', there['id'], url=wanted)
