"""Rules of flavors, their extra specs and who may use them."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, READER, rule

CREATE, UPDATE, DELETE = (f'{PREFIX}os-flavor-manage:{verb}' for verb in ('create', 'update', 'delete'))
SPECS_INDEX, SPECS_SHOW, SPECS_CREATE, SPECS_UPDATE, SPECS_DELETE = (
    f'{PREFIX}os-flavor-extra-specs:{verb}' for verb in ('index', 'show', 'create', 'update', 'delete'))
ACCESS = f'{PREFIX}os-flavor-access'
ADD_ACCESS, REMOVE_ACCESS = f'{ACCESS}:add_tenant_access', f'{ACCESS}:remove_tenant_access'

RULES = (
    rule(CREATE, ADMIN, 'Create a flavor.'),
    rule(UPDATE, ADMIN, 'Update a flavor.'),
    rule(DELETE, ADMIN, 'Delete a flavor.'),
    rule(SPECS_INDEX, READER, 'See the extra specs of flavors.'),
    rule(SPECS_SHOW, READER, 'See one extra spec.'),
    rule(SPECS_CREATE, ADMIN, 'Set extra specs.'),
    rule(SPECS_UPDATE, ADMIN, 'Change an extra spec.'),
    rule(SPECS_DELETE, ADMIN, 'Remove an extra spec.'),
    rule(ACCESS, ADMIN, 'See which projects may use a private flavor.'),
    rule(ADD_ACCESS, ADMIN, 'Let a project use a private flavor.'),
    rule(REMOVE_ACCESS, ADMIN, 'No longer let a project use a private flavor.'),
)
