/* One consumer under load: reads every message from a WebSocket (or, for a peer, from an MQTT broker) and checks it.
 *
 * Per device it counts duplicates and messages that overtook each other, keeps the set of sequence numbers received,
 * and measures from the moment at which the message fell due to the moment at which it was read here.
 *
 * Commands on standard input: "from NS" counts latency for messages due at or after NS; "expect N" ends the program
 * once N different messages have arrived, or nothing has for --idle seconds. Prints {"event":"ready"} when subscribed,
 * then one JSON line with the results.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <poll.h>
#include <sys/prctl.h>

#include "json.h"
#include "measure.h"
#include "socket.h"

struct device {
    const char *id;
    uint32_t highest; /* 1 + the highest sequence number seen */
    struct bitmap received;
};

static struct {
    const char *host, *port, *path, *token, *filter, *devices, *received, *user;
    int mqtt;
    double idle;
} want = {.host = "127.0.0.1", .port = "8765", .path = "/", .idle = 5,
          .filter = "iotsphere/devices/+/telemetry/#", .user = "bench-listener"};

static struct device *devices, **table;
static unsigned device_count, table_mask;
static struct histogram latency;
static uint64_t count_from, expected = UINT64_MAX;
static uint64_t messages, distinct, reordered, duplicated, foreign, notices, frames, bytes_in;
static uint64_t first_at, last_at, counted;
static struct outbox out;
static int fd, ready;

static unsigned hash(const char *id, size_t n) {
    unsigned h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)id[i]) * 16777619u;
    return h;
}

static void know_devices(void) {
    struct credential *list = read_credentials(want.devices, &device_count);
    devices = must(calloc(device_count, sizeof *devices));
    for (table_mask = 1; table_mask < device_count * 4; table_mask *= 2) {}
    table = must(calloc(table_mask, sizeof *table));
    table_mask--;
    for (unsigned i = 0; i < device_count; i++) {
        devices[i].id = list[i].id;
        unsigned at = hash(list[i].id, strlen(list[i].id)) & table_mask;
        while (table[at]) at = (at + 1) & table_mask;
        table[at] = &devices[i];
    }
}

/* The device of ".../devices/{id}/...", or NULL when it is none of ours. */
static struct device *device_of(const char *topic, size_t length) {
    const char *end = topic + length, *id = memmem(topic, length, "devices/", 8);
    if (!id) return NULL;
    id += 8;
    const char *stop = memchr(id, '/', (size_t)(end - id));
    if (!stop) return NULL;
    size_t n = (size_t)(stop - id);
    for (unsigned at = hash(id, n) & table_mask; table[at]; at = (at + 1) & table_mask)
        if (!strncmp(table[at]->id, id, n) && !table[at]->id[n]) return table[at];
    return NULL;
}

static void count_message(struct device *d, int64_t sequence, int64_t due, uint64_t now) {
    messages++;
    if (!first_at) first_at = now;
    last_at = now;
    if (!d || sequence < 0 || sequence > INT32_MAX) {
        foreign++;
        return;
    }
    if (!bitmap_add(&d->received, (uint32_t)sequence)) {
        duplicated++;
        return;
    }
    distinct++;
    if ((uint32_t)sequence < d->highest) reordered++;
    else d->highest = (uint32_t)sequence + 1;
    if (count_from && (uint64_t)due >= count_from) {
        counted++;
        histogram_add(&latency, now > (uint64_t)due ? now - (uint64_t)due : 0);
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

static const char *read_envelope(const char *at, const char *end, uint64_t now) {
    struct json_key key, inner;
    struct device *d = NULL;
    int64_t sequence = -1, due = 0;
    for (at = json_enter(at, end, '{'); (at = json_next_key(at, end, &key));) {
        if (json_is(&key, "metadata")) {
            for (at = json_enter(at, end, '{'); (at = json_next_key(at, end, &inner));) {
                const char *value = at;
                at = json_skip(at, end);
                if (!at) return NULL;
                if (json_is(&inner, "topic")) d = device_of(value + 1, (size_t)(at - value - 2));
            }
            at = json_after(end, &inner);
        } else if (json_is(&key, "payload")) {
            at = *at == '{' ? read_payload(at, end, &sequence, &due) : json_skip(at, end);
        } else {
            at = json_skip(at, end);
        }
        if (!at) return NULL;
    }
    count_message(d, sequence, due, now);
    return json_after(end, &key);
}

static void read_messages(const char *at, const char *end, uint64_t now) {
    for (at = json_enter(at, end, '['); at && *at != ']';) {
        at = read_envelope(at, end, now);
        if (at) at = json_space(at, end);
        if (at && *at == ',') at = json_space(at + 1, end);
    }
    if (!at) die("the server sent a frame that is no JSON", NULL);
}

static void subscribed(void) {
    if (ready++) return;
    printf("{\"event\":\"ready\"}\n");
    fflush(stdout);
}

/* One text of the product's protocol. */
static void read_text(const char *text, size_t length, uint64_t now) {
    const char *end = text + length, *at, *list = NULL;
    struct json_key key;
    char type[32] = "";
    for (at = json_enter(text, end, '{'); (at = json_next_key(at, end, &key));) {
        const char *value = at;
        if (json_is(&key, "messages") && !strcmp(type, "messages")) {
            read_messages(value, end, now); /* what follows the list is of no interest here */
            return;
        }
        at = json_skip(at, end);
        if (!at) break;
        if (json_is(&key, "type")) snprintf(type, sizeof type, "%.*s", (int)(at - value - 2), value + 1);
        else if (json_is(&key, "messages")) list = value;
    }
    if (!strcmp(type, "messages") && list) {
        read_messages(list, end, now);
    } else if (!strcmp(type, "ok")) {
        subscribed();
    } else if (!strcmp(type, "error")) {
        fprintf(stderr, "%.*s\n", (int)(length < 2000 ? length : 2000), text);
        exit(1);
    } else {
        notices++;
        if (notices <= 5) fprintf(stderr, "notice: %.*s\n", (int)(length < 300 ? length : 300), text);
    }
}

static void send_frame(int opcode, const char *data, size_t length) {
    uint8_t *at = outbox_reserve(&out, length + 14);
    *at++ = (uint8_t)(0x80 | opcode);
    if (length < 126) {
        *at++ = (uint8_t)(0x80 | length);
    } else {
        *at++ = 0x80 | 126;
        *at++ = (uint8_t)(length >> 8);
        *at++ = (uint8_t)length;
    }
    memset(at, 0, 4); /* a mask of zeros leaves the bytes as they are */
    memcpy(at + 4, data, length);
    out.end = (size_t)(at + 4 + length - out.bytes);
    outbox_flush(&out, fd);
}

static struct {
    char *bytes;
    size_t length, room;
} text;

/* RFC 6455 section 5: one frame from the buffer. Returns its length, 0 when more bytes are needed. */
static size_t websocket_frame(const uint8_t *in, size_t have, uint64_t now) {
    if (have < 2) return 0;
    uint64_t length = in[1] & 127;
    size_t head = 2;
    if (in[1] & 128) die("the server sent a masked frame", NULL);
    if (length >= 126) {
        size_t wide = length == 126 ? 2 : 8;
        if (have < head + wide) return 0;
        length = 0;
        for (size_t i = 0; i < wide; i++) length = length << 8 | in[head + i];
        head += wide;
    }
    if (have < head + length) return 0;
    const char *data = (const char *)in + head;
    int opcode = in[0] & 15, final = in[0] & 128;
    if (in[0] & 0x70) die("the server used an extension that was not agreed", NULL);
    if (opcode == 9) {
        send_frame(10, data, length);
    } else if (opcode == 8) {
        fprintf(stderr, "closed by the server: %u %.*s\n", length > 1 ? (unsigned)in[head] << 8 | in[head + 1] : 0,
                length > 2 ? (int)length - 2 : 0, data + 2);
        exit(1);
    } else if (opcode < 3) {
        frames++;
        if (final && !text.length) {
            read_text(data, length, now);
        } else {
            if (text.length + length > text.room)
                text.bytes = must(realloc(text.bytes, text.room = 2 * (text.length + length)));
            memcpy(text.bytes + text.length, data, length);
            text.length += length;
            if (final) {
                read_text(text.bytes, text.length, now);
                text.length = 0;
            }
        }
    }
    return head + length;
}

static size_t mqtt_frame(const uint8_t *in, size_t have, uint64_t now) {
    size_t body, length = mqtt_packet(in, have, &body);
    if (!length) return 0;
    int kind = in[0] >> 4, qos = in[0] >> 1 & 3;
    if (kind == 2) {
        if (in[body + 1]) die("CONNACK refuses the listener", NULL);
        size_t rest = 2 + 2 + strlen(want.filter) + 1;
        uint8_t *at = outbox_reserve(&out, rest + 5);
        *at++ = 0x82;
        at = put_varint(at, rest);
        *at++ = 0;
        *at++ = 1;
        at = put_text(at, want.filter);
        *at++ = 1;
        out.end = (size_t)(at - out.bytes);
    } else if (kind == 9) {
        if (in[body + 2] > 2) die("SUBACK refuses the filter", want.filter);
        subscribed();
    } else if (kind == 3) {
        const char *topic = (const char *)in + body + 2;
        size_t topic_length = (size_t)in[body] << 8 | in[body + 1];
        const char *payload = topic + topic_length + (qos ? 2 : 0);
        int64_t sequence = -1, due = 0;
        frames++;
        if (qos) {
            uint8_t *at = outbox_reserve(&out, 4);
            at[0] = 0x40;
            at[1] = 2;
            memcpy(at + 2, topic + topic_length, 2);
            out.end += 4;
        }
        if (!read_payload(payload, (const char *)in + length, &sequence, &due)) die("a payload is no JSON", NULL);
        count_message(device_of(topic, topic_length), sequence, due, now);
    }
    return length;
}

static void read_commands(void) {
    static char line[256];
    static size_t length;
    ssize_t n = read(0, line + length, sizeof line - 1 - length);
    if (n <= 0) die("the driver went away", NULL);
    length += (size_t)n;
    line[length] = 0;
    for (char *stop; (stop = strchr(line, '\n'));) {
        unsigned long long number;
        if (sscanf(line, "from %llu", &number) == 1) count_from = number;
        else if (sscanf(line, "expect %llu", &number) == 1) expected = number;
        else die("unknown command", line);
        length -= (size_t)(stop + 1 - line);
        memmove(line, stop + 1, length + 1);
    }
}

static void open_door(uint8_t *in, size_t *have, size_t room) {
    fd = open_socket(want.host, want.port);
    int wide = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wide, sizeof wide);
    if (want.mqtt) {
        struct credential me = {.username = "-"};
        snprintf(me.id, sizeof me.id, "%s", want.user);
        put_connect(&out, &me);
        outbox_flush(&out, fd);
        return;
    }
    char *at = (char *)outbox_reserve(&out, 16384);
    int n = snprintf(at, 16384,
                     "GET %s HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: aW90c3BoZXJlLWJlbmNoLQ==\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Protocol: iotsphere.v1.json\r\nAuthorization: Bearer %s\r\n\r\n",
                     want.path, want.host, want.port, want.token ? want.token : "");
    if (n >= 16384) die("the token is too long", NULL);
    out.end += (size_t)n;
    outbox_flush(&out, fd);
    uint64_t limit = now_ns() + 10 * NS;
    for (char *stop = NULL; !stop;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (now_ns() > limit || poll(&wait, 1, 10000) < 1) die("no answer to the WebSocket handshake", NULL);
        ssize_t got = recv(fd, in + *have, room - *have, 0);
        if (got <= 0) die("the server hung up during the WebSocket handshake", (char *)in);
        *have += (size_t)got;
        stop = memmem(in, *have, "\r\n\r\n", 4);
        if (!stop) continue;
        if (memcmp(in, "HTTP/1.1 101", 12)) die("the server refuses the WebSocket", (char *)in);
        size_t used = (size_t)(stop + 4 - (char *)in);
        memmove(in, in + used, *have -= used);
    }
    char request[1024];
    n = snprintf(request, sizeof request, "{\"type\":\"subscribe\",\"ref\":1,\"filters\":[\"%s\"],\"from\":\"live\"}",
                 want.filter);
    send_frame(1, request, (size_t)n);
}

static void run(void) {
    size_t room = 4 << 20, have = 0;
    uint8_t *in = must(calloc(1, room));
    open_door(in, &have, room);
    uint64_t progress = now_ns(), seen = 0;
    double cpu_before = cpu_seconds();
    while (distinct < expected) {
        struct pollfd waits[] = {{.fd = fd, .events = POLLIN | (out.start < out.end ? POLLOUT : 0)},
                                 {.fd = 0, .events = POLLIN}};
        poll(waits, 2, 100);
        uint64_t now = now_ns();
        if (waits[1].revents) read_commands();
        if (waits[0].revents & POLLOUT) outbox_flush(&out, fd);
        if (waits[0].revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t n = recv(fd, in + have, room - have, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN)) die("the server closed the connection", NULL);
            if (n > 0) {
                size_t at = 0, length;
                now = now_ns();
                have += (size_t)n;
                bytes_in += (uint64_t)n;
                while ((length = want.mqtt ? mqtt_frame(in + at, have - at, now) : websocket_frame(in + at, have - at, now)))
                    at += length;
                have -= at;
                if (at) memmove(in, in + at, have);
                if (have == room) in = must(realloc(in, room *= 2));
                if (outbox_flush(&out, fd) < 0) die("the server closed the connection", NULL);
            }
        }
        if (messages != seen) {
            seen = messages;
            progress = now;
        } else if (expected != UINT64_MAX && now - progress > (uint64_t)(want.idle * 1e9)) {
            break;
        }
    }
    printf("{\"messages\":%llu,\"distinct\":%llu,\"counted\":%llu,\"reordered\":%llu,\"duplicated\":%llu,"
           "\"foreign\":%llu,\"notices\":%llu,\"frames\":%llu,\"bytes\":%llu,\"first_ns\":%llu,\"last_ns\":%llu,",
           (unsigned long long)messages, (unsigned long long)distinct, (unsigned long long)counted,
           (unsigned long long)reordered, (unsigned long long)duplicated, (unsigned long long)foreign,
           (unsigned long long)notices, (unsigned long long)frames, (unsigned long long)bytes_in,
           (unsigned long long)first_at, (unsigned long long)last_at);
    histogram_print(&latency);
    printf(",\"cpu_seconds\":%.3f}\n", cpu_seconds() - cpu_before);
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"host", 1, 0, 'h'},  {"port", 1, 0, 'p'},    {"path", 1, 0, 'P'},     {"token", 1, 0, 't'},
        {"filter", 1, 0, 'f'}, {"devices", 1, 0, 'd'}, {"received", 1, 0, 'r'}, {"idle", 1, 0, 'i'},
        {"mqtt", 0, 0, 'm'},  {0, 0, 0, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'h': want.host = optarg; break;
        case 'p': want.port = optarg; break;
        case 'P': want.path = optarg; break;
        case 't': want.token = optarg; break;
        case 'f': want.filter = optarg; break;
        case 'd': want.devices = optarg; break;
        case 'r': want.received = optarg; break;
        case 'i': want.idle = atof(optarg); break;
        case 'm': want.mqtt = 1; break;
        default: die("usage: listen --devices FILE [--host H --port P --path / --token T | --mqtt] [--filter F]", NULL);
        }
    }
    if (!want.devices) die("--devices FILE is missing", NULL);
    prctl(PR_SET_PDEATHSIG, 15ul);
    know_devices();
    run();
    if (want.received) {
        FILE *file = fopen(want.received, "wb");
        if (!file) die("cannot write", want.received);
        for (unsigned i = 0; i < device_count; i++) bitmap_write(&devices[i].received, file);
        fclose(file);
    }
    return 0;
}
