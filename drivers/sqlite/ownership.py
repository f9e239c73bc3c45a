"""Who may write to a log's folder: one process at a time, by a lock that ends with it however it ends."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from ...entities.errors import LogUnavailable

LOCK_NAME: Final = "log.lock"

logger = logging.getLogger(__name__)


class Ownership:
    """The lock on a folder, and the last epoch that was written there, which outlives a damaged log file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1

    def take(self) -> None:
        """Make the folder where missing and lock it. Raises LogUnavailable while another process has it."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._content()[0]
            self.give_up()
            raise LogUnavailable(
                f"{self._directory} is written by process {holder}: stop it first, or use another data folder with "
                "--data DIR or IOTSPHERE_DATA",
                pid=holder,
            ) from error
        except OSError as error:
            self.give_up()
            raise LogUnavailable(f"{self._directory} cannot be used: {error.strerror}; check its rights") from error

    def give_up(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def epoch(self) -> int:
        """The last epoch that was written in this folder, 0 when none is known."""
        return self._content()[1]

    def note(self, epoch: int) -> None:
        """Write down who writes here, and in which epoch."""
        os.pwrite(self._lock, f"{os.getpid():<20d} {epoch:<20d}\n".encode(), 0)
        os.fsync(self._lock)

    def _content(self) -> tuple[int, int]:
        try:
            pid, epoch = os.pread(self._lock, 64, 0).split()
            return int(pid), int(epoch)
        except ValueError:  # nothing was noted yet
            return 0, 0

    @staticmethod
    def put_aside(path: Path, epoch: int, reason: object) -> Path:
        """Rename a damaged file with what belongs to it, so that a new one can begin and nothing is destroyed."""
        aside = path.with_name(f"{path.name}.damaged-{epoch}")
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        logger.error("%s is damaged (%s): it lies at %s now, and a new log was begun", path, reason, aside)
        return aside
