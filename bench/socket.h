/* Non-blocking TCP with a growing outbox, and the few MQTT 3.1.1 packets that both programs write. */
#ifndef BENCH_SOCKET_H
#define BENCH_SOCKET_H

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"

struct outbox {
    uint8_t *bytes;
    size_t start, end, room;
};

static inline uint8_t *outbox_reserve(struct outbox *box, size_t more) {
    if (box->start == box->end) box->start = box->end = 0;
    if (box->end + more > box->room) {
        size_t room = box->room ? box->room : 4096;
        while (room < box->end + more) room *= 2;
        box->bytes = must(realloc(box->bytes, room));
        box->room = room;
    }
    return box->bytes + box->end;
}

/* Writes what the socket takes. Returns 1 when all is gone, 0 when some is left, -1 when the peer is gone. */
static inline int outbox_flush(struct outbox *box, int fd) {
    while (box->start < box->end) {
        ssize_t n = send(fd, box->bytes + box->start, box->end - box->start, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        box->start += (size_t)n;
    }
    return 1;
}

static inline int open_socket(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) die(host, gai_strerror(failed));
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) < 0) die("cannot connect", strerror(errno));
    freeaddrinfo(found);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
}

static inline uint8_t *put_text(uint8_t *at, const char *text) {
    size_t n = strlen(text);
    *at++ = (uint8_t)(n >> 8);
    *at++ = (uint8_t)n;
    memcpy(at, text, n);
    return at + n;
}

static inline uint8_t *put_varint(uint8_t *at, size_t n) {
    do {
        *at++ = (uint8_t)((n & 127) | (n > 127 ? 128 : 0));
        n >>= 7;
    } while (n);
    return at;
}

/* CONNECT of MQTT 3.1.1, clean session, keep-alive 60 s. */
static inline void put_connect(struct outbox *box, const struct credential *who) {
    int known = strcmp(who->username, "-") != 0;
    size_t rest = 10 + 2 + strlen(who->id) + (known ? 4 + strlen(who->username) + strlen(who->password) : 0);
    uint8_t *at = outbox_reserve(box, rest + 5);
    *at++ = 0x10;
    at = put_varint(at, rest);
    at = put_text(at, "MQTT");
    *at++ = 4;
    *at++ = known ? 0xC2 : 0x02;
    *at++ = 0;
    *at++ = 60;
    at = put_text(at, who->id);
    if (known) at = put_text(put_text(at, who->username), who->password);
    box->end = (size_t)(at - box->bytes);
}

/* Finds one whole packet. Returns its length, 0 when more bytes are needed; ``body`` is where its rest begins. */
static inline size_t mqtt_packet(const uint8_t *in, size_t have, size_t *body) {
    size_t rest = 0;
    for (unsigned i = 1, shift = 0; i < have && i <= 4; i++, shift += 7) {
        rest |= (size_t)(in[i] & 127) << shift;
        if (in[i] & 128) continue;
        *body = i + 1;
        return have >= i + 1 + rest ? i + 1 + rest : 0;
    }
    return 0;
}

#endif
