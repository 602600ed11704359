"""What ``python -m tests.bench`` is asked for."""

from __future__ import annotations

import pytest

from tests.bench import __main__ as bench


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that ran; none of them really does."""
    names: list[str] = []
    for name in bench.PARTS:
        monkeypatch.setitem(bench.PARTS, name, lambda name=name: names.append(name))
    return names


@pytest.mark.parametrize(
    ('arguments', 'parts'),
    [([], ['servers', 'devices', 'ports']), (['devices'], ['devices']), (['ports', 'servers'], ['ports', 'servers'])],
)
def test_parts_by_name(ran: list[str], arguments: list[str], parts: list[str]) -> None:
    assert bench.main(arguments) == 0
    assert ran == parts


@pytest.mark.parametrize(
    ('arguments', 'code', 'said'),
    [
        (['--help'], 0, 'parts:\n  servers'),
        (['nosuch'], 2, "'nosuch' is no part of it; accepted: servers, devices, ports"),
    ],
)
def test_help_and_what_is_no_part_start_nothing(
    ran: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == code and ran == []
    assert said in ''.join(capsys.readouterr())
