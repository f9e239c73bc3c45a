/* What a listener checks: which message of which device has come, in which order, how often and how late.
 *
 * Every connection keeps its own account, so that a message which only one of a hundred clients lacks is found.
 */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include "json.h"
#include "measure.h"

struct seen {
    uint32_t highest; /* 1 + the highest sequence number seen */
    struct bitmap received;
};

static struct credential *devices;
static unsigned device_count, table_mask, *table; /* 1 + the device's number, by the hash of its id */
static struct histogram latency, slice;
static uint64_t count_from;
static uint64_t messages, distinct, reordered, duplicated, foreign, counted, first_at, last_at;

static unsigned hash(const char *id, size_t n) {
    unsigned h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)id[i]) * 16777619u;
    return h;
}

static void know_devices(const char *path) {
    devices = read_credentials(path, &device_count);
    for (table_mask = 1; table_mask < device_count * 4; table_mask *= 2) {}
    table = must(calloc(table_mask, sizeof *table));
    table_mask--;
    for (unsigned i = 0; i < device_count; i++) {
        unsigned at = hash(devices[i].id, strlen(devices[i].id)) & table_mask;
        while (table[at]) at = (at + 1) & table_mask;
        table[at] = i + 1;
    }
}

/* The number of the device of "…/devices/{id}/…", or of "….devices.{id}.…"; -1 when it is none of ours. */
static int device_of(const char *topic, size_t length) {
    const char *end = topic + length, *id = memmem(topic, length, "devices", 7);
    if (!id || end - id < 9 || (id[7] != '/' && id[7] != '.')) return -1;
    id += 8;
    const char *stop = memchr(id, id[-1], (size_t)(end - id));
    if (!stop) return -1;
    size_t n = (size_t)(stop - id);
    for (unsigned at = hash(id, n) & table_mask; table[at]; at = (at + 1) & table_mask) {
        const char *known = devices[table[at] - 1].id;
        if (!strncmp(known, id, n) && !known[n]) return (int)table[at] - 1;
    }
    return -1;
}

static void count_message(struct seen *seen, int device, int64_t sequence, int64_t due, uint64_t now) {
    messages++;
    if (!first_at) first_at = now;
    last_at = now;
    if (device < 0 || sequence < 0 || sequence > INT32_MAX) {
        foreign++;
        return;
    }
    struct seen *d = &seen[device];
    if (!bitmap_add(&d->received, (uint32_t)sequence)) {
        duplicated++;
        return;
    }
    distinct++;
    if ((uint32_t)sequence < d->highest) reordered++;
    else d->highest = (uint32_t)sequence + 1;
    if (count_from && (uint64_t)due >= count_from) {
        uint64_t late = now > (uint64_t)due ? now - (uint64_t)due : 0;
        counted++;
        histogram_add(&latency, late);
        histogram_add(&slice, late);
    }
}

/* {"seq":…,"t":…}, bare or as the payload of an envelope. */
static const char *read_payload(const char *at, const char *end, int64_t *sequence, int64_t *due) {
    struct json_key key;
    for (at = json_enter(at, end, '{'); (at = json_next_key(at, end, &key));) {
        if (json_is(&key, "seq")) at = json_number(at, end, sequence);
        else if (json_is(&key, "t")) at = json_number(at, end, due);
        else at = json_skip(at, end);
        if (!at) return NULL;
    }
    return json_after(end, &key);
}

static const char *read_envelope(struct seen *seen, const char *at, const char *end, uint64_t now) {
    struct json_key key, inner;
    int device = -1;
    int64_t sequence = -1, due = 0;
    for (at = json_enter(at, end, '{'); (at = json_next_key(at, end, &key));) {
        if (json_is(&key, "metadata")) {
            for (at = json_enter(at, end, '{'); (at = json_next_key(at, end, &inner));) {
                const char *value = at;
                at = json_skip(at, end);
                if (!at) return NULL;
                if (json_is(&inner, "topic")) device = device_of(value + 1, (size_t)(at - value - 2));
            }
            at = json_after(end, &inner);
        } else if (json_is(&key, "payload")) {
            at = *at == '{' ? read_payload(at, end, &sequence, &due) : json_skip(at, end);
        } else {
            at = json_skip(at, end);
        }
        if (!at) return NULL;
    }
    count_message(seen, device, sequence, due, now);
    return json_after(end, &key);
}

static void read_messages(struct seen *seen, const char *at, const char *end, uint64_t now) {
    for (at = json_enter(at, end, '['); at && *at != ']';) {
        at = read_envelope(seen, at, end, now);
        if (at) at = json_space(at, end);
        if (at && *at == ',') at = json_space(at + 1, end);
    }
    if (!at) die("the server sent a frame that is no JSON", NULL);
}

static void read_bare(struct seen *seen, int device, const char *at, const char *end, uint64_t now) {
    int64_t sequence = -1, due = 0;
    if (!read_payload(at, end, &sequence, &due)) die("a payload is no JSON", NULL);
    count_message(seen, device, sequence, due, now);
}

#endif
