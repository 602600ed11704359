"""The API over real SQLite databases; the daemons behind it are replaced by what notes down the messages.

def test_show(site):
    server = site.server(host='h1', vm_state='active')          # a server that stands in a cell
    assert site.ok('GET', f'/servers/{server}')['server']['status'] == 'ACTIVE'
"""

from __future__ import annotations

import datetime
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import webob

from kilonova import conf as kilonova_conf
from kilonova import objects, sealing
from kilonova.api.app import make_app
from kilonova.cmd.daemon import caps
from kilonova.db import engine, migration
from kilonova.db.models import api as models
from kilonova.db.queries import cells as cell_queries
from kilonova.db.queries import instances, operations
from kilonova.errors import ImageNotFound
from tests.fixtures import policies
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_server

IMAGE = '70a599e0-31e7-49b7-b260-868f441e862b'
PROJECT, OTHER = 'p1', 'p2'


def moment(*parts: int) -> datetime.datetime:
    """A time as the databases hold it: naive UTC."""
    return datetime.datetime(*parts)


class Recorder:
    """A client of daemons: every method notes its call; ``fails`` raises instead."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fails: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        def call(ctxt: Any, **kwargs: Any) -> None:
            self.calls.append((name, kwargs))
            if self.fails is not None:
                raise self.fails

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Images:
    """The image service."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.active: list[str] = []
        self.record: dict[str, Any] = {
            'id': IMAGE,
            'name': 'demo',
            'status': 'active',
            'disk_format': 'qcow2',
            'container_format': 'bare',
            'size': 1000,
            'min_disk': 0,
            'min_ram': 0,
            'visibility': 'public',
            'protected': False,
            'tags': [],
            'owner': 'o',
            'hw_disk_bus': 'virtio',
            'file': '/v2/images/x/file',
            'schema': '/v2/schemas/image',
        }

    def get(self, image_id: str, ctxt: Any = None) -> dict[str, Any]:
        if image_id != self.record['id']:
            raise ImageNotFound(image_id=image_id)
        return dict(self.record)

    def create(self, record: dict[str, Any], ctxt: Any = None) -> None:
        self.created.append(record)

    def delete(self, image_id: str, ctxt: Any = None) -> None:
        self.created = [record for record in self.created if record['id'] != image_id]

    def activate(self, image_id: str, ctxt: Any = None) -> None:
        self.active.append(image_id)

    def url(self, image_id: str, ctxt: Any = None) -> str:
        return f'http://glance/images/{image_id}'

    def find(self, query: dict[str, str], limit: int, ctxt: Any = None) -> list[dict[str, Any]]:
        return [self.get(self.record['id'])][:limit]


class Placement:
    """Placement, as far as the API talks to it."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.members: set[tuple[str, str]] = set()
        self.fails: Exception | None = None

    def delete_tree(self, uuid: str) -> None:
        self.deleted.append(uuid)

    def set_member(self, uuid: str, aggregate: str, member: bool) -> None:
        if self.fails is not None:
            raise self.fails
        (self.members.add if member else self.members.discard)((uuid, aggregate))


class UnifiedLimits:
    """Keystone's limits, where [quota]driver is UnifiedLimitsDriver."""

    def __init__(self) -> None:
        self.registered: dict[str, int] = {}
        self.own: dict[str, dict[str, int]] = {}
        self.fails: Exception | None = None

    def limits(self, project_id: str | None) -> tuple[dict[str, int], dict[str, int]]:
        if self.fails is not None:
            raise self.fails
        return self.registered, self.own.get(project_id or '', {})


def make_databases(directory: pathlib.Path) -> pathlib.Path:
    """Empty databases of both kinds: what those of a test are copied from."""
    for name in ('api', 'cell'):
        database = engine.Database(f'sqlite:///{directory}/{name}.db', name)
        migration.sync(database, name)
        database.dispose()
    return directory


@pytest.fixture(scope='session')
def empty_databases(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_databases(tmp_path_factory.mktemp('databases'))


def database_urls(directory: pathlib.Path, templates: pathlib.Path) -> dict[str, str]:
    """Fresh databases with all tables: api, cell0, cell1, cell2."""
    names = ('api', 'cell0', 'cell1', 'cell2')
    for name in names:
        shutil.copyfile(templates / ('api.db' if name == 'api' else 'cell.db'), directory / f'{name}.db')
    return {name: f'sqlite:///{directory}/{name}.db' for name in names}


class Site:
    """See the module."""

    def __init__(
        self,
        directory: pathlib.Path,
        templates: pathlib.Path,
        *,
        neutron: FakeNeutron | None = None,
        cinder: FakeCinder | None = None,
        **options: Any,
    ) -> None:
        urls = database_urls(directory, templates)
        self.databases = engine.Databases(urls['api'], urls['cell1'])
        engine.install(self.databases)
        cell_queries.map_cell0(self.databases, urls['cell0'])
        for name in ('cell1', 'cell2'):
            cell_queries.create_cell(
                self.databases, name=name, transport_url=f'fake://{name}/', database_connection=urls[name]
            )
        self.cells = cell_queries.CellDatabases(self.databases)
        self.cell0, self.cell1, self.cell2 = self.cells.databases()
        caps.not_adopted(self.cells)
        self.conf = kilonova_conf.new()
        self.conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
        alias = json.dumps({'name': 'gpu', 'vendor_id': '10de', 'product_id': '13f1'})
        keys = str(directory / 'secrets.keys')
        sealing.create_file(keys)
        for name, value in {
            'api__auth_strategy': 'noauth2',
            'pci__alias': [alias],
            'secrets__key_file': keys,
            **options,
        }.items():
            group, _, option = name.rpartition('__')
            self.conf.set_override(option, value, group or None)
        self.conductor, self.compute, self.images, self.placement = Recorder(), Recorder(), Images(), Placement()
        self.limits, self.neutron = UnifiedLimits(), neutron
        self.app = make_app(
            self.conf,
            databases=self.databases,
            cells=self.cells,
            conductor=self.conductor,
            image_client=self.images,
            compute=self.compute,
            placement=self.placement,
            limits=self.limits,
            networks=neutron.client if neutron else None,
            volumes=cinder.client if cinder else None,
            policy=policies.shared(options),
        )
        self.flavors = 0

    # -- requests -------------------------------------------------------------------------------------------------
    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = 'admin',
        project: str = PROJECT,
        version: str | None = '2.104',
        mount: str = '/v2.1',
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> webob.Response:
        request = webob.Request.blank(mount + path, method=method)
        request.headers['X-Auth-Token'] = f'{user}:{project}'
        if version is not None:
            request.headers['OpenStack-API-Version'] = f'compute {version}'
        if body is not None or raw is not None:
            request.content_type = 'application/json'
            request.body = raw if raw is not None else json.dumps(body).encode()
        request.headers.update(headers or {})
        return request.get_response(self.app)

    def ok(self, *args: Any, **kwargs: Any) -> Any:
        response = self.request(*args, **kwargs)
        assert response.status_int < 300, f'{args}: {response.status} {response.text}'
        return response.json if response.body else None

    def fault(self, *args: Any, **kwargs: Any) -> tuple[int, str]:
        """(code, message) of a request that must fail in the field's form."""
        response = self.request(*args, **kwargs)
        assert response.content_type == 'application/json', response.text
        (body,) = response.json.values()
        assert body['code'] == response.status_int >= 400
        return body['code'], body['message']

    def opened(self, server: str) -> sealing.ServerSecrets:
        """What the host of a server that was asked for gets to know."""
        (row,) = self.rows(server)
        return sealing.SealingKeys.read(self.conf.secrets.key_file).open(row['args']['sealed'], server)

    # -- things ---------------------------------------------------------------------------------------------------
    def flavor(self, extra_specs: dict[str, str] | None = None, **values: Any) -> str:
        self.flavors += 1
        body = {'name': f'f{self.flavors}', 'ram': 512, 'vcpus': 1, 'disk': 1, **values}
        flavor = self.ok('POST', '/flavors', {'flavor': body})['flavor']['id']
        if extra_specs:
            self.ok('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': extra_specs})
        return flavor

    def create(self, flavor: str | None = None, *, user: str = 'bob', project: str = PROJECT, **values: Any) -> str:
        """A server that is still a build request."""
        body = {'name': 's', 'flavorRef': flavor or self.flavor(), 'imageRef': IMAGE, 'networks': 'none', **values}
        return self.ok('POST', '/servers', {'server': body}, user=user, project=project)['server']['id']

    def hand_over(self, uuid: str, cell: Any = None, metadata: dict[str, str] | None = None, **values: Any) -> str:
        """What a conductor does: the build request becomes a server in a cell, its boot is over."""
        cell = cell or self.cell1
        api = self.databases.api()
        with api.read() as conn:
            (row,) = operations.of_instance(conn, uuid)
        server = objects.base.Serializer().deserialize_entity(None, row.args['instance'])
        rows = server.to_rows()
        given = {'task_state': None, **values}
        with cell.write() as conn:
            put_server(conn, {**rows[0], **given}, rows[1], rows[2] or {}, metadata or rows[3] or {}, row.args['tags'])
        with api.write() as conn:
            operations.end(conn, row.uuid, uuid)
            requests, mappings = models.BuildRequest.__table__, models.InstanceMapping.__table__
            conn.execute(requests.delete().where(requests.c.instance_uuid == uuid))
            conn.execute(mappings.update().where(mappings.c.instance_uuid == uuid).values(cell_id=cell.cell.id))
        return uuid

    def server(
        self,
        cell: Any = None,
        flavor: str | None = None,
        create: dict[str, Any] | None = None,
        user: str = 'bob',
        project: str = PROJECT,
        **values: Any,
    ) -> str:
        """A server in a cell; by default ACTIVE on h1."""
        now = moment(2026, 11, 21, 10)
        values = {'vm_state': 'active', 'host': 'h1', 'node': 'h1', 'launched_at': now, 'power_state': 1, **values}
        return self.hand_over(self.create(flavor, user=user, project=project, **(create or {})), cell, **values)

    def rows(self, uuid: str) -> list[dict[str, Any]]:
        """The operation rows of a server, wherever they are."""
        found = []
        for database in (self.databases.api(), *self.cells.databases()):
            with database.read() as conn:
                found += [vars(row) for row in operations.of_instance(conn, uuid)]
        return found

    def asked(self) -> list[dict[str, Any]]:
        """The operation rows that the last cast of a create names, in its order."""
        with self.databases.api().read() as conn:
            found = [operations.get(conn, uuid) for uuid in self.conductor.calls[-1][1]['operations']]
        return [vars(row) for row in found if row is not None]

    def asked_for(self, name: str) -> list[Any]:
        """An object in the arguments of each of these rows: 'instance', 'request_spec'."""
        return [objects.base.Serializer().deserialize_entity(None, row['args'][name]) for row in self.asked()]

    def row(self, uuid: str, cell: Any = None) -> dict[str, Any]:
        """The server's row in its cell."""
        with (cell or self.cell1).read() as conn:
            return instances.get(conn, uuid, deleted=True) or {}


@pytest.fixture
def make_site(tmp_path: pathlib.Path, empty_databases: pathlib.Path) -> Iterator[Any]:
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(tmp_path, empty_databases, **options))
        return made[0]

    yield make
    for site in made:
        site.databases.dispose()
    engine.install(None)


@pytest.fixture
def site(make_site: Any) -> Site:
    return make_site()


@pytest.fixture
def statements() -> Iterator[list[tuple[str, str]]]:
    """(database, statement) of everything that is executed; clear it before what is to be counted."""
    seen: list[tuple[str, str]] = []
    end = engine.listen(lambda name, statement, many: seen.append((name, statement)))
    yield seen
    end()
