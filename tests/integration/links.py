"""TCP links that can be cut: what stands between two programs carries nothing any more, and closes nothing.

    with Links() as links:
        links.add('clients to broker 1', ('127.0.0.1', 25001), ('127.0.0.1', 25101))
        links.cut(['clients to broker 1'])      # silence, as behind a dead switch: connections stay open
        links.heal()                            # what was on its way arrives

A relay for each link, so that nothing of the machine (firewall, routes, namespaces) is touched and no privilege is
needed. It differs from a dead switch in one thing: a new connection seems to open, and then hears nothing.
"""
from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

Address = tuple[str, int]
CHUNK = 1 << 16


class Links:
    """All links of a test, carried by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: dict[str, asyncio.Event] = {}
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name='links', daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, near: Address | socket.socket, far: Address) -> None:
        """Carry what connects to ``near`` (an address, or a socket that listens) on to ``far``."""
        self._run(self._listen(name, near, far))

    def cut(self, names: Iterable[str]) -> None:
        """Returns when nothing goes over these links any more."""
        self._run(self._set(set(names), whole=False))

    def heal(self) -> None:
        """All of them carry again."""
        self._run(self._set(set(self._open), whole=True))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _set(self, names: set[str], *, whole: bool) -> None:
        for name in names:
            if whole:
                self._open[name].set()
            else:
                self._open[name].clear()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _listen(self, name: str, near: Address | socket.socket, far: Address) -> None:
        whole = self._open[name] = asyncio.Event()
        whole.set()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._carrying.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):      # the links end
                    await _carry(reader, writer, far, whole)
            finally:
                writer.transport.abort()
                self._carrying.discard(task)
        self._servers.append(await (asyncio.start_server(carry, *near) if isinstance(near, tuple)
                                    else asyncio.start_server(carry, sock=near)))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: Address,
                 whole: asyncio.Event) -> None:
    """Both ways until either side ends; that, too, is told only over a whole link."""
    await whole.wait()
    try:
        back, forth = await asyncio.open_connection(*far)
    except OSError:
        return
    ways = [asyncio.create_task(_pump(reader, forth, whole)), asyncio.create_task(_pump(back, writer, whole))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        forth.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, whole: asyncio.Event) -> None:
    try:
        while data := await reader.read(CHUNK):
            await whole.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    await whole.wait()
