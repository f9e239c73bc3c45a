"""What the jobs must come to, computed by others: SQL of DuckDB over the same readings, and loops that remember all.

Each truth is a table in a DuckDB connection that has the view ``readings``. Nothing here uses the code of the product,
but for the options of the detector, of which only the values count.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import duckdb
import numpy as np

from .habits import followed

ROLLUP: Final = """
WITH once AS (
    SELECT *, list_contains(quality, 'clock_untrusted') AS wild FROM readings WHERE value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY device_id, message_id, metric, sample ORDER BY "offset") = 1),
buckets AS (
    SELECT *, unnest([
        {'resolution': '1m', 'start': date_trunc('minute', event_time)},
        {'resolution': '1h', 'start': date_trunc('hour', event_time)},
        {'resolution': '1d', 'start': date_trunc('day', event_time)}], recursive := true) FROM once)
SELECT domain, device_id, metric, resolution, "start", count(*) AS count, sum(value) AS sum, min(value) AS min,
    max(value) AS max, avg(value) AS mean,
    coalesce(arg_max(value, (event_time, "offset", sample)) FILTER (NOT wild),
        arg_max(value, (event_time, "offset", sample))) AS last,
    quantile_disc(value, 0.5) AS p50, quantile_disc(value, 0.95) AS p95, quantile_disc(value, 0.99) AS p99,
    sum(wild::INT) AS untrusted
FROM buckets GROUP BY domain, device_id, metric, resolution, "start" """
LAKE: Final = """SELECT domain, device_id, metric, value, value_text, value_bool, unit, event_time, received_time, skew_ms,
    quality::VARCHAR AS quality, message_id, "partition", "offset", sample, event_time::DATE AS date FROM """
# What upkeep leaves of a date that is over: each but the first of a sample is marked.
MARKED: Final = """(SELECT * REPLACE (CASE WHEN row_number() OVER (PARTITION BY domain, device_id, message_id, metric, sample,
        event_time::DATE ORDER BY received_time, "partition", "offset") > 1
    THEN list_sort(list_distinct(list_append(quality, 'duplicate'))) ELSE quality END AS quality) FROM readings)"""
STATUS: Final = """SELECT domain, metric, count(*) AS readings, count(DISTINCT device_id) AS devices, min(value) AS min,
    max(value) AS max, avg(value) AS mean, epoch_us(max(event_time)) // 1000 AS newest,
    count_if(list_contains(quality, 'late')) AS late FROM readings GROUP BY domain, metric"""
# Kinds of findings whose rows can be said in a line or two; the limits are those of the job.
QUALITY: Final = """
WITH once AS (SELECT * FROM readings WHERE NOT list_contains(quality, 'clock_untrusted')
        QUALIFY row_number() OVER (PARTITION BY message_id, metric, sample ORDER BY received_time) = 1),
steps AS (SELECT device_id, metric, event_time AS until, lag(event_time) OVER (
        PARTITION BY device_id, metric ORDER BY event_time) AS since FROM once),
usual AS (SELECT device_id, metric, median(epoch_us(until) - epoch_us(since)) AS step FROM steps
        WHERE since < until GROUP BY ALL),
gaps AS (SELECT device_id, metric, epoch_us(since) AS "at", round((epoch_us(until) - epoch_us(since)) / step) - 1 AS count,
        (epoch_us(until) - epoch_us(since)) / 1e6 AS value
        FROM steps JOIN usual USING (device_id, metric)
        WHERE epoch_us(until) - epoch_us(since) > 3 * step AND epoch_us(until) - epoch_us(since) >= 1e6),
messages AS (SELECT device_id, message_id, count(DISTINCT ("partition", "offset")) AS times, min(received_time) AS "at",
        max(skew_ms) AS skew_ms, bool_or(list_contains(quality, 'late')) AS late,
        bool_or(list_contains(quality, 'clock_untrusted')) AS wild FROM readings GROUP BY ALL),
clocks AS (SELECT device_id, epoch_us(min("at")) AS "at", count(*) AS count, any_value(skew) AS skew,
        median(skew_ms) FILTER (NOT wild) AS middle FROM messages JOIN (
            SELECT device_id, median(fastest) AS skew FROM (
                SELECT device_id, max(skew_ms) AS fastest FROM messages WHERE NOT wild
                GROUP BY device_id, date_trunc('hour', "at")) GROUP BY device_id) USING (device_id) GROUP BY device_id),
holes AS (SELECT "offset" - lag("offset") OVER (PARTITION BY "partition" ORDER BY "offset") - 1 AS missing
        FROM (SELECT DISTINCT "partition", "offset" FROM readings)),
firsts AS (SELECT device_id, metric, min(event_time) AS "at" FROM readings GROUP BY ALL)
SELECT 'gap' AS kind, device_id, metric, "at", count, value FROM gaps
UNION ALL SELECT 'hole', NULL, NULL, NULL, sum(missing), count(*) FROM holes WHERE missing > 0 HAVING count(*) > 0
UNION ALL SELECT 'duplicate', device_id, NULL, epoch_us(min("at")), sum(times - 1), count(*) FROM messages
    WHERE times > 1 GROUP BY device_id
UNION ALL SELECT 'late', device_id, NULL, epoch_us(min("at")), count_if(late), count_if(late) / count(*) FROM messages
    GROUP BY device_id HAVING count_if(late) > 0
UNION ALL SELECT 'clock_untrusted', device_id, NULL, epoch_us(min("at")), count_if(wild), count_if(wild) / count(*)
    FROM messages GROUP BY device_id HAVING count_if(wild) > 0
UNION ALL SELECT 'clock_skew', device_id, NULL, "at", count, skew FROM clocks WHERE abs(skew) > 5000
UNION ALL SELECT 'delayed', device_id, NULL, "at", count, skew - middle FROM clocks WHERE skew - middle > 5000
UNION ALL SELECT 'new_metric', device_id, metric, epoch_us("at"), 1, NULL FROM firsts
    QUALIFY "at" - min("at") OVER (PARTITION BY device_id) > INTERVAL 1 DAY"""
FLOW: Final = """SELECT floor(epoch(received_time) / {step})::BIGINT * {step} AS bucket, count(*) AS readings,
    count_if(len(quality) > 0) AS flagged, count(DISTINCT device_id) AS devices FROM readings GROUP BY 1"""
# What is near a percentile by its rank may lie far from it by its value, where there are few readings: so it is asked which
# share of them is below the ends of a band, and which is not above.
BANDS: Final = """WITH shares AS (
        SELECT metric, bucket, avg((value < low)::INT) AS below_low, avg((value <= low)::INT) AS to_low,
            avg((value < middle)::INT) AS below_middle, avg((value <= middle)::INT) AS to_middle,
            avg((value < high)::INT) AS below_high, avg((value <= high)::INT) AS to_high
        FROM (SELECT *, floor(epoch(received_time) / {step})::BIGINT * {step} AS bucket FROM readings
              WHERE value IS NOT NULL) LEFT JOIN bands USING (metric, bucket) GROUP BY ALL)
    SELECT metric, bucket, below_low <= 0.05 + {error} AND to_low >= 0.05 - {error}
        AND below_middle <= 0.5 + {error} AND to_middle >= 0.5 - {error}
        AND below_high <= 0.95 + {error} AND to_high >= 0.95 - {error} AS near FROM shares"""


def opened(files: str) -> duckdb.DuckDBPyConnection:
    """A connection in UTC that sees Parquet files as ``readings``."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET memory_limit = '2GB'; SET threads = 2")
    connection.execute(f"CREATE VIEW readings AS SELECT * FROM read_parquet('{files}')")
    return connection


def health(connection: duckdb.DuckDBPyConnection, battery: str) -> list[tuple[Any, ...]]:
    """Per device: messages, gaps, their seconds, the usual distance in s, µs of first and newest event, uptime, and of the
    metric ``battery`` its last value and its change a day.
    """
    rows = connection.execute(
        f"""SELECT domain || '/' || device_id, list((epoch_us(event_time), wild, charge) ORDER BY "offset", event_time) FROM (
        SELECT domain, device_id, "offset", event_time, list_contains(quality, 'clock_untrusted') AS wild,
            any_value(value) FILTER (metric = '{battery}' AND NOT isnan(value)) AS charge
        FROM readings GROUP BY ALL) GROUP BY 1 ORDER BY 1"""
    )
    found = []
    while row := rows.fetchone():
        device, messages = row
        times, latest = list[int](), -(2**63)
        charges: list[tuple[int, float]] = []
        for at, wild, charge in messages:
            if charge is not None and not wild and at >= latest:
                charges.append((at, charge))
            if not wild or not times:
                latest = max(latest, at)
                times.append(at)
        gaps, gap_us, usual, first, newest = whole = followed(times)
        facts = (gaps, gap_us / 1e6, None if usual is None else usual / 1e6, first, newest, whole.uptime)
        found.append((device, len(messages), *facts, *_charge(charges)))
    return found


def _charge(charges: Sequence[tuple[int, float]]) -> tuple[float | None, float | None]:
    """The last value, and the median slope of all pairs of the last 49 that are an hour apart, a day."""
    kept: list[tuple[int, float]] = []
    for at, value in charges:
        if not kept or at - kept[-1][0] >= 3_600_000_000:
            kept.append((at, value))
    slopes = []
    if len(kept[-49:]) > 2:
        times, values = map(np.array, zip(*kept[-49:], strict=True))
        earlier, later = np.triu_indices(len(times), 1)
        slopes = sorted((values[later] - values[earlier]) / (times[later] - times[earlier]) * 86_400e6)
    return charges[-1][1] if charges else None, float(slopes[len(slopes) // 2]) if slopes else None


def alerts(points: Sequence[tuple[int, float, bool]], rule: Any) -> list[tuple[str, str, int, int]]:
    """Changes of alerts of one series: change, kind, raised and at (µs); points are µs, value, whether it is news."""
    known: list[float] = []  # of which the level is taken
    off: list[float] = []  # distances from what was nearby
    levels: list[float] = []  # how far from the level each was
    leaps: list[float] = []
    far: list[int] = []
    found: list[tuple[str, str, int, int]] = []
    alert, raised_at, near, begun, quiet, before = "", 0, 0, 0, 5, 0.0
    same, longest, least, pace, apart, last = 0, 0, 0.0, 0.0, 0, 0
    for at, value, news in points:
        apart = max(0, apart - 1)
        if known:
            step, factor = at - last, 1.05 if min(len(known), rule.window) >= rule.warm_up else 1.5
            pace = pace or float(step)
            apart = 5 if step > 4 * pace else apart
            pace = max(1.0, pace * factor if step > pace else pace / factor)
        last = at
        middle, spread = _robust(known[-rule.window :])
        drift, width = _robust(off[-rule.window :])
        nearby = sorted(known[-5:])[len(known[-5:]) // 2] if known else value
        before = nearby if quiet >= 5 else before
        bases = [nearby, before]
        if not any(far) and min(len(known), rule.window) > 5:
            bases.append(known[-1] + float(np.median(np.diff(known[-6:]))))
        base = bases[int(np.argmin([abs(value - one) for one in bases]))]
        floor = max(2 * least, abs(middle) * rule.relative)
        measures = [("level", middle, max(spread, floor), _wildest(levels, rule.block))]
        measures += [("jump", base + drift, max(width, floor), _wildest(leaps, rule.block))] * (not apart)
        scores = [
            (kind, abs(value - centre) / wide if (wide := max(calm, wild * rule.margin / rule.high)) else 0.0,
             0 < rule.sure * rule.high * calm < abs(value - centre))
            for kind, centre, calm, wild in measures
        ]  # fmt: skip
        kind, score, sure = max(scores, key=lambda one: one[1])
        if news and min(len(known), rule.window) >= rule.warm_up:
            still = bool(rule.stuck and least) and value == known[-1] and same + 2 >= max(rule.stuck, 3 * longest + 1)
            if alert:
                calm_now = (not still and value != known[-1]) if alert == "stuck" else score <= rule.low
                near, quiet = (near + 1, quiet + 1) if calm_now else (0, 0)
                begun = at if near == 1 else begun
                if near >= (1 if alert == "stuck" else rule.calm) and at - begun >= rule.hold_s * 1e6:
                    found.append(("cleared", alert, raised_at, at))
                    same = 0 if alert == "stuck" else same
                    alert, near = "", 0
            else:
                is_far = score > rule.high
                begun = at if is_far and not any(far) else begun
                far = [*far, int(is_far)][-rule.within :]
                quiet = 0 if is_far else quiet + 1
                raises = is_far and (sum(far) >= rule.confirm or sure) and at - begun >= rule.hold_s * 1e6
                if still or raises:
                    alert, raised_at, far, near = kind if raises else "stuck", at, [], 0
                    found.append(("raised", alert, at, at))
        if known:
            change = abs(value - known[-1])
            longest = max(longest, same + 1) if change else longest
            least = (min(least, change) if least else change) if change else least
            same = 0 if change else same + 1
            if least and same > longest:
                continue
            if 2 * min(len(known), rule.window) >= rule.warm_up:
                levels.append(abs(value - middle))
                if not apart:
                    leaps.append(abs(value - base - drift))
            if not apart:
                off.append(value - base)
        known.append(value)
    return found


def _robust(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 0.0
    middle = float(median(values))
    apart = np.sort(np.abs(np.array(values) - middle))
    return middle, 1.4826 * float(apart[len(apart) // 2]) or 1.2533 * float(apart.sum()) / len(apart)


def _wildest(distances: list[float], block: int) -> float:
    full = len(distances) // block
    greatest = [max(distances[number * block : (number + 1) * block]) for number in range(max(0, full - 16), full)]
    return float(np.sort(greatest)[len(greatest) // 2]) if greatest else 0.0
