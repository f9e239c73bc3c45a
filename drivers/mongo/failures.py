"""What the errors of the MongoDB library mean to the gateway."""

from __future__ import annotations

from typing import Final

from bson.errors import BSONError
from pymongo.errors import ConnectionFailure, CursorNotFound, DocumentTooLarge, OperationFailure, PyMongoError

from ...entities.errors import DatabaseUnavailable, IotSphereError, RequestInvalid

Failure = PyMongoError | BSONError | OSError
FAILURES: Final = (PyMongoError, BSONError, OSError)

# Numbers as in the server's error_codes.yml.
WRITE_CONFLICT: Final = 112
TOO_LARGE: Final = 10334
NAMESPACE_EXISTS: Final = 48
NAMESPACE_NOT_FOUND: Final = 26
DUPLICATE_KEY: Final = 11000
NO_OBJECT: Final = 40228
_DENIED: Final = frozenset((13, 18, 8000))
_VALIDATION: Final = 121
# CappedPositionLost, InvalidResumeToken, ChangeStreamFatalError, ChangeStreamHistoryLost.
_LOST: Final = frozenset((136, 260, 280, 286))


def translate(error: Failure, server: str) -> IotSphereError:
    """The error in the gateway's words; without the library's text, which may quote documents."""
    if isinstance(error, BSONError | DocumentTooLarge):
        return RequestInvalid(f"MongoDB cannot hold this value ({type(error).__name__}): change it")
    if isinstance(error, OperationFailure):
        if error.code in _DENIED:
            return DatabaseUnavailable(
                f"MongoDB at {server} refuses this user: check name, password and authSource in the database setting; "
                f"the role readWrite on the database is needed, and dbAdmin to take over collections that others made",
                mongodb_code=error.code,
            )
        if error.code == _VALIDATION:
            return RequestInvalid(
                "a validation rule of the MongoDB collection refuses this document: change one of them"
            )
        return DatabaseUnavailable(
            f"MongoDB at {server} could not do it now ({name_of(error)}): try again", mongodb_code=error.code
        )
    return DatabaseUnavailable(f"MongoDB at {server} does not answer as a primary ({name_of(error)}): try again")


def name_of(error: BaseException) -> str:
    """A short name for logs: the server's name of the error, else the class."""
    if isinstance(error, OperationFailure):
        details = error.details or {}
        return str(details.get("codeName") or error.code)
    return type(error).__name__


def is_passing(error: PyMongoError) -> bool:
    """Whether a change stream that ended so may simply be opened again where it was (specification: resumable)."""
    if isinstance(error, ConnectionFailure | CursorNotFound):
        return True
    return error.has_error_label("ResumableChangeStreamError") or error.has_error_label("RetryableWriteError")


def is_lost(error: PyMongoError) -> bool:
    """Whether what followed the token is gone for good."""
    if not isinstance(error, OperationFailure):
        return False
    return error.code in _LOST or (error.has_error_label("NonResumableChangeStreamError") and error.code != TOO_LARGE)


def is_too_large(error: PyMongoError) -> bool:
    """Whether the next event exceeds what the server can send at once (16 MiB)."""
    return isinstance(error, OperationFailure) and error.code == TOO_LARGE
