"""MonitorMetric: one measured value of a host (``compute_nodes.metrics``).

Example:
    metrics = MonitorMetricList.from_column('[{"name": "cpu.frequency", "value": 2400, "source": "libvirt"}]')
"""

from __future__ import annotations

import json
from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class MonitorMetric(KilonovaObject):
    """One measured value of a host.

    ``value`` is an integer in the unit of the metric. The monitor that measures the value chooses its name.
    """

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
        """Return the metric for a dict with 'name', 'value', 'timestamp', 'source' and 'numa_membw_values'.

        Members may be missing. Raises ValueError or TypeError if a value is malformed.
        """
        return cls.loaded(
            None,
            (
                (name, metric[name])
                for name in cls.fields
                if name in metric and (metric[name] is not None or name in cls._nullable)
            ),
        )


@register
class MonitorMetricList(ListBase, KilonovaObject):
    """The metrics of a host."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('MonitorMetric')}

    @classmethod
    def from_column(cls, text: str | None) -> Self:
        """Return the metrics for the column's JSON text, a list of dicts. An empty column is an empty list.

        Raises ValueError or TypeError if the text is malformed.
        """
        return cls.of(None, [MonitorMetric.from_dict(one) for one in json.loads(text or '[]')])
