"""The destination of a move on another machine, which the service user reaches by ssh.

    place = Remote(offer, uuid, 'gpu1', FileTransport('ssh', bandwidth=0))

The other machine needs sh, coreutils, qemu-img, and rsync if rsync is configured. Files are sent in blocks. The other
machine flushes each block to its disk before the next block is sent, so a transfer that was cut continues after the
last complete block. A local program ends with this process, and the remote program ends with the connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from oslo_log import log as logging

from kilonova import concurrency, errors
from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.instance import mark_of
from kilonova.virt.parts.moves import MoveOffer

LOG = logging.getLogger(__name__)
T = TypeVar('T')

# BLOCK: number of bytes that one ssh process sends. PIECE: number of bytes in one read or write.
BLOCK, PIECE = 256 << 20, 1 << 20
# The ssh command. ssh sends a keepalive message every 5 seconds, and ends after 3 unanswered messages.
_SSH = (
    'setpriv',
    '--pdeathsig',
    'KILL',
    'ssh',
    '-T',
    '-o',
    'BatchMode=yes',
    '-o',
    'ConnectTimeout=10',
    '-o',
    'ServerAliveInterval=5',
    '-o',
    'ServerAliveCountMax=3',
)
# Time limit in seconds for ``check``, which may hang, for example because of a network file system.
_CHECKED_WITHIN = 60.0
# Seconds before each retry after the connection was cut.
_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0)
# Exit codes that mean a failed connection: 255 of ssh, and rsync's codes for errors of sockets, streams and timeouts.
_CUT = frozenset({10, 12, 30, 35, 255})
_ADDRESS = re.compile(r'[0-9A-Za-z][0-9A-Za-z.:_-]{0,254}|::[0-9A-Fa-f:.]{1,45}')

_CHECK = 'cat "$1/.storage_id" && test -w "$1" && df -B1 --output=avail "$1" | tail -n 1'
_MARK = 'cat "$1/move.json" 2>/dev/null || true'
_BEGIN = (
    'if [ "$(cat "$1/move.json" 2>/dev/null)" != "$2" ]; then rm -rf "$1" && mkdir -p "$1" && '
    'umask 077 && printf %s "$2" > "$1/move.json"; fi'
)
_SIZE = 'stat -c %s "$1" 2>/dev/null || true'
_WRITE = (
    'umask 077; dd of="$1" bs=65536 iflag=fullblock oflag=seek_bytes seek="$2" conv=notrunc,sparse,fsync status=none'
)
_TRUNCATE = 'umask 077; truncate -s "$2" "$1"'
_HEAD = 'if [ -e "$1" ]; then head -c 4 "$1" | od -An -tx1; fi'
_SUM = 'sha256sum < "$1"'
_DIRECTORY = 'mkdir -p "$1"'
# If the answer to a run of _MOVE or _END is lost, it is run again: it finds the rename done, and does nothing.
_MOVE = 'if [ -e "$1" ]; then mv "$1" "$2"; fi'
_END = (
    'if [ -e "$1" ]; then rm -rf "$2_del" && if [ -e "$2" ]; then mv "$2" "$2_del"; fi && mv "$1" "$2" && '
    'rm -rf "$2_del"; fi'
)
_DISCARD = (
    'for each in "$1" "$2"; do if [ "$(cat "$each/move.json" 2>/dev/null)" = "$3" ]; then rm -rf "${each}_del" '
    '&& mv "$each" "${each}_del" && rm -rf "${each}_del" && echo "$each"; fi; done; rm -f "$4"/*."$5"'
)


class Cut(command.CommandFailed):
    """The error of a command or a transfer whose ssh connection to the other machine was cut.

    Data that have arrived at the other machine are kept there, so the transfer can be continued.
    """


@dataclass(frozen=True)
class FileTransport:
    """The way to send files: [libvirt]remote_filesystem_transport (``ssh`` or ``rsync``) and a bandwidth limit.

    ``bandwidth`` is in bytes per second; 0 means no limit.
    """

    kind: str = 'ssh'
    bandwidth: int = 0


class Remote:
    """The directory of one server on another machine, to which a move copies the server's disks by SSH.

    Implements the protocol ``destination.MoveDestination``. ``here`` is the name of this host (the source), which
    error messages contain.
    """

    def __init__(self, offer: MoveOffer, uuid: str, here: str, transport: FileTransport) -> None:
        self._offer, self._here, self._transport = offer, here, transport
        self._path = offer['instances_path']
        self._arrived = os.path.join(self._path, uuid)
        self.coming = f'{self._arrived}_incoming'
        self._pace = _Pace(transport.bandwidth)

    # -- steps of a move, as the class MoveDestination defines them ----------------------------------

    def check(self) -> int:
        """Return the number of free bytes in the storage of the destination.

        Raises DisksUnmovable if the destination can't be reached, if it does not answer within 60 s, or if its storage
        is not writable. Also raises DisksUnmovable if the id of the storage differs from ``storage_id`` in the
        destination's MoveOffer.
        """
        address = self._offer.get('address') or ''
        if not _ADDRESS.fullmatch(address):
            raise self._unmovable(f"[DEFAULT]my_ip of the destination is '{address}', which is not an address")
        try:
            found, free = self._once(_CHECK, self._path, within=_CHECKED_WITHIN).split()
        except (command.CommandFailed, ValueError) as error:
            raise self._unmovable(str(error)) from error
        if found != self._offer['storage_id']:
            raise self._unmovable(f'the machine at {address} does not have the storage id of the destination')
        return int(free)

    def has_arrived(self, move: str) -> bool:
        """Return True if the server's directory at the destination is the copy that this move has made."""
        return self._run(_MARK, self._arrived) == mark_of(move)

    def begin(self, move: str) -> None:
        """Make an empty directory for the copy on the other machine, and record in it the id ``move`` of the move.

        If the directory exists and has this record already, it is kept.
        """
        self._run(_BEGIN, self.coming, mark_of(move))

    def put(self, paths: Sequence[str], directory: str, going: Callable[[int], None]) -> None:
        """Send files to a directory on the other machine.

        ``going`` is called often, with the number of bytes that were sent since its last call.
        """
        for path in paths:
            self._send(path, os.path.join(directory, os.path.basename(path)), going)

    def base(self, path: str) -> str | None:
        """Return the format of a base file on the other machine, or None if the file does not exist."""
        head = self._run(_HEAD, path).split()
        if not head:
            return None
        return 'qcow2' if bytes.fromhex(''.join(head)) == disk.QCOW2 else 'raw'

    def put_base(self, path: str, target: str, move: str, going: Callable[[int], None]) -> None:
        """Send the base file ``path`` under a temporary name, compare checksums, and rename the copy to ``target``.

        The temporary name contains ``move``, the id of the move. ``going`` is called with the number of bytes that were
        sent. Raises CommandFailed if the content of the copy differs.
        """
        aside = f'{target}.{move}'
        self._run(_DIRECTORY, os.path.dirname(target))
        self._send(path, aside, going)
        there = self._run(_SUM, aside).split()[0]
        if there != _sum(path, lambda: going(0)):
            self._run('rm -f "$1"', aside)
            raise command.CommandFailed(
                command='copying a base file', reason=f'{os.path.basename(path)} arrived with a different checksum'
            )
        self._run(_MOVE, aside, target)

    def rebase(self, name: str, base: str, format_: str) -> None:
        """Change the copied overlay ``name``, so that it reads from the other machine's base file ``base``.

        ``format_`` is the format of the base file.
        """
        self._run(shlex.join(disk.rebase(os.path.join(self.coming, name), base, format_)))

    def end(self, move: str) -> None:
        """Rename the complete copy to the server's directory. A directory that has this name already is replaced."""
        self._run(_END, self.coming, self._arrived)

    def discard(self, move: str) -> list[str]:
        """Delete the server's directories and the incomplete base files that the move ``move`` made at the destination.

        Return the paths of the deleted directories.
        """
        return self._once(_DISCARD, self.coming, self._arrived, mark_of(move), self._offer['base_path'], move).split()

    # -- running programs on the other machine -------------------------------------------------------

    def _unmovable(self, reason: str) -> errors.DisksUnmovable:
        return errors.DisksUnmovable(source=self._here, dest=self._offer['host'], reason=reason)

    def _argv(self, script: str, *args: str) -> list[str]:
        return [*_SSH, '--', self._offer['address'], shlex.join(('sh', '-c', script, 'sh', *args))]

    def _run(self, script: str, *args: str) -> str:
        """Run a script at the destination and return its output. Retry if the connection is cut.

        All scripts can safely be repeated.
        """
        return _repeated(lambda: self._once(script, *args))

    def _once(self, script: str, *args: str, within: float | None = None) -> str:
        """Run a script at the destination and return its output.

        ``within`` is the time limit in seconds. Raises Cut if the connection fails or the time limit is exceeded, and
        CommandFailed if the script fails.
        """
        with subprocess.Popen(
            self._argv(script, *args),
            env=command.ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                # ``wait`` gets the time limit, because it raises subprocess.TimeoutExpired also under eventlet.
                # Under eventlet, ``communicate`` would raise another exception class at its time limit.
                if within is not None:
                    process.wait(within)
                out, said = process.communicate()
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise Cut(command=f'ssh {self._offer["address"]}', reason=f'no answer within {within:g} s') from error
            except BaseException:
                process.kill()
                raise
        self._raise_for(process.returncode, said)
        return out.strip()

    def _raise_for(self, code: int, said: str) -> None:
        if code:
            kind = Cut if code in _CUT or code < 0 else command.CommandFailed
            raise kind(command=f'ssh {self._offer["address"]}', reason=said.strip()[-500:] or f'exit code {code}')

    # -- sending files -------------------------------------------------------------------------------

    def _send(self, path: str, target: str, going: Callable[[int], None]) -> None:
        send = self._by_rsync if self._transport.kind == 'rsync' else self._by_blocks
        _repeated(lambda: send(path, target, going), lambda: going(0))

    def _by_rsync(self, path: str, target: str, going: Callable[[int], None]) -> None:
        limit = self._transport.bandwidth >> 10
        address = self._offer['address']
        argv = [
            'setpriv',
            '--pdeathsig',
            'KILL',
            'rsync',
            '--inplace',
            '--sparse',
            '--chmod=F600',
            '--timeout=30',
            *([f'--bwlimit={limit}'] if limit else []),
            '-e',
            shlex.join(_SSH[3:]),
            '--',
            path,
            f'{f"[{address}]" if ":" in address else address}:{target}',
        ]
        try:
            command.watched(lambda: going(0), *argv)
        except command.CommandFailed as error:
            self._raise_for(error.exit_code, error.said or str(error))
        going(files.used(path))

    def _by_blocks(self, path: str, target: str, going: Callable[[int], None]) -> None:
        size = os.path.getsize(path)
        # Skip blocks that an earlier attempt has sent. The last of them may be incomplete, so it is sent again.
        there = int(self._run(_SIZE, target) or 0)
        begin = size if there == size else there // BLOCK * BLOCK
        with open(path, 'rb', buffering=0) as stream:
            for start, length in _blocks(stream, size):
                if start + length > begin:
                    self._block(stream, start, length, target, going)
                else:
                    going(length)
        self._run(_TRUNCATE, target, str(size))

    def _block(self, stream: IO[bytes], start: int, length: int, target: str, going: Callable[[int], None]) -> None:
        sent = 0
        # The pipe is written without os.write, because eventlet's os.write works in green threads only.
        reads, writes = os.pipe()
        pipe = io.FileIO(writes, 'wb')
        # stderr goes to a file: ssh would hang if stderr were a pipe that is full, because no thread reads it now.
        with tempfile.TemporaryFile('w+', errors='replace') as stderr, contextlib.ExitStack() as open_ends:
            open_ends.callback(pipe.close)
            try:
                process = subprocess.Popen(
                    self._argv(_WRITE, target, str(start)),
                    env=command.ENVIRONMENT,
                    stdin=reads,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    text=True,
                )
            finally:
                os.close(reads)
            try:
                # If ssh ends early, the write fails. Ignore this error: ssh's exit code and stderr have the reason.
                with contextlib.suppress(BrokenPipeError):
                    while sent < length:
                        count = min(PIECE, length - sent)
                        concurrency.native(_move, stream.fileno(), pipe, start + sent, count)
                        sent += count
                        going(count)
                        self._pace.wait(count)
                open_ends.close()
                code = process.wait()
                if code or sent < length:
                    stderr.seek(0)
                    self._raise_for(code or 255, stderr.read())
            except BaseException:
                process.kill()
                process.wait()
                # Subtract this block's bytes from the progress, because the whole block will be sent again.
                with contextlib.suppress(Exception):
                    going(-sent)
                raise


class _Pace:
    """A limiter of the average transfer rate, in bytes per second."""

    def __init__(self, limit: int) -> None:
        self._limit, self._due = limit, 0.0

    def wait(self, count: int) -> None:
        if self._limit:
            now = time.monotonic()
            self._due = max(self._due, now) + count / self._limit
            time.sleep(self._due - now)


def _move(source: int, target: io.FileIO, offset: int, count: int) -> None:
    """Write ``count`` bytes of the file ``source``, beginning at ``offset``, to the pipe ``target``."""
    data = os.pread(source, count, offset)
    # Send zeros if the source file (a log, for example) has become shorter: the receiver expects ``count`` bytes.
    data = data.ljust(count, b'\0')
    view = memoryview(data)
    while view:
        view = view[target.write(view) :]


def _blocks(stream: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each block of a file that has data. Blocks that are only holes are left out."""
    position = 0
    while position < size:
        try:
            start = os.lseek(stream.fileno(), position, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        start = start // BLOCK * BLOCK
        end = min(start + BLOCK, size)
        yield start, end - start
        position = end


def _sum(path: str, going: Callable[[], None]) -> str:
    found = hashlib.sha256()
    with open(path, 'rb', buffering=0) as stream:
        while data := concurrency.native(stream.read, PIECE):
            concurrency.native(found.update, data)
            going()
    return found.hexdigest()


def _repeated(act: Callable[[], T], between: Callable[[], None] = lambda: None) -> T:
    for pause in _PAUSES:
        try:
            return act()
        except Cut as error:
            LOG.warning('The connection to the destination was cut: %s; trying again in %s s', error, pause)
            end = time.monotonic() + pause
            while time.monotonic() < end:
                between()
                time.sleep(0.1)
    return act()
