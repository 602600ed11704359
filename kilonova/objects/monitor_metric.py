"""MonitorMetric: one measured value of a host (``compute_nodes.metrics``).

    metrics = MonitorMetricList.from_column('[{"name": "cpu.frequency", "value": 2400, "source": "libvirt"}]')
"""
from __future__ import annotations

import json
from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class MonitorMetric(KilonovaObject):
    """``value`` is a whole number in the metric's own unit. Monitors choose their names."""

    VERSION = '1.1'
    fields = {
        'name': fields.StringField(),
        'value': fields.IntegerField(),
        'numa_membw_values': fields.DictOfIntegersField(nullable=True),
        'timestamp': fields.DateTimeField(),
        'source': fields.StringField(),
    }

    @classmethod
    def from_dict(cls, metric: dict[str, Any]) -> Self:
        """From {'name', 'value', 'timestamp', 'source', 'numa_membw_values'} as far as given. ValueError, TypeError."""
        return cls.loaded(None, ((name, metric[name]) for name in cls.fields
                                 if name in metric and (metric[name] is not None or name in cls._nullable)))


@register
class MonitorMetricList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('MonitorMetric')}

    @classmethod
    def from_column(cls, text: str | None) -> Self:
        """From the column's JSON list of dicts; none: an empty list. ValueError, TypeError for another text."""
        return cls.of(None, [MonitorMetric.from_dict(one) for one in json.loads(text or '[]')])
