"""Record the answers of a Nova's API to GET requests of an administrator and of a member, one JSON object a line.

    python3 -m tools.record_answers answers.json.gz --auth-url http://controller:5000/v3 --password secret
        --admin admin:admin --member demo:demo --replace http://10.0.0.1:8774=http://controller:8774

The tests of ``kilonova-manage adopt`` compare them with Kilonova's answers from the same rows. A line has the role
(admin or member), the microversion, the path below the endpoint, the status and the body (null if there is none).
``--admin`` and ``--member`` name USER:PROJECT of the default domain. It needs SQLAlchemy and keystoneauth1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keystoneauth1.identity.v3 import Password
from keystoneauth1.session import Session

from tools.record_nova import parse_replacement, plain_text

OLDEST, COMMON = '2.1', '2.96'
LISTS = (
    '/servers',
    '/servers/detail',
    '/servers/detail?all_tenants=1',
    '/servers/detail?all_tenants=1&deleted=1',
    '/flavors/detail',
    '/flavors/detail?is_public=None',
    '/os-keypairs',
    '/os-server-groups',
    '/os-server-groups?all_projects=True',
    '/os-aggregates',
    '/os-availability-zone',
    '/os-availability-zone/detail',
    '/os-hypervisors',
    '/os-hypervisors/detail',
    '/os-services',
    '/os-migrations',
    '/os-simple-tenant-usage?detailed=1',
    '/os-instance_usage_audit_log',
    '/os-quota-class-sets/default',
    '/limits',
)
OF_SERVER = (
    '',
    '/ips',
    '/metadata',
    '/migrations',
    '/os-instance-actions',
    '/os-interface',
    '/os-security-groups',
    '/os-server-password',
    '/os-volume_attachments',
    '/shares',
    '/tags',
    '/topology',
)


class Client:
    """An account that sends GET requests to the compute endpoint of the catalog."""

    def __init__(self, role: str, auth_url: str, account: str, password: str, replaced: Sequence[tuple[str, str]]):
        user, _, project = account.partition(':')
        auth = Password(
            auth_url=auth_url,
            username=user,
            password=password,
            project_name=project,
            user_domain_id='default',
            project_domain_id='default',
        )
        self.role = role
        self.session = Session(auth=auth)
        self.user_id = self.session.get_user_id()
        self.project_id = self.session.get_project_id()
        self.endpoint = str(self.session.get_endpoint(service_type='compute', interface='public'))
        self.replaced = replaced

    def newest_version(self) -> str:
        """Return the newest microversion of the API."""
        return str(self.session.get(f'{self.endpoint}/').json()['version']['version'])

    def get(self, path: str, version: str) -> tuple[int, Any]:
        """Return status and parsed body of a request; the body is None if the answer has none."""
        answer = self.session.get(
            self.endpoint + path,
            headers={'OpenStack-API-Version': f'compute {version}', 'X-OpenStack-Nova-API-Version': version},
            raise_exc=False,
        )
        return answer.status_code, self.plain(answer.json()) if answer.text else None

    def plain(self, value: Any) -> Any:
        """Return a part of a body with all its text as ``plain_text`` makes it."""
        if isinstance(value, dict):
            return {key: self.plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        return plain_text(value, self.replaced) if isinstance(value, str) else value

    def listed(self, path: str, key: str) -> list[dict[str, Any]]:
        """Return the entries of a list at the common version, none if the account may not read it."""
        body = self.get(path, COMMON)[1]
        return list(body.get(key, ()))


def paths(client: Client) -> Iterator[str]:
    """Yield the paths that the account asks for: lists first, then the resources that they name."""
    yield from LISTS
    everything = '?all_tenants=1' if client.role == 'admin' else ''
    servers = client.listed(f'/servers/detail{everything}', 'servers')
    deleted = client.listed('/servers/detail?all_tenants=1&deleted=1', 'servers') if everything else []
    projects = {client.project_id: client.user_id} | {one['tenant_id']: one['user_id'] for one in servers}
    for project, user in sorted(projects.items()):
        yield f'/os-quota-sets/{project}'
        yield f'/os-quota-sets/{project}/detail'
        yield f'/os-quota-sets/{project}?user_id={user}'
        yield f'/os-simple-tenant-usage/{project}'
        yield f'/limits?tenant_id={project}'
    for user in sorted(set(projects.values())):
        yield f'/os-keypairs?user_id={user}'
    for key in client.listed('/os-keypairs', 'keypairs'):
        yield f'/os-keypairs/{key["keypair"]["name"]}'
    for flavor in client.listed('/flavors/detail?is_public=None', 'flavors'):
        for below in ('', '/os-extra_specs', '/os-flavor-access'):
            yield f'/flavors/{flavor["id"]}{below}'
    for group in client.listed('/os-server-groups', 'server_groups'):
        yield f'/os-server-groups/{group["id"]}'
    for aggregate in client.listed('/os-aggregates', 'aggregates'):
        yield f'/os-aggregates/{aggregate["id"]}'
    for host in client.listed('/os-hypervisors', 'hypervisors'):
        yield f'/os-hypervisors/{host["id"]}'
    for server in servers:
        for below in OF_SERVER:
            yield f'/servers/{server["id"]}{below}'
    for server in [*servers, *deleted]:
        actions = f'/servers/{server["id"]}/os-instance-actions'
        for action in client.listed(actions, 'instanceActions'):
            yield f'{actions}/{action["request_id"]}'
    for server in servers:
        for volume in client.listed(f'/servers/{server["id"]}/os-volume_attachments', 'volumeAttachments'):
            yield f'/servers/{server["id"]}/os-volume_attachments/{volume["volumeId"]}'


def record(clients: Sequence[Client]) -> Iterator[str]:
    """Yield a JSON line for each account, path and microversion: the oldest, the common one and the newest."""
    newest = clients[0].newest_version()
    versions = [OLDEST, COMMON]
    if [int(part) for part in newest.split('.')] > [int(part) for part in COMMON.split('.')]:
        versions.append(newest)
    for client in clients:
        for path in dict.fromkeys(paths(client)):
            for version in versions:
                status, body = client.get(path, version)
                line = {'role': client.role, 'version': version, 'path': path, 'status': status, 'body': body}
                yield json.dumps(line, ensure_ascii=False, separators=(',', ':')) + '\n'


def main(argv: Sequence[str]) -> int:
    """Record the answers, print how many there are; return the exit code."""
    parser = argparse.ArgumentParser(prog='record_answers', description=__doc__.partition('\n')[0])
    parser.add_argument('file', type=Path, help='the file to write, FILE.json.gz')
    parser.add_argument('--auth-url', required=True, help="Keystone's URL")
    parser.add_argument('--password', required=True, help='of both accounts')
    parser.add_argument('--admin', required=True, metavar='USER:PROJECT')
    parser.add_argument('--member', required=True, metavar='USER:PROJECT')
    parser.add_argument(
        '--replace', metavar='OLD=NEW', type=parse_replacement, action='append', default=[], help='in all bodies'
    )
    given = parser.parse_args(argv)
    clients = [
        Client(role, given.auth_url, account, given.password, given.replace)
        for role, account in (('admin', given.admin), ('member', given.member))
    ]
    lines = list(record(clients))
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_bytes(gzip.compress(''.join(lines).encode(), compresslevel=9, mtime=0))
    print(f'{given.file}: {len(lines)} answers, {given.file.stat().st_size} bytes')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
