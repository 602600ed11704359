"""The [database] options: the main database of this service, and the connection pools of all cells."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'database'

OPTS = [
    cfg.StrOpt(
        'connection',
        secret=True,
        deprecated_opts=was('sql_connection'),
        help="SQLAlchemy URL of the main database (of the cell's database, for a service of one cell), such as "
        'mysql+pymysql://user:password@host/kilonova, postgresql+psycopg2://... or '
        'sqlite:////var/lib/kilonova/kilonova.sqlite. Its parts also replace {username}, {hostname} and '
        'the other templates of cell mappings. Leave it empty on compute hosts, which have no database.',
    ),
    cfg.IntOpt(
        'max_pool_size',
        default=5,
        min=0,
        help='Number of connections to a database that each process keeps open; 0 means no limit. If you raise '
        'the number of threads of a worker, raise this as well, and the connection limit of the database '
        'server with it.',
    ),
    cfg.IntOpt(
        'max_overflow',
        default=50,
        min=0,
        help='Number of connections that may be opened in addition to max_pool_size under load.',
    ),
    cfg.IntOpt(
        'pool_timeout',
        default=10,
        min=1,
        help='Seconds to wait for a connection if all connections of the pool are in use. Afterwards the '
        'database counts as not answering. Set it to the value of statement_timeout: if a database hangs, '
        'all connections are in use for that long.',
    ),
    cfg.IntOpt(
        'statement_timeout',
        default=10,
        min=0,
        help='Maximum seconds for a statement, for waiting for a lock, and for connecting, and maximum seconds '
        'that a transaction may be idle. The last limit frees the locks of a process that hangs (such as '
        'on a frozen machine), so that the processes that take over its work can continue. The limits are '
        'set in the database server (statement_timeout and idle_in_transaction_session_timeout of '
        'PostgreSQL, max_statement_time and idle_transaction_timeout of MariaDB, max_execution_time and '
        'innodb_lock_wait_timeout of MySQL, which has no limit for idle transactions). If the server '
        'itself hangs, the connection is closed one second later. In both cases the database counts as not '
        'answering, and the statement is not retried at once. Raise it if lists of very many servers fail '
        'with 503. Keep it below [conductor]lease_time, because leases are renewed by such statements. 0: '
        'no limit. The commands of kilonova-manage that process whole tables have no limit: api_db sync, '
        'db sync, db archive_deleted_rows, db purge.',
    ),
    cfg.IntOpt(
        'connection_recycle_time',
        default=3600,
        min=-1,
        help='Age in seconds after which a pooled connection is replaced at its next use. Keep it below the '
        'idle limit of the database server (wait_timeout of MySQL); -1: connections are never replaced.',
    ),
    cfg.IntOpt(
        'max_retries',
        default=10,
        min=-1,
        help='How often a transaction is retried after a deadlock, a lock wait timeout or a lost connection '
        'before it fails; -1 means without limit. It is not retried after statement_timeout is over, or if '
        'the database did not answer within that time.',
    ),
    cfg.StrOpt(
        'mysql_sql_mode',
        default='TRADITIONAL',
        regex='^[A-Za-z_,]*$',
        help='SQL mode of each session with a MySQL or MariaDB server. With the default, values that do not fit '
        "cause an error instead of being truncated. Empty: the server's own mode.",
    ),
]
