"""Bodies of the log of usage audits."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.instance_usage_audit_log import DONE, RUNNING, Log


def log(found: Log) -> dict[str, Any]:
    """Hosts that are done, that run and that did not begin, and what each said."""
    done, running = (sorted(run['host'] for run in found.runs if run['state'] == state) for state in (DONE, RUNNING))
    missing = sorted(found.hosts - {run['host'] for run in found.runs})
    errors = sum(run['errors'] for run in found.runs)
    who = 'ALL' if len(done) == len(found.hosts) else f'{len(done)} of {len(found.hosts)}'
    return {
        'period_beginning': str(found.begin), 'period_ending': str(found.end), 'num_hosts': len(found.hosts),
        'num_hosts_done': len(done), 'num_hosts_running': len(running), 'num_hosts_not_run': len(missing),
        'hosts_not_run': missing, 'total_instances': sum(run['task_items'] for run in found.runs),
        'total_errors': errors, 'overall_status': f'{who} hosts done. {errors} errors.',
        'log': {run['host']: {'state': run['state'], 'instances': run['task_items'], 'errors': run['errors'],
                              'message': run['message']} for run in found.runs}}
