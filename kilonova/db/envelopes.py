"""Read versioned objects in serialized form (envelopes), without making the objects.

An envelope is a dict with the name, the version and the fields of an object. Operation rows, request specs, build
requests and columns of instance_extra contain envelopes:

    envelopes.fields(spec)['availability_zone']
    envelopes.fields(envelopes.flavor_of(spec))['vcpus']
    stored[envelopes.FIELDS, 'flavor', envelopes.FIELDS, 'vcpus']       # a path for ``json_columns``

A flow or query that reads one or two fields uses these functions, because they cost much less than the object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kilonova.db.arguments.base import Envelope

# The key under which an envelope (a serialized versioned object) has the dict of the object's fields.
FIELDS = 'nova_object.data'


def fields(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object as a dict, in which objects are envelopes. Fields that are not set are missing.

    Raises KeyError or TypeError if ``envelope`` is not an envelope.
    """
    found: dict[str, Any] = envelope[FIELDS]
    return found


def members(envelope: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each object in a list object (``objects.base.ListBase``)."""
    return [one[FIELDS] for one in envelope[FIELDS]['objects']]


def flavor_of(envelope: Mapping[str, Any]) -> Envelope:
    """Return the envelope of the flavor in a request spec or in an instance."""
    found: Envelope = fields(envelope)['flavor']
    return found


def extra_specs(flavor: Mapping[str, Any]) -> dict[str, str]:
    """Return the extra specs of a flavor. They are empty if the flavor has none."""
    return fields(flavor).get('extra_specs') or {}


def current_flavor(text: str) -> dict[str, Any]:
    """Return the fields of a server's current flavor from its column ``flavor`` in instance_extra."""
    return fields(json.loads(text)['cur'])


def certificate_ids(text: str) -> list[str]:
    """Return the ids of a server's trusted certificates from its column ``trusted_certs`` in instance_extra."""
    found: list[str] = fields(json.loads(text))['ids']
    return found
