"""TCP links, also between networks, that can be cut: a link that is cut carries nothing more, and closes nothing.

    with Links() as links:
        links.add('clients to broker 1', ('127.0.0.1', 25001), ('127.0.0.1', 25101))
        links.add('gpu1 to glance', listening(pid, ('127.0.0.1', 25002)), ('127.0.0.1', 25002))
        links.cut(['clients to broker 1'])      # silence, as behind a dead switch: connections stay open
        links.heal()                            # what was on its way arrives

Each link is a relay, so that nothing of the machine (firewall, routes, namespaces) is touched and no privilege is
needed. It differs from a dead switch in one thing: a new connection seems to open, and then gets no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

Address = tuple[str, int]
# Where a link leads: an address here, or what connects a socket elsewhere.
Far = Address | Callable[[], socket.socket]
CHUNK = 1 << 16
CLONE_NEWNET = 0x40000000
# Seconds for a connection on one machine.
PATIENCE = 10.0


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, near: Address | socket.socket, far: Far) -> None:
        """Carry what connects to ``near`` on to ``far``.

        ``near`` is an address, or a socket that listens. ``far`` is an address, or a function that returns a connected
        socket or raises OSError.
        """
        self._run(self._listen(name, near, far))

    def cut(self, names: Iterable[str]) -> None:
        """Stop these links, and return when they carry nothing more."""
        self._run(self._set(set(names), whole=False))

    def heal(self) -> None:
        """Let all links carry again."""
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

    async def _listen(self, name: str, near: Address | socket.socket, far: Far) -> None:
        whole = self._open[name] = asyncio.Event()
        whole.set()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._carrying.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):  # the links end
                    await _carry(reader, writer, far, whole)
            finally:
                writer.transport.abort()
                self._carrying.discard(task)

        self._servers.append(
            await (
                asyncio.start_server(carry, *near)
                if isinstance(near, tuple)
                else asyncio.start_server(carry, sock=near)
            )
        )


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: Far, whole: asyncio.Event) -> None:
    """Carry bytes in both directions until either side ends. The end itself is passed on only over a whole link."""
    await whole.wait()
    try:
        if isinstance(far, tuple):
            back, forth = await asyncio.open_connection(*far)
        else:
            back, forth = await asyncio.open_connection(sock=await asyncio.to_thread(far))
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


def listening(pid: int, address: Address) -> socket.socket:
    """Return a socket that listens in the network namespace of a process."""
    return _made_in(pid, lambda: socket.create_server(address))


def connected(pid: int, address: Address) -> socket.socket:
    """Return a socket that is connected to an address of the network namespace of a process."""
    return _made_in(pid, lambda: socket.create_connection(address, timeout=PATIENCE))


def _made_in(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    made: list[socket.socket | OSError] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def enter_and_make() -> None:
        # A namespace is a thread's.
        try:
            descriptor = os.open(f'/proc/{pid}/ns/net', os.O_RDONLY)
            try:
                if libc.setns(descriptor, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), 'setns')
            finally:
                os.close(descriptor)
            made.append(make())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    made[0].setblocking(False)
    return made[0]
