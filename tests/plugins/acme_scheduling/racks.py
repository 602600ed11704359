"""Racks: hosts say theirs in the metadata of their aggregate, flavors which they want."""

import nova.conf
from nova.scheduler import filters, weights
from nova.scheduler.filters import utils
from oslo_log import log as logging

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


class RackFilter(filters.BaseHostFilter):
    """The extra spec acme:rack names the rack."""

    RUN_ON_REBUILD = False
    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        wanted = spec_obj.flavor.extra_specs.get('acme:rack')
        racks = utils.aggregate_values_from_key(host_state, 'rack')
        if wanted and wanted not in racks:
            LOG.debug(
                '%(host)s is in %(racks)s, not in %(wanted)s',
                {'host': host_state, 'racks': sorted(racks), 'wanted': wanted},
            )
            return False
        return True


class EmptyRackWeigher(weights.BaseHostWeigher):
    """The fewer servers the better."""

    minval = 0

    def weight_multiplier(self, host_state):
        return CONF.filter_scheduler.ram_weight_multiplier * 1000

    def _weigh_object(self, host_state, weight_properties):
        return -1.0 * host_state.num_instances
