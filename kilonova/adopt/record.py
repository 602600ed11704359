"""Record a compute API's answers to all GET requests, sent once as an administrator and once as a member of a project.

    admin_and_member = record.accounts(Path('accounts.conf'))
    answers.write(path, record.everything(admin_and_member))

The file has a section [admin] and a section [member], each with an account in the form of keystoneauth1 (auth_type,
auth_url, username, …), as in [placement] of nova.conf. The URL of the API comes from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1.adapter import Adapter
from oslo_config import cfg

from kilonova import errors
from kilonova.adopt.answers import ROLES, Answer
from kilonova.clients import session

# Each path is requested at three microversions: OLDEST, COMMON, and the newest microversion of the API.
# All releases of Nova since 29 have the microversion COMMON. The newest microversion is read from the API.
# If the newest microversion is older than COMMON, as in Nova 27 and 28, it takes the place of COMMON.
OLDEST, COMMON = '2.1', '2.96'
TIMEOUT = 60
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


class BadAccounts(errors.Invalid):
    """The file of accounts has no usable account for a role."""

    msg_fmt = '%(path)s: %(reason)s'


class ListRefused(errors.Invalid):
    """The compute API refuses a list. Without the list it is not known which resources are to be recorded."""

    msg_fmt = (
        'The compute API answered HTTP %(status)s to GET %(path)s of the account [%(role)s] at microversion '
        '%(version)s. Nothing is recorded, because the resources in this list are not known.'
    )


class Account:
    """An account that sends GET requests to the compute API. ``role`` is one of ROLES."""

    def __init__(self, role: str, adapter: Adapter) -> None:
        self.role, self._adapter = role, adapter

    def get(self, path: str, version: str) -> tuple[int, Any]:
        """Return status and parsed body of a request: None without a body, text if it is no JSON. Raises Unanswered."""
        response = session.send(
            self._adapter,
            'the compute API',
            'GET',
            path,
            attempts=session.READ_ATTEMPTS,
            # Record a response with status 500, too. Without ``refusals`` it would raise Unanswered.
            refusals=(500,),
            headers={'OpenStack-API-Version': f'compute {version}', 'X-OpenStack-Nova-API-Version': version},
        )
        if not response.content:
            return response.status_code, None
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of the account's user and of its project."""
        return self._adapter.get_user_id() or '', self._adapter.get_project_id() or ''

    def newest_version(self) -> str:
        """Return the newest microversion of the API."""
        return str(self.get('/', OLDEST)[1]['version']['version'])

    def listed(self, path: str, key: str, version: str) -> list[dict[str, Any]]:
        """Return the items of the list ``key`` in the response to GET ``path`` at microversion ``version``.

        Return [] if the account is the member and may not see the list (403), or if the list is one of a server that
        has been deleted in the meantime (404). Raises ListRefused if another status than 200 is returned.
        """
        status, body = self.get(path, version)
        if status == 200:
            return list(body.get(key, ()))
        is_of_server = path.startswith('/servers/') and path.count('/') > 2
        if (status == 403 and self.role == 'member') or (status == 404 and is_of_server):
            return []
        raise ListRefused(role=self.role, path=path, version=version, status=status)


def accounts(path: Path) -> list[Account]:
    """Return the accounts that a file describes, the administrator first. Raises BadAccounts."""
    conf = cfg.ConfigOpts()
    try:
        conf(['--config-file', str(path)], project='kilonova', default_config_files=[], default_config_dirs=[])
        return [Account(role, _adapter(conf, role, path)) for role in ROLES]
    except (cfg.Error, ks_exceptions.ClientException) as error:
        raise BadAccounts(path=path, reason=str(error)) from None


def _adapter(conf: cfg.ConfigOpts, role: str, path: Path) -> Adapter:
    options = ks_loading.get_adapter_conf_options(include_deprecated=False)
    cfg.set_defaults(options, service_type='compute')
    conf.register_opts(options, group=role)
    ks_loading.register_auth_conf_options(conf, role)
    ks_loading.register_session_conf_options(conf, role)
    conf.set_default('timeout', TIMEOUT, group=role)
    if not conf[role].auth_type:
        raise BadAccounts(
            path=path, reason=f'[{role}]auth_type is not set: each of {", ".join(ROLES)} needs an account'
        )
    return session.adapter(conf, role)


def everything(found: Sequence[Account]) -> Iterator[Answer]:
    """Yield the answers to all GET requests of each account, at three microversions.

    Raises Unanswered if the API does not answer, and ListRefused if it refuses a list.
    """
    newest = found[0].newest_version()
    common = min(COMMON, newest, key=_number)
    versions = list(dict.fromkeys([OLDEST, common, newest]))
    for account in found:
        for path in dict.fromkeys(paths(account, common)):
            for version in versions:
                yield Answer(account.role, version, path, *account.get(path, version))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split('.')))


def paths(account: Account, version: str) -> Iterator[str]:
    """Yield the paths to request for an account: first lists (LISTS), then the resources in these lists.

    Sends GET requests at microversion ``version`` to the API to find these resources. Raises ListRefused.
    """
    yield from LISTS
    everything = '?all_tenants=1' if account.role == 'admin' else ''
    servers = account.listed(f'/servers/detail{everything}', 'servers', version)
    deleted = account.listed('/servers/detail?all_tenants=1&deleted=1', 'servers', version) if everything else []
    yield from _of_projects(account, servers)
    for key in account.listed('/os-keypairs', 'keypairs', version):
        yield f'/os-keypairs/{key["keypair"]["name"]}'
    for flavor in account.listed('/flavors/detail?is_public=None', 'flavors', version):
        yield from (f'/flavors/{flavor["id"]}{below}' for below in ('', '/os-extra_specs', '/os-flavor-access'))
    for path, name in (
        ('/os-server-groups', 'server_groups'),
        ('/os-aggregates', 'aggregates'),
        ('/os-hypervisors', 'hypervisors'),
    ):
        yield from (f'{path}/{item["id"]}' for item in account.listed(path, name, version))
    for server in servers:
        yield from (f'/servers/{server["id"]}{below}' for below in OF_SERVER)
    for server in [*servers, *deleted]:
        actions = f'/servers/{server["id"]}/os-instance-actions'
        yield from (
            f'{actions}/{action["request_id"]}' for action in account.listed(actions, 'instanceActions', version)
        )
    for server in servers:
        volumes = f'/servers/{server["id"]}/os-volume_attachments'
        yield from (f'{volumes}/{one["volumeId"]}' for one in account.listed(volumes, 'volumeAttachments', version))


def _of_projects(account: Account, servers: Sequence[dict[str, Any]]) -> Iterator[str]:
    user, project = account.ids
    projects = {project: user} | {one['tenant_id']: one['user_id'] for one in servers}
    for project, user in sorted(projects.items()):
        yield f'/os-quota-sets/{project}'
        yield f'/os-quota-sets/{project}/detail'
        yield f'/os-quota-sets/{project}?user_id={user}'
        yield f'/os-simple-tenant-usage/{project}'
        yield f'/limits?tenant_id={project}'
    for user in sorted(set(projects.values())):
        yield f'/os-keypairs?user_id={user}'
