"""[quota] options: what a project may use where its own limits say nothing. -1 is without limit."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'quota'


def _limit(name: str, default: int, what: str) -> cfg.IntOpt:
    return cfg.IntOpt(name, default=default, min=-1, help=f'{what} -1: no limit.')


OPTS = [
    _limit('instances', 10, 'Servers of a project.'),
    _limit('cores', 20, 'vCPUs of all servers of a project.'),
    _limit('ram', 50 * 1024, 'MiB of memory of all servers of a project.'),
    _limit('metadata_items', 128, 'Metadata items of one server.'),
    _limit('injected_files', 5, 'Files injected into one server; shown in limits, files are not injected.'),
    _limit('injected_file_content_bytes', 10 * 1024, 'Bytes of one injected file; shown in limits.'),
    _limit('injected_file_path_length', 255, 'Characters of the path of an injected file; shown in limits.'),
    _limit('key_pairs', 100, 'Key pairs of a user; shown in limits.'),
    _limit('server_groups', 10, 'Server groups of a project; shown in limits.'),
    _limit('server_group_members', 10, 'Servers of one server group; shown in limits.'),
]
