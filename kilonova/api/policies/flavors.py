"""Rules of flavors, their extra specs and who may use them."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, READER, rule

CREATE, UPDATE, DELETE = (f'{PREFIX}os-flavor-manage:{verb}' for verb in ('create', 'update', 'delete'))
SPECS_INDEX, SPECS_SHOW, SPECS_CREATE, SPECS_UPDATE, SPECS_DELETE = (
    f'{PREFIX}os-flavor-extra-specs:{verb}' for verb in ('index', 'show', 'create', 'update', 'delete'))
ACCESS = f'{PREFIX}os-flavor-access'
ADD_ACCESS, REMOVE_ACCESS = f'{ACCESS}:add_tenant_access', f'{ACCESS}:remove_tenant_access'

_RULES = (
    rule(CREATE, ADMIN, 'Create a flavor.', 'POST /flavors'),
    rule(UPDATE, ADMIN, 'Update a flavor.', 'PUT /flavors/{flavor_id}'),
    rule(DELETE, ADMIN, 'Delete a flavor.', 'DELETE /flavors/{flavor_id}'),
    rule(SPECS_INDEX, READER, 'See the extra specs of flavors.', 'GET /flavors/{flavor_id}/os-extra_specs',
         'GET /flavors/detail', 'GET /flavors/{flavor_id}', 'POST /flavors', 'PUT /flavors/{flavor_id}'),
    rule(SPECS_SHOW, READER, 'See one extra spec.', 'GET /flavors/{flavor_id}/os-extra_specs/{key}'),
    rule(SPECS_CREATE, ADMIN, 'Set extra specs.', 'POST /flavors/{flavor_id}/os-extra_specs'),
    rule(SPECS_UPDATE, ADMIN, 'Change an extra spec.', 'PUT /flavors/{flavor_id}/os-extra_specs/{key}'),
    rule(SPECS_DELETE, ADMIN, 'Remove an extra spec.', 'DELETE /flavors/{flavor_id}/os-extra_specs/{key}'),
    rule(ACCESS, ADMIN, 'See which projects may use a private flavor.', 'GET /flavors/{flavor_id}/os-flavor-access'),
    rule(ADD_ACCESS, ADMIN, 'Let a project use a private flavor.', 'POST /flavors/{flavor_id}/action'),
    rule(REMOVE_ACCESS, ADMIN, 'No longer let a project use a private flavor.', 'POST /flavors/{flavor_id}/action'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
