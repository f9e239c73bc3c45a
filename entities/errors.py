"""Everything that can be refused or fail, as one tree with stable codes and remedies.

IotSphereError
├── Refused                    the caller's input or rights are at fault; retrying unchanged cannot help
│   ├── TopicInvalid           topic_invalid, topic_too_long
│   ├── FilterInvalid          filter_invalid
│   ├── MessageRefused         one of the dead-letter reasons (see dead_letter.py)
│   ├── Unauthenticated        unauthenticated
│   ├── Forbidden              forbidden
│   │   └── NotFound           not_found ("not found" and "not allowed" read the same)
│   ├── RequestInvalid         request_invalid
│   │   ├── CertificateRejected certificate_rejected (a file of certificates that cannot be used)
│   │   └── DocumentNewer      document_newer (written by a later version of the gateway than this one)
│   ├── CursorInvalid          cursor_invalid
│   ├── UnknownDomain          unknown_domain
│   └── Conflict               conflict
│       └── VersionConflict    version_conflict (the facts hold the version and the state that are there)
├── Limited                    too much or too fast; retry later
│   ├── RateLimited            rate_limited
│   ├── TooManyConnections     too_many_connections
│   └── TooManyGroups          too_many_groups
├── MessagesMissed             messages_missed (a reader cannot get some messages any more; reading on is possible)
├── JobFailed                  job_failed (a job over telemetry ended by an error that is no other's)
└── Unavailable                something below is down, full or being restarted; retry
    ├── LogUnavailable         log_unavailable
    ├── DatabaseUnavailable    database_unavailable
    ├── BrokerUnavailable      broker_unavailable (an external MQTT broker)
    ├── ChangesLost            changes_lost (a change feed cannot go on after its token; begin anew)
    ├── LogFull                log_full
    ├── DurabilityTooWeak      durability_too_weak (start-up; retrying cannot help)
    ├── LeaseHeld              lease_held
    ├── Fenced                 fenced (a newer owner holds the lease; retrying cannot help)
    └── ShuttingDown           shutting_down
"""

from __future__ import annotations

from functools import cache

from .dead_letter import REASONS


class IotSphereError(Exception):
    """An error with a stable ``code``, whether a ``retry`` can help, and a message that says what to do."""

    code = "internal"
    retry = False

    def __init__(self, message: str, *, code: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Refused(IotSphereError):
    """The caller's input or rights are at fault."""

    code = "refused"


class TopicInvalid(Refused):
    """The text is no topic of the topic space."""

    code = "topic_invalid"


class FilterInvalid(Refused):
    """The text is no filter, or it reaches beyond one domain."""

    code = "filter_invalid"


class MessageRefused(Refused):
    """A message that the edge turned away; ``code`` is its dead-letter reason."""

    code = "schema_violation"


class Unauthenticated(Refused):
    """No credential, or one that is not believed."""

    code = "unauthenticated"


class Forbidden(Refused):
    """The principal holds no grant for this."""

    code = "forbidden"


class NotFound(Forbidden):
    """It does not exist, or the principal may not see it; both read the same."""

    code = "not_found"

    def __init__(self) -> None:
        super().__init__("nothing is here: it does not exist, or this credential does not reach it")


class RequestInvalid(Refused):
    """A request that does not follow its protocol."""

    code = "request_invalid"


class CertificateRejected(RequestInvalid):
    """A certificate, key or revocation list that cannot be used; the message names the file."""

    code = "certificate_rejected"


class DocumentNewer(RequestInvalid):
    """A document of the database in a schema that this gateway does not know; it is neither read nor changed."""

    code = "document_newer"


class CursorInvalid(Refused):
    """A cursor that was altered, or was made for other filters or another principal."""

    code = "cursor_invalid"


class UnknownDomain(Refused):
    """The first topic level names no domain of this gateway."""

    code = "unknown_domain"


class Conflict(Refused):
    """Somebody else changed it first."""

    code = "conflict"


class VersionConflict(Conflict):
    """A shadow or another versioned document is at another version than the caller expected."""

    code = "version_conflict"


class Limited(IotSphereError):
    """Too much or too fast."""

    code = "limited"
    retry = True


class RateLimited(Limited):
    """More messages or bytes a second than the client or its domain may send."""

    code = "rate_limited"


class TooManyConnections(Limited):
    """The gateway, or the caller's address, holds as many connections as allowed."""

    code = "too_many_connections"


class TooManyGroups(Limited):
    """The domain has as many shared subscriptions as allowed."""

    code = "too_many_groups"


class MessagesMissed(IotSphereError):
    """Some messages can no longer be had; the fact ``gaps`` holds the exact ranges. Reading may go on after it."""

    code = "messages_missed"


class JobFailed(IotSphereError):
    """A job over telemetry ended by an error of its own, or of the engine that runs it; the message has its first line."""

    code = "job_failed"


class Unavailable(IotSphereError):
    """Something below is down, full or restarting."""

    code = "unavailable"
    retry = True


class LogUnavailable(Unavailable):
    """The log did not answer; what was sent may or may not be in it, and repeating is safe."""

    code = "log_unavailable"


class DatabaseUnavailable(Unavailable):
    """The database did not answer; what was written may or may not be in it."""

    code = "database_unavailable"


class BrokerUnavailable(Unavailable):
    """The external MQTT broker is away, refuses the bridge, or took its session from it."""

    code = "broker_unavailable"


class ChangesLost(Unavailable):
    """The database no longer knows what changed after this token."""

    code = "changes_lost"
    retry = False


class LogFull(Unavailable):
    """The log has no room: memory or disk is at its limit."""

    code = "log_full"


class DurabilityTooWeak(Unavailable):
    """The server below forgets more than the configured durability allows."""

    code = "durability_too_weak"
    retry = False


class LeaseHeld(Unavailable):
    """Another owner holds the partition for this reader."""

    code = "lease_held"


class Fenced(Unavailable):
    """The lease was taken over; this owner's work no longer counts."""

    code = "fenced"
    retry = False


class ShuttingDown(Unavailable):
    """The gateway is draining; reconnect with the cursor."""

    code = "shutting_down"


def error_of(code: str, message: str, **facts: object) -> IotSphereError:
    """The error that a code from a wire stands for; an unknown code is a plain IotSphereError."""
    kind = _kinds().get(code, IotSphereError)
    error = kind.__new__(kind)
    IotSphereError.__init__(error, message, code=code, **facts)
    return error


@cache
def _kinds() -> dict[str, type[IotSphereError]]:
    kinds: dict[str, type[IotSphereError]] = {"topic_too_long": TopicInvalid}
    waiting = list(IotSphereError.__subclasses__())
    while waiting:
        kind = waiting.pop()
        kinds[kind.code] = kind
        waiting += kind.__subclasses__()
    return dict.fromkeys(REASONS, MessageRefused) | kinds
