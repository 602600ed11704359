"""What may be said about quotas (rest-api.md §2.10)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

LIMIT = {'type': ['integer', 'string'], 'pattern': '^-?[0-9]+$', 'minimum': -1, 'maximum': t.MAX_INT, 'minLength': 1,
         'maxLength': 20}
NETWORK = ('fixed_ips', 'floating_ips', 'security_groups', 'security_group_rules')
RESOURCES = (
    *(Prop(name, LIMIT) for name in ('cores', 'instances', 'ram', 'key_pairs', 'metadata_items', 'server_groups',
                                     'server_group_members')),
    *(Prop(name, LIMIT, until=56) for name in ('injected_files', 'injected_file_content_bytes',
                                               'injected_file_path_bytes')))

SHOW = Query.of(Prop('user_id', t.ANY_TEXT))
UPDATE = Obj(Prop('quota_set', Obj(*RESOURCES, *(Prop(name, LIMIT, until=35) for name in NETWORK),
                                   Prop('force', t.BOOLEAN)), required=True))
