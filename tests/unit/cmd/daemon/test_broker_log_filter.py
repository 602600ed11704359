"""Tests of the log filter that reduces oslo.messaging's lines while the broker is away.

Without the filter, oslo.messaging logged 4,700 lines in ten minutes.
"""

from __future__ import annotations

import ast
import importlib
import logging
from collections.abc import Iterator

import pytest

from kilonova.cmd import options
from kilonova.cmd.daemon import broker_log_filter

NAME = 'oslo.messaging._drivers.impl_rabbit'
FAILED, BACK = 'Connection failed: %s (retrying in %s seconds)', '[%(connection_id)s] Reconnected to AMQP server on x'

REST = 'further messages about it are suppressed for 600 s, or until the broker is back'


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> Iterator[Clock]:
    """The time of a filter that the logger of the RabbitMQ driver has."""
    logger, made = logging.getLogger(NAME), Clock()
    one, level = broker_log_filter.Outages(made), logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(one)
    yield made
    logger.removeFilter(one)
    logger.setLevel(level)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_an_outage_is_one_line_and_its_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(NAME)
    for _ in range(590):
        clock.now += 1
        log.error(FAILED, 'refused 100%', 3)
        log.error("Failed to publish message to topic '%(topic)s': %(err_str)s", {'topic': 'conductor', 'err_str': 'x'})
    assert said(caplog) == [f'Connection failed: refused 100% (retrying in 3 seconds) ({REST})']
    clock.now += 30
    log.error(FAILED, 'refused', 9)
    assert said(caplog) == [
        f'Connection failed: refused (retrying in 9 seconds) (1179 messages were suppressed; {REST})'
    ]
    log.error(FAILED, 'refused', 9)
    for _ in range(20):
        log.info(BACK, {'connection_id': 'c1'})
    assert said(caplog) == ['[c1] Reconnected to AMQP server on x (1 messages were suppressed)']


def test_the_next_outage_is_told_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(NAME)
    for _ in range(2):
        clock.now += broker_log_filter.AT_LEAST
        log.error(FAILED, 'refused', 1)
        log.info(BACK, {'connection_id': 'c1'})
    assert [line[:17] for line in said(caplog)] == ['Connection failed', '[c1] Reconnected '] * 2


def test_connections_that_come_and_go_do_not_fill_the_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(NAME)
    for _ in range(600):
        clock.now += 0.1
        log.error(FAILED, 'refused', 1)
        log.info(BACK, {'connection_id': 'c1'})
    assert len(said(caplog)) <= 2 * (60 / broker_log_filter.AT_LEAST + 1)


def test_other_troubles_are_told_beside_it(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(NAME)
    log.error(FAILED, 'refused', 1)
    log.error(
        '[%(connection_id)s] AMQP server %(hostname)s:%(port)s closed the connection. Check login credentials: x',
        {'connection_id': 'c', 'hostname': 'h', 'port': 5672},
    )
    log.error('The broker has blocked the connection: %s', 'disk')
    log.error('The broker has blocked the connection: %s', 'disk')
    assert len(said(caplog)) == 4


def test_debugging_shows_all(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(NAME).setLevel(logging.DEBUG)
    for _ in range(3):
        logging.getLogger(NAME).error(FAILED, 'refused', 1)
    assert len(said(caplog)) == 3


def test_each_beginning_is_one_of_the_library() -> None:
    """A release that words them otherwise would bring the flood back."""
    texts = set()
    for module in ('impl_rabbit', 'amqpdriver'):
        source = importlib.import_module(f'oslo_messaging._drivers.{module}').__file__
        assert source is not None
        with open(source, encoding='utf-8') as file:
            texts |= {
                node.value
                for node in ast.walk(ast.parse(file.read()))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
    assert [prefix for prefix in broker_log_filter.KINDS if not any(text.startswith(prefix) for text in texts)] == []


def test_a_program_that_sets_up_its_logging_has_it(monkeypatch: pytest.MonkeyPatch, parse) -> None:
    monkeypatch.undo()
    loggers = [logging.getLogger(name) for name in broker_log_filter.LOGGERS]
    assert all(broker_log_filter._OUTAGES not in logger.filters for logger in loggers)
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in ('', 'kilonova')}
    try:
        options.setup_logging(parse())
        assert all(logger.filters.count(broker_log_filter._OUTAGES) == 1 for logger in loggers)
        options.setup_logging(parse())
        assert all(logger.filters.count(broker_log_filter._OUTAGES) == 1 for logger in loggers)
    finally:
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for logger in loggers:
            logger.removeFilter(broker_log_filter._OUTAGES)
