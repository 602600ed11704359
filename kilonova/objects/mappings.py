"""The mappings of the API database: the cells, and the cell of each host and of each server."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


# --- a cell's uuid, database and message queue (API table cell_mappings) ---------------------------------------------
@register
class CellMapping(KilonovaObject):
    """A cell with its database and message queue."""

    VERSION = '1.1'
    uuid: str
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'name': fields.StringField(nullable=True),
        'transport_url': fields.StringField(),
        'database_connection': fields.StringField(),
        'disabled': fields.BooleanField(default=False),
    }


@register
class CellMappingList(ListBase, KilonovaObject):
    """A list of cells."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('CellMapping')}


# --- the cell of a host (API table host_mappings) --------------------------------------------------------------------
@register
class HostMapping(KilonovaObject):
    """The mapping of a host to its cell. ``from_row`` needs a row that has the object ``cell_mapping``."""

    VERSION = '1.0'
    fields = {
        'id': fields.IntegerField(),
        'host': fields.StringField(),
        'cell_mapping': fields.ObjectField('CellMapping'),
    }


@register
class HostMappingList(ListBase, KilonovaObject):
    """A list of host mappings."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('HostMapping')}


# --- the cell of a server (API table instance_mappings) --------------------------------------------------------------
@register
class InstanceMapping(KilonovaObject):
    """The cell of a server. ``cell_mapping`` is None until a cell is chosen for the server."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'cell_mapping': fields.ObjectField('CellMapping', nullable=True),
        'project_id': fields.StringField(),
        'user_id': fields.StringField(),
        'queued_for_delete': fields.BooleanField(default=False),
    }


@register
class InstanceMappingList(ListBase, KilonovaObject):
    """A list of instance mappings."""

    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('InstanceMapping')}
