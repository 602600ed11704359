"""Tables of the API database. Deleted rows are removed at once (there is no soft delete)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, mapped_column

from kilonova.db.models.base import (
    NAMING,
    TABLE_OPTIONS,
    DateTime,
    LeaseColumns,
    MediumText,
    OperationColumns,
    Timestamps,
    index,
    unique,
    utcnow,
)


class Base(DeclarativeBase):
    """Base class of the API database's models. Queries use the ``__table__`` of each model with SQLAlchemy Core."""

    if TYPE_CHECKING:
        __table__: ClassVar[sa.Table]

    metadata = sa.MetaData(naming_convention=NAMING)


class Operation(OperationColumns, Base):
    """An operation (accepted work on a server) that is not in a cell, such as the boot of a server without a cell."""

    __tablename__ = 'operations'


class Lease(LeaseColumns, Base):
    """The lease of a conductor process in the API database. It shows that the process is alive."""

    __tablename__ = 'leases'


class CellMapping(Timestamps, Base):
    """A cell with its transport URL and its database URL. The URLs may contain templates such as {hostname}."""

    __tablename__ = 'cell_mappings'
    __table_args__ = (index('cell_mappings', 'uuid'), unique('cell_mappings', 'uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    uuid = mapped_column(sa.String(36), nullable=False)
    name = mapped_column(sa.String(255))
    transport_url = mapped_column(sa.Text)
    database_connection = mapped_column(sa.Text)
    disabled = mapped_column(sa.Boolean, default=False)


class HostMapping(Timestamps, Base):
    """The mapping of a compute host to its cell."""

    __tablename__ = 'host_mappings'
    __table_args__ = (
        index('host_mappings', 'host'),
        unique('host_mappings', 'host'),
        index('host_mappings', 'cell_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    cell_id = mapped_column(sa.Integer, sa.ForeignKey('cell_mappings.id'), nullable=False)
    host = mapped_column(sa.String(255), nullable=False)


class InstanceMapping(Timestamps, Base):
    """The mapping of a server to its cell. ``cell_id`` is NULL until a cell is chosen for the server."""

    __tablename__ = 'instance_mappings'
    __table_args__ = (
        index('instance_mappings', 'project_id'),
        index('instance_mappings', 'instance_uuid'),
        unique('instance_mappings', 'instance_uuid'),
        index('instance_mappings', 'user_id', 'project_id'),
        index('instance_mappings', 'cell_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36), nullable=False)
    cell_id = mapped_column(sa.Integer, sa.ForeignKey('cell_mappings.id'))
    project_id = mapped_column(sa.String(255), nullable=False)
    user_id = mapped_column(sa.String(255))
    queued_for_delete = mapped_column(sa.Boolean)


class RequestSpec(Timestamps, Base):
    """The request spec of a server (what its user requested), as JSON."""

    __tablename__ = 'request_specs'
    __table_args__ = (index('request_specs', 'instance_uuid'), unique('request_specs', 'instance_uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36), nullable=False)
    spec = mapped_column(MediumText, nullable=False)


class BuildRequest(Timestamps, Base):
    """A requested server that has no cell yet."""

    __tablename__ = 'build_requests'
    __table_args__ = (
        index('build_requests', 'instance_uuid'),
        index('build_requests', 'project_id'),
        unique('build_requests', 'instance_uuid'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36))
    project_id = mapped_column(sa.String(255), nullable=False)
    instance = mapped_column(MediumText)
    block_device_mappings = mapped_column(MediumText)
    tags = mapped_column(sa.Text)


class Flavor(Timestamps, Base):
    """A flavor: the vCPUs, memory and disk sizes of servers that are created with it."""

    __tablename__ = 'flavors'
    __table_args__ = (unique('flavors', 'flavorid'), unique('flavors', 'name'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    name = mapped_column(sa.String(255), nullable=False)
    memory_mb = mapped_column(sa.Integer, nullable=False)
    vcpus = mapped_column(sa.Integer, nullable=False)
    root_gb = mapped_column(sa.Integer)
    ephemeral_gb = mapped_column(sa.Integer)
    flavorid = mapped_column(sa.String(255), nullable=False)
    swap = mapped_column(sa.Integer, nullable=False, default=0)
    rxtx_factor = mapped_column(sa.Float, default=1)
    vcpu_weight = mapped_column(sa.Integer)
    disabled = mapped_column(sa.Boolean, default=False)
    is_public = mapped_column(sa.Boolean, default=True)
    description = mapped_column(sa.Text)


class FlavorExtraSpec(Timestamps, Base):
    """One extra spec of a flavor."""

    __tablename__ = 'flavor_extra_specs'
    __table_args__ = (
        index('flavor_extra_specs', 'flavor_id', 'key'),
        unique('flavor_extra_specs', 'flavor_id', 'key'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    key = mapped_column(sa.String(255), nullable=False)
    value = mapped_column(sa.String(255))
    flavor_id = mapped_column(sa.Integer, sa.ForeignKey('flavors.id'), nullable=False)


class FlavorProject(Timestamps, Base):
    """A project that may use a private flavor."""

    __tablename__ = 'flavor_projects'
    __table_args__ = (unique('flavor_projects', 'flavor_id', 'project_id'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    flavor_id = mapped_column(sa.Integer, sa.ForeignKey('flavors.id'), nullable=False)
    project_id = mapped_column(sa.String(255), nullable=False)


class KeyPair(Timestamps, Base):
    """The public key of a user's key pair."""

    __tablename__ = 'key_pairs'
    __table_args__ = (unique('key_pairs', 'user_id', 'name'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    name = mapped_column(sa.String(255), nullable=False)
    user_id = mapped_column(sa.String(255), nullable=False)
    fingerprint = mapped_column(sa.String(255))
    public_key = mapped_column(sa.Text)
    type = mapped_column(sa.Enum('ssh', 'x509', name='keypair_types'), nullable=False, default='ssh')


class Quota(Timestamps, Base):
    """The limit of a project for one resource."""

    __tablename__ = 'quotas'
    __table_args__ = (unique('quotas', 'project_id', 'resource'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    project_id = mapped_column(sa.String(255))
    resource = mapped_column(sa.String(255), nullable=False)
    hard_limit = mapped_column(sa.Integer)


class ProjectUserQuota(Timestamps, Base):
    """The limit of one user within a project for one resource."""

    __tablename__ = 'project_user_quotas'
    __table_args__ = (
        unique('project_user_quotas', 'user_id', 'project_id', 'resource'),
        index('project_user_quotas', 'project_id'),
        index('project_user_quotas', 'user_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    project_id = mapped_column(sa.String(255), nullable=False)
    user_id = mapped_column(sa.String(255), nullable=False)
    resource = mapped_column(sa.String(255), nullable=False)
    hard_limit = mapped_column(sa.Integer)


class QuotaClass(Timestamps, Base):
    """The limit of a quota class for one resource."""

    __tablename__ = 'quota_classes'
    __table_args__ = (index('quota_classes', 'class_name'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    class_name = mapped_column(sa.String(255))
    resource = mapped_column(sa.String(255))
    hard_limit = mapped_column(sa.Integer)


class Aggregate(Timestamps, Base):
    """A host aggregate: a named set of compute hosts with metadata."""

    __tablename__ = 'aggregates'
    __table_args__ = (
        index('aggregates', 'uuid'),
        sa.UniqueConstraint('name', name='uniq_aggregate0name'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    uuid = mapped_column(sa.String(36))
    name = mapped_column(sa.String(255))


class AggregateHost(Timestamps, Base):
    """A host of an aggregate."""

    __tablename__ = 'aggregate_hosts'
    __table_args__ = (
        unique('aggregate_hosts', 'host', 'aggregate_id'),
        index('aggregate_hosts', 'aggregate_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    host = mapped_column(sa.String(255))
    aggregate_id = mapped_column(sa.Integer, sa.ForeignKey('aggregates.id'), nullable=False)


class AggregateMetadata(Timestamps, Base):
    """One metadata pair of an aggregate."""

    __tablename__ = 'aggregate_metadata'
    __table_args__ = (
        unique('aggregate_metadata', 'aggregate_id', 'key'),
        index('aggregate_metadata', 'key'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    key = mapped_column(sa.String(255), nullable=False)
    value = mapped_column(sa.String(255), nullable=False)
    aggregate_id = mapped_column(sa.Integer, sa.ForeignKey('aggregates.id'), nullable=False)


class InstanceGroup(Timestamps, Base):
    """A server group, whose servers share a host or must be on different hosts."""

    __tablename__ = 'instance_groups'
    __table_args__ = (unique('instance_groups', 'uuid'), index('instance_groups', 'project_id'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    user_id = mapped_column(sa.String(255))
    project_id = mapped_column(sa.String(255))
    uuid = mapped_column(sa.String(36), nullable=False)
    name = mapped_column(sa.String(255))


class InstanceGroupMember(Timestamps, Base):
    """A server of a server group. The row is kept until the server is archived."""

    __tablename__ = 'instance_group_member'
    __table_args__ = (
        index('instance_group_member', 'instance_uuid'),
        index('instance_group_member', 'group_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(255))
    group_id = mapped_column(sa.Integer, sa.ForeignKey('instance_groups.id'), nullable=False)


class InstanceGroupPolicy(Timestamps, Base):
    """The policy of a server group. ``rules`` is a JSON object."""

    __tablename__ = 'instance_group_policy'
    __table_args__ = (
        index('instance_group_policy', 'policy'),
        index('instance_group_policy', 'group_id'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    policy = mapped_column(sa.String(255))
    group_id = mapped_column(sa.Integer, sa.ForeignKey('instance_groups.id'), nullable=False)
    rules = mapped_column(sa.Text)


class SchedulerDecision(Base):
    """A scheduler's decision about one server, with the reasons.

    ``chosen`` is the host, or NULL if none was chosen. ``body`` is compressed JSON as text.
    """

    __tablename__ = 'scheduler_decisions'
    __table_args__ = (
        index('scheduler_decisions', 'instance_uuid'),
        index('scheduler_decisions', 'request_id'),
        index('scheduler_decisions', 'created_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    request_id = mapped_column(sa.String(255))
    instance_uuid = mapped_column(sa.String(36))
    created_at = mapped_column(DateTime, default=utcnow)
    chosen = mapped_column(sa.String(255))
    body = mapped_column(MediumText)


class Adoption(Timestamps, Base):
    """The takeover of a Nova, or its way back. The table has at most one row, with the id 1.

    ``state`` is one of ``queries.adoption.AdoptionState``. ``nova`` is a JSON object {name of a database of Nova:
    {table: highest id when the takeover began}}.
    """

    __tablename__ = 'adoptions'
    __table_args__ = (TABLE_OPTIONS,)

    id = mapped_column(sa.Integer, primary_key=True)
    state = mapped_column(sa.String(16), nullable=False)
    nova = mapped_column(MediumText, nullable=False)
