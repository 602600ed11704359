"""The [database] options: the main database of this service, and the connection pools of all cells."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'database'

OPTS = [
    cfg.StrOpt('connection', secret=True,
               deprecated_opts=was('sql_connection'),
               help="SQLAlchemy URL of the main database (for a service of one cell the cell's), such as "
                    'mysql+pymysql://user:password@host/kilonova, postgresql+psycopg2://... or '
                    'sqlite:////var/lib/kilonova/kilonova.sqlite. Its parts also fill the {username}, '
                    '{hostname} and other templates of cell mappings. Leave it empty on compute hosts: they '
                    'have no database.'),
    cfg.IntOpt('max_pool_size', default=5, min=0,
               help='Connections to a database that are kept open in each process; 0 means no limit. Raise '
                    "it with the number of threads of a worker, and the server's own limit with it."),
    cfg.IntOpt('max_overflow', default=50, min=0,
               help='Connections that may be opened beyond max_pool_size while the load lasts.'),
    cfg.IntOpt('pool_timeout', default=10, min=1,
               help='Seconds to wait for a connection when all of the pool are in use. Afterwards the '
                    'database counts as not answering. Keep it at statement_timeout: behind a database that hangs '
                    'all connections are in use, for that long.'),
    cfg.IntOpt('statement_timeout', default=10, min=0,
               help='Seconds that a statement, a wait for a lock, or making a connection may take, and that a '
                    'transaction may rest: what a process holds that stands still (a frozen machine) must get free '
                    'for those who take its work over. The server is told (statement_timeout and '
                    'idle_in_transaction_session_timeout of PostgreSQL, max_statement_time and '
                    'idle_transaction_timeout of MariaDB, max_execution_time and innodb_lock_wait_timeout of MySQL, '
                    'which has no limit for resting); where it stands still the connection is closed a second '
                    'later. Either way the database counts as not answering, and nothing is repeated at once. Raise it '
                    'where lists over very many servers end in 503; keep it below [conductor]lease_time, as leases are '
                    'renewed by such statements, too. 0: no limit. kilonova-manage has none where it works through '
                    'whole tables: api_db sync, db sync, db archive_deleted_rows, db purge.'),
    cfg.IntOpt('connection_recycle_time', default=3600, min=-1,
               help='Age in seconds after which a pooled connection is replaced when it is next used. Keep '
                    "it below the server's idle limit (wait_timeout of MySQL); -1 keeps them for ever."),
    cfg.IntOpt('max_retries', default=10, min=-1,
               help='How often a transaction is tried again after a deadlock, a lock wait timeout or a lost '
                    'connection before its error counts; -1 means without end. It is not tried again once '
                    'statement_timeout has gone by, nor after an answer that did not come within that time.'),
    cfg.StrOpt('mysql_sql_mode', default='TRADITIONAL', regex='^[A-Za-z_,]*$',
               help='SQL mode of each session with a MySQL or MariaDB server. The default makes values that '
                    "don't fit an error instead of cutting them; empty leaves the server's own mode."),
]
