/* The doors at which a listener can stand: the product's WebSocket protocol, envelopes over a WebSocket, MQTT, NATS.
 *
 * A connection is opened and greeted while waiting for it; what comes later is read frame by frame as it comes.
 */
#ifndef BENCH_DOORS_H
#define BENCH_DOORS_H

#include <poll.h>

#include "check.h"
#include "socket.h"

enum protocol { IOTSPHERE, ENVELOPES, MQTT, NATS };

struct buffer {
    char *bytes;
    size_t length, room;
};

struct link {
    int fd, subscribed, writing;
    struct outbox out;
    struct buffer in, text; /* text: a message of several frames; with NATS, the bytes of a command that is not whole */
    struct seen *seen;
};

static struct {
    enum protocol protocol;
    const char *host, *port, *path, *token, *filter, *from, *stream;
} door = {.host = "127.0.0.1", .port = "8765", .path = "/", .filter = "iotsphere/devices/+/telemetry/#",
          .from = "live"};

static uint64_t frames, notices;
static unsigned subscribed_count;

static void buffer_add(struct buffer *b, const char *data, size_t length) {
    if (b->length + length > b->room) b->bytes = must(realloc(b->bytes, b->room = 2 * (b->length + length)));
    memcpy(b->bytes + b->length, data, length);
    b->length += length;
}

static void subscribed(struct link *l) {
    if (!l->subscribed) subscribed_count++;
    l->subscribed = 1;
}

/* One text of the product's protocol. */
static void read_text(struct link *l, const char *text, size_t length, uint64_t now) {
    const char *end = text + length, *at, *list = NULL;
    struct json_key key;
    char type[32] = "";
    if (door.protocol == ENVELOPES) {
        if (!read_envelope(l->seen, text, end, now)) die("the server sent a frame that is no JSON", NULL);
        return;
    }
    for (at = json_enter(text, end, '{'); (at = json_next_key(at, end, &key));) {
        const char *value = at;
        if (json_is(&key, "messages") && !strcmp(type, "messages")) {
            read_messages(l->seen, value, end, now); /* what follows the list is of no interest here */
            return;
        }
        at = json_skip(at, end);
        if (!at) break;
        if (json_is(&key, "type")) snprintf(type, sizeof type, "%.*s", (int)(at - value - 2), value + 1);
        else if (json_is(&key, "messages")) list = value;
    }
    if (!strcmp(type, "messages") && list) {
        read_messages(l->seen, list, end, now);
    } else if (!strcmp(type, "ok")) {
        subscribed(l);
    } else if (!strcmp(type, "error")) {
        fprintf(stderr, "%.*s\n", (int)(length < 2000 ? length : 2000), text);
        exit(1);
    } else {
        notices++;
        if (notices <= 5) fprintf(stderr, "notice: %.*s\n", (int)(length < 300 ? length : 300), text);
    }
}

static void send_frame(struct link *l, int opcode, const char *data, size_t length) {
    uint8_t *at = outbox_reserve(&l->out, length + 14);
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
    l->out.end = (size_t)(at + 4 + length - l->out.bytes);
    outbox_flush(&l->out, l->fd);
}

/* One command of the NATS protocol. Returns its length, 0 when more bytes are needed. */
static size_t nats_command(struct link *l, const char *in, size_t have, uint64_t now) {
    const char *stop = memmem(in, have, "\r\n", 2);
    if (!stop) return 0;
    size_t line = (size_t)(stop + 2 - in);
    if (!strncmp(in, "MSG ", 4)) { /* MSG subject sid [reply] bytes */
        const char *size = stop, *subject = in + 4;
        while (size[-1] != ' ') size--;
        size_t bytes = strtoul(size, NULL, 10);
        if (have < line + bytes + 2) return 0;
        const char *blank = memchr(subject, ' ', (size_t)(stop - subject)), *body = in + line;
        if (blank[1] == '1') {
            read_bare(l->seen, device_of(subject, (size_t)(blank - subject)), body, body + bytes, now);
        } else if (memmem(body, bytes, "\"error\"", 7)) {
            fprintf(stderr, "the server makes no consumer: %.*s\n", (int)bytes, body);
            exit(1);
        } else {
            subscribed(l);
        }
        return line + bytes + 2;
    }
    if (!strncmp(in, "PING", 4)) {
        send_frame(l, 2, "PONG\r\n", 6);
    } else if (!strncmp(in, "-ERR", 4)) {
        fprintf(stderr, "%.*s\n", (int)line, in);
        exit(1);
    }
    return line;
}

static void read_nats(struct link *l, const char *data, size_t length, uint64_t now) {
    size_t at = 0, used;
    if (!l->text.length) { /* the usual case: whole commands, read where they lie */
        while ((used = nats_command(l, data + at, length - at, now))) at += used;
        buffer_add(&l->text, data + at, length - at);
        return;
    }
    buffer_add(&l->text, data, length);
    while ((used = nats_command(l, l->text.bytes + at, l->text.length - at, now))) at += used;
    memmove(l->text.bytes, l->text.bytes + at, l->text.length -= at);
}

/* RFC 6455 section 5: one frame from the buffer. Returns its length, 0 when more bytes are needed. */
static size_t websocket_frame(struct link *l, const uint8_t *in, size_t have, uint64_t now) {
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
        send_frame(l, 10, data, length);
    } else if (opcode == 8) {
        fprintf(stderr, "closed by the server: %u %.*s\n", length > 1 ? (unsigned)in[head] << 8 | in[head + 1] : 0,
                length > 2 ? (int)length - 2 : 0, data + 2);
        exit(1);
    } else if (opcode < 3) {
        frames++;
        if (door.protocol == NATS) {
            read_nats(l, data, length, now);
        } else if (final && !l->text.length) {
            read_text(l, data, length, now);
        } else {
            buffer_add(&l->text, data, length);
            if (final) {
                read_text(l, l->text.bytes, l->text.length, now);
                l->text.length = 0;
            }
        }
    }
    return head + length;
}

static size_t mqtt_frame(struct link *l, const uint8_t *in, size_t have, uint64_t now) {
    size_t body, length = mqtt_packet(in, have, &body);
    if (!length) return 0;
    int kind = in[0] >> 4, qos = in[0] >> 1 & 3;
    if (kind == 2) {
        if (in[body + 1]) die("CONNACK refuses the listener", NULL);
        size_t rest = 2 + 2 + strlen(door.filter) + 1;
        uint8_t *at = outbox_reserve(&l->out, rest + 5);
        *at++ = 0x82;
        at = put_varint(at, rest);
        *at++ = 0;
        *at++ = 1;
        at = put_text(at, door.filter);
        *at++ = 1;
        l->out.end = (size_t)(at - l->out.bytes);
    } else if (kind == 9) {
        if (in[body + 2] > 2) die("SUBACK refuses the filter", door.filter);
        subscribed(l);
    } else if (kind == 3) {
        const char *topic = (const char *)in + body + 2;
        size_t topic_length = (size_t)in[body] << 8 | in[body + 1];
        frames++;
        if (qos) {
            uint8_t *at = outbox_reserve(&l->out, 4);
            at[0] = 0x40;
            at[1] = 2;
            memcpy(at + 2, topic + topic_length, 2);
            l->out.end += 4;
        }
        const char *payload = topic + topic_length + (qos ? 2 : 0);
        read_bare(l->seen, device_of(topic, topic_length), payload, (const char *)in + length, now);
    }
    return length;
}

/* Reads what has come. Returns the bytes read, 0 when there were none. */
static size_t link_receive(struct link *l) {
    if (l->in.length == l->in.room) l->in.bytes = must(realloc(l->in.bytes, l->in.room *= 2));
    ssize_t n = recv(l->fd, l->in.bytes + l->in.length, l->in.room - l->in.length, 0);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) die("the server closed the connection", NULL);
    uint64_t now = now_ns();
    size_t at = 0, length;
    l->in.length += (size_t)n;
    do {
        const uint8_t *in = (const uint8_t *)l->in.bytes + at;
        size_t have = l->in.length - at;
        length = door.protocol == MQTT ? mqtt_frame(l, in, have, now) : websocket_frame(l, in, have, now);
        at += length;
    } while (length);
    if (at) memmove(l->in.bytes, l->in.bytes + at, l->in.length -= at);
    if (outbox_flush(&l->out, l->fd) < 0) die("the server closed the connection", NULL);
    return (size_t)n;
}

static void greet_websocket(struct link *l) {
    char *at = (char *)outbox_reserve(&l->out, 16384);
    int n = snprintf(at, 16384,
                     "GET %s HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: aW90c3BoZXJlLWJlbmNoLQ==\r\nSec-WebSocket-Version: 13\r\n%s",
                     door.path, door.host, door.port, door.token ? "" : "\r\n");
    if (door.token)
        n += snprintf(at + n, (size_t)(16384 - n),
                      "Sec-WebSocket-Protocol: iotsphere.v1.json\r\nAuthorization: Bearer %s\r\n\r\n", door.token);
    if (n >= 16384) die("the token is too long", NULL);
    l->out.end += (size_t)n;
    outbox_flush(&l->out, l->fd);
    uint64_t limit = now_ns() + 10 * NS;
    for (char *stop = NULL; !stop;) {
        struct pollfd wait = {.fd = l->fd, .events = POLLIN};
        if (now_ns() > limit || poll(&wait, 1, 10000) < 1) die("no answer to the WebSocket handshake", NULL);
        ssize_t got = recv(l->fd, l->in.bytes + l->in.length, l->in.room - 1 - l->in.length, 0);
        if (got <= 0) die("the server hung up during the WebSocket handshake", l->in.bytes);
        l->in.length += (size_t)got;
        l->in.bytes[l->in.length] = 0;
        stop = memmem(l->in.bytes, l->in.length, "\r\n\r\n", 4);
        if (!stop) continue;
        if (memcmp(l->in.bytes, "HTTP/1.1 101", 12)) die("the server refuses the WebSocket", l->in.bytes);
        size_t used = (size_t)(stop + 4 - l->in.bytes);
        memmove(l->in.bytes, l->in.bytes + used, l->in.length -= used);
    }
}

static void open_link(struct link *l, unsigned number, size_t room) {
    char text[8192];
    int n = 0;
    l->fd = open_socket(door.host, door.port);
    int wide = 4 << 20;
    setsockopt(l->fd, SOL_SOCKET, SO_RCVBUF, &wide, sizeof wide);
    l->in.bytes = must(malloc(l->in.room = room));
    l->seen = must(calloc(device_count, sizeof *l->seen));
    if (door.protocol == MQTT) {
        struct credential me = {.username = "-"};
        snprintf(me.id, sizeof me.id, "bench-listener%u", number);
        put_connect(&l->out, &me);
        outbox_flush(&l->out, l->fd);
        return;
    }
    greet_websocket(l);
    if (door.protocol == IOTSPHERE) {
        n = snprintf(text, sizeof text, "{\"type\":\"subscribe\",\"ref\":1,\"filters\":[\"%s\"],\"from\":\"%s\"}",
                     door.filter, door.from);
    } else if (door.protocol == NATS) { /* a consumer of the stream that pushes whatever is stored from now on */
        char wish[1024];
        int bytes = snprintf(wish, sizeof wish,
                             "{\"stream_name\":\"%s\",\"config\":{\"deliver_subject\":\"bench.deliver%u\","
                             "\"deliver_policy\":\"new\",\"ack_policy\":\"none\",\"replay_policy\":\"instant\","
                             "\"filter_subject\":\"%s\"}}",
                             door.stream, number, door.filter);
        n = snprintf(text, sizeof text,
                     "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\",\"protocol\":1,"
                     "\"headers\":false}\r\nSUB bench.deliver%u 1\r\nSUB bench.answer%u 2\r\n"
                     "PUB $JS.API.CONSUMER.CREATE.%s bench.answer%u %d\r\n%s\r\n",
                     number, number, door.stream, number, bytes, wish);
    } else {
        subscribed(l);
        return;
    }
    if (n >= (int)sizeof text) die("the request is too long", NULL);
    send_frame(l, door.protocol == NATS ? 2 : 1, text, (size_t)n);
}

#endif
