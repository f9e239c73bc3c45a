"""The connection to a MongoDB replica set: how it is opened, how long a request may take, and what its failures mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import pymongo
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from pymongo.errors import ConfigurationError, InvalidURI, NetworkTimeout
from pymongo.uri_parser import parse_uri

from ...entities.errors import DatabaseUnavailable, RequestInvalid
from .failures import FAILURES, translate
from .options import MongoOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")
Document = dict[str, Any]
Client = AsyncIOMotorClient[Document]
Database = AsyncIOMotorDatabase[Document]
Collection = AsyncIOMotorCollection[Document]
Session = AsyncIOMotorClientSession

OLDEST: Final = (6, 0)
GRACE_S: Final = 1.0
CLOSING_S: Final = 2.0
LONGEST_S: Final = 3_600.0
# What others wrote is read whatever it is: years beyond datetime's, damaged text.
CODEC: Final = CodecOptions(
    document_class=dict[str, Any],
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
    uuid_representation=UuidRepresentation.STANDARD,
)


class Link:
    """One client, with its pool of connections; open it with ``open`` and close it with ``close``."""

    def __init__(self, url: str, options: MongoOptions) -> None:
        self._name, self.server = _parts_of(url)
        self.options = options
        self._url = url
        self._client: Client | None = None

    async def open(self) -> None:
        """Connect, and look whether the server can do what is needed. Raises DatabaseUnavailable, RequestInvalid."""
        timeout_ms = int(self.options.timeout * 1000)
        try:
            self._client = await asyncio.to_thread(
                Client,
                self._url,
                appname="iotsphere",
                w="majority",
                journal=True,
                readConcernLevel="majority",
                readPreference="primary",
                retryWrites=True,
                retryReads=True,
                connectTimeoutMS=timeout_ms // 2,
                serverSelectionTimeoutMS=timeout_ms,
                socketTimeoutMS=timeout_ms,
                heartbeatFrequencyMS=2_000,
            )
        except (ConfigurationError, InvalidURI, OSError) as error:
            raise RequestInvalid(f"the MongoDB URL cannot be used: {error}; correct it") from error
        try:
            await self._examine()
        except BaseException:
            await self.close()
            raise

    async def _examine(self) -> None:
        greeting = await self.command({"hello": 1})
        if "setName" not in greeting and greeting.get("msg") != "isdbgrid":
            raise RequestInvalid(
                f"MongoDB at {self.server} is no replica set, and so tells no changes: start mongod with --replSet and "
                f"call rs.initiate() once; one member is enough"
            )
        version = (await self.command({"buildInfo": 1}))["versionArray"]
        if tuple(version[:2]) < OLDEST:
            raise RequestInvalid(
                f"MongoDB at {self.server} is version {version[0]}.{version[1]}, which keeps no pre-images: use 6.0 or later"
            )

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            with pymongo.timeout(CLOSING_S):  # it says goodbye to a server that may be away
                await asyncio.to_thread(client.close)

    @property
    def client(self) -> Client:
        """The library's client. Raises DatabaseUnavailable when it is not open."""
        if self._client is None:
            raise DatabaseUnavailable("the database is closed: open it first")
        return self._client

    @property
    def database(self) -> Database:
        """The library's database."""
        return self.client.get_database(self._name, codec_options=CODEC)

    def collection(self, name: str) -> Collection:
        """The library's collection."""
        return self.database.get_collection(name)

    async def run(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request within the timeout. Raises DatabaseUnavailable, RequestInvalid.

        The library works in threads: a request that is given up here may still be carried out there.
        """
        with pymongo.timeout(self.options.timeout):
            return await self.patiently(request, self.options.timeout)

    async def patiently(self, request: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Make a request that ends by itself after so many seconds. Raises DatabaseUnavailable, RequestInvalid."""
        try:
            # The library's threads may all be busy waiting; whoever asks is told in time all the same.
            async with asyncio.timeout(seconds + GRACE_S):
                return await request()
        except TimeoutError as error:
            raise DatabaseUnavailable(f"MongoDB at {self.server} does not answer in time: try again") from error
        except FAILURES as error:
            raise translate(error, self.server) from error

    async def at_length(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request that may take an hour on a large collection, and that may be repeated while it is under way.

        Raises DatabaseUnavailable when the server is away, RequestInvalid.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONGEST_S
        while True:
            try:
                # Without a limit in the server, which would give up and undo what it has done.
                return await self.patiently(request, self.options.timeout)
            except DatabaseUnavailable as error:
                if not isinstance(error.__cause__, NetworkTimeout | TimeoutError) or loop.time() > deadline:
                    raise
            await self.command({"ping": 1})
            logger.info("MongoDB at %s is at work on a large collection; waiting for it", self.server)

    async def command(self, command: Mapping[str, Any], session: Session | None = None) -> Document:
        """Run a command on the database. Raises DatabaseUnavailable, RequestInvalid."""
        return await self.run(lambda: self.raw_command(command, session))

    async def raw_command(self, command: Mapping[str, Any], session: Session | None = None) -> Document:
        """Run a command; raises the library's errors."""
        reply: Document = await self.database.command(dict(command), session=session, codec_options=CODEC)
        return reply


def _parts_of(url: str) -> tuple[str, str]:
    """The database and the servers that a URL names. Raises RequestInvalid, without the password."""
    if url.startswith("mongodb+srv://"):  # the servers are looked up when it is opened
        host, _, path = url.partition("://")[2].rpartition("@")[2].partition("/")
        name, server = path.partition("?")[0], host
    else:
        try:
            parsed = parse_uri(url)
        except OSError as error:
            raise RequestInvalid(
                f"a file that the MongoDB URL names cannot be used: {error.strerror}; correct it"
            ) from error
        except (ConfigurationError, InvalidURI, ValueError) as error:
            raise RequestInvalid(
                "the database's address is no MongoDB URL: write mongodb://HOST:PORT/NAME?replicaSet=…"
            ) from error
        name = parsed["database"] or ""
        server = ",".join(f"{host}:{port}" for host, port in parsed["nodelist"])
    if not name:
        raise RequestInvalid("the MongoDB URL names no database: write mongodb://HOST:PORT/NAME?replicaSet=…")
    return name, server
