/* Devices under load: N connections publish MQTT 3.1.1 QoS 1 and time every acknowledgement.
 *
 * Open loop (--rate R): messages fall due in groups, one group a tick, whatever the gateway does; latency counts from
 * the moment at which a message fell due, so a stall is charged to every message that had to wait for it.
 * Closed loop (--rate 0): every device keeps --window messages in flight, which finds the ceiling; --count N ends it
 * early, after N messages.
 *
 * Prints {"event":"started","at":NS} when all devices are connected, then one JSON line with the results.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

#include "measure.h"
#include "socket.h"

#define PACKET_IDS 65535u
#define MOST_PAD (256u << 10)

struct device {
    struct credential *who;
    int fd;
    int connected, waiting, dirty;
    struct outbox out;
    uint8_t in[4096];
    size_t in_length;
    uint32_t next, in_flight;
    uint64_t *due; /* by packet id - 1 */
    struct bitmap acked;
    uint8_t head[256]; /* topic, then room for the packet id */
    size_t head_length;
    char topic[512];
};

static struct {
    const char *host, *port, *devices, *acked;
    const char *suffix;
    double rate, seconds, warmup, drain;
    unsigned window, tick_us, pad;
    uint64_t count;
    int envelope;
} want = {.host = "127.0.0.1", .port = "1883", .suffix = "telemetry", .seconds = 10, .warmup = 1, .drain = 20,
          .window = 64, .tick_us = 500};

static struct histogram latency;
static struct device *devices;
static unsigned device_count, connected_count;
static uint64_t sent, acked, acked_counted, count_from, last_ack;
static int epoll;

static void watch(struct device *d, int writable) {
    if (d->waiting == writable) return;
    d->waiting = writable;
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = d};
    epoll_ctl(epoll, EPOLL_CTL_MOD, d->fd, &event);
}

static void flush(struct device *d) {
    d->dirty = 0;
    int done = outbox_flush(&d->out, d->fd);
    if (done < 0) die("the server closed the connection of", d->who->id);
    watch(d, !done);
}

static char *put_number(char *at, uint64_t n) {
    char digits[20];
    int i = 20;
    do digits[--i] = (char)('0' + n % 10);
    while (n /= 10);
    memcpy(at, digits + i, (size_t)(20 - i));
    return at + 20 - i;
}

static char *put_message_id(char *at) {
    static uint64_t state;
    static const char hex[] = "0123456789abcdef";
    if (!state) state = now_ns() ^ ((uint64_t)getpid() << 40) ^ 0x9E3779B97F4A7C15ull;
    uint64_t half[2];
    for (int i = 0; i < 2; i++) { /* splitmix64 */
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        half[i] = z ^ (z >> 31);
    }
    half[0] = (half[0] & ~0xF000ull) | 0x4000ull;              /* version 4 */
    half[1] = (half[1] & ~(3ull << 62)) | (2ull << 62);        /* RFC 9562 variant */
    for (int i = 0; i < 32; i++) {
        if (i == 8 || i == 12 || i == 16 || i == 20) *at++ = '-';
        *at++ = hex[(half[i >> 4] >> (60 - 4 * (i & 15))) & 15];
    }
    return at;
}

static char *put_iso_now(char *at) {
    static time_t second;
    static char text[32];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec != second) {
        struct tm utc;
        second = now.tv_sec;
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", gmtime_r(&second, &utc));
    }
    memcpy(at, text, 19);
    unsigned ms = (unsigned)(now.tv_nsec / 1000000);
    at[19] = '.';
    at[20] = (char)('0' + ms / 100);
    at[21] = (char)('0' + ms / 10 % 10);
    at[22] = (char)('0' + ms % 10);
    at[23] = 'Z';
    return at + 24;
}

#define PUT(text) (memcpy(at, text, sizeof text - 1), at += sizeof text - 1)

static char *put_payload(char *at, const struct device *d, uint64_t due) {
    if (want.envelope) {
        PUT("{\"metadata\":{\"messageId\":\"");
        at = put_message_id(at);
        PUT("\",\"timestamp\":\"");
        at = put_iso_now(at);
        PUT("\",\"topic\":\"");
        at = stpcpy(at, d->topic);
        PUT("\",\"source\":\"");
        at = stpcpy(at, d->who->id);
        PUT("\",\"correlationId\":null,\"messageType\":\"event\",\"version\":\"1.0\"},\"payload\":");
    }
    PUT("{\"seq\":");
    at = put_number(at, d->next);
    PUT(",\"t\":");
    at = put_number(at, due);
    PUT(",\"value\":21.5");
    if (want.pad) {
        PUT(",\"pad\":\"");
        memset(at, 'x', want.pad);
        at += want.pad;
        PUT("\"");
    }
    PUT("}");
    if (want.envelope) *at++ = '}';
    return at;
}

static void publish(struct device *d, uint64_t due) {
    static char payload[2048 + MOST_PAD];
    size_t length = (size_t)(put_payload(payload, d, due) - payload);
    unsigned slot = d->next % PACKET_IDS;
    uint8_t *at = outbox_reserve(&d->out, d->head_length + length + 8);
    *at++ = 0x32;
    at = put_varint(at, d->head_length + 2 + length);
    memcpy(at, d->head, d->head_length);
    at += d->head_length;
    *at++ = (uint8_t)((slot + 1) >> 8);
    *at++ = (uint8_t)(slot + 1);
    memcpy(at, payload, length);
    d->out.end = (size_t)(at + length - d->out.bytes);
    d->due[slot] = due;
    d->next++;
    d->in_flight++;
    sent++;
}

static void acknowledge(struct device *d, unsigned packet_id, uint64_t now) {
    if (!packet_id || !d->in_flight) die("a PUBACK for nothing that is in flight, to", d->who->id);
    uint32_t newest = d->next - 1;
    uint32_t sequence = newest - (newest + PACKET_IDS - (packet_id - 1)) % PACKET_IDS;
    if (sequence > newest || !bitmap_add(&d->acked, sequence)) die("a PUBACK came twice, to", d->who->id);
    d->in_flight--;
    acked++;
    last_ack = now;
    uint64_t due = d->due[packet_id - 1];
    if (due >= count_from) {
        histogram_add(&latency, now - due);
        acked_counted++;
    }
}

static void receive(struct device *d) {
    ssize_t n = recv(d->fd, d->in + d->in_length, sizeof d->in - d->in_length, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the server closed the connection of", d->who->id);
    d->in_length += (size_t)n;
    uint64_t now = now_ns();
    size_t at = 0, body, length;
    while ((length = mqtt_packet(d->in + at, d->in_length - at, &body))) {
        const uint8_t *packet = d->in + at;
        switch (packet[0] >> 4) {
        case 2:
            if (packet[body + 1]) die("CONNACK refuses the device", d->who->id);
            d->connected = 1;
            connected_count++;
            break;
        case 4:
            acknowledge(d, (unsigned)packet[body] << 8 | packet[body + 1], now);
            break;
        default:
            break;
        }
        at += length;
    }
    memmove(d->in, d->in + at, d->in_length -= at);
}

static void fill_window(struct device *d) {
    uint64_t now = now_ns();
    while (d->in_flight < want.window && (!want.count || sent < want.count)) publish(d, now);
    flush(d);
}

static void connect_all(void) {
    struct credential *who = read_credentials(want.devices, &device_count);
    devices = must(calloc(device_count, sizeof *devices));
    for (unsigned i = 0; i < device_count; i++) {
        struct device *d = &devices[i];
        d->who = &who[i];
        d->due = must(calloc(PACKET_IDS, sizeof *d->due));
        snprintf(d->topic, sizeof d->topic, "iotsphere/devices/%s/%s", who[i].id, want.suffix);
        if (strlen(d->topic) > sizeof d->head - 2) die("topic too long", d->topic);
        d->head_length = (size_t)(put_text(d->head, d->topic) - d->head);
        d->fd = open_socket(want.host, want.port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = d};
        epoll_ctl(epoll, EPOLL_CTL_ADD, d->fd, &event);
        put_connect(&d->out, d->who);
        flush(d);
    }
    uint64_t limit = now_ns() + 60 * NS;
    struct epoll_event events[64];
    while (connected_count < device_count) {
        if (now_ns() > limit) die("not every device was answered with CONNACK within 60 s", NULL);
        int n = epoll_wait(epoll, events, 64, 1000);
        for (int i = 0; i < n; i++) {
            struct device *d = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(d);
            if (events[i].events & ~(unsigned)EPOLLOUT) receive(d);
        }
    }
}

static void send_due(uint64_t start, uint64_t until) {
    static uint64_t scheduled;
    static unsigned turn;
    uint64_t tick = want.tick_us * 1000ull, now = now_ns();
    if (now >= until) now = until - 1; /* the tick that begins at the end belongs to it no more */
    uint64_t this_tick = (now - start) / tick;
    static uint64_t next_tick;
    for (; next_tick <= this_tick; next_tick++) {
        uint64_t total = (uint64_t)(want.rate * (double)((next_tick + 1) * tick) / 1e9);
        for (; scheduled < total; scheduled++, turn = (turn + 1) % device_count) {
            struct device *d = &devices[turn];
            if (d->in_flight >= PACKET_IDS) die("65,535 messages unacknowledged: the server has stalled for", d->who->id);
            publish(d, start + next_tick * tick);
            d->dirty = 1;
        }
    }
    for (unsigned i = 0; i < device_count; i++)
        if (devices[i].dirty && !devices[i].waiting) flush(&devices[i]);
}

static void run(void) {
    uint64_t start = now_ns(), until = start + (uint64_t)(want.seconds * 1e9);
    uint64_t limit = until + (uint64_t)(want.drain * 1e9);
    count_from = start + (uint64_t)(want.warmup * 1e9);
    double cpu_before = cpu_seconds();
    printf("{\"event\":\"started\",\"at\":%llu}\n", (unsigned long long)start);
    fflush(stdout);
    int timer = -1;
    if (want.rate > 0) {
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        long tick = want.tick_us * 1000l;
        struct itimerspec every = {.it_interval = {0, tick}, .it_value = {0, tick}};
        timerfd_settime(timer, 0, &every, NULL);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    } else {
        for (unsigned i = 0; i < device_count; i++) fill_window(&devices[i]);
    }
    struct epoll_event events[256];
    int due = timer >= 0;
    for (;;) {
        int n = epoll_wait(epoll, events, 256, 50);
        uint64_t now = now_ns();
        int sending = now < until && (!want.count || sent < want.count);
        for (int i = 0; i < n; i++) {
            struct device *d = events[i].data.ptr;
            if (!d) {
                uint64_t expirations; /* reading arms the timer again */
                if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN) die("timer", strerror(errno));
                continue;
            }
            if (events[i].events & EPOLLOUT) flush(d);
            if (!(events[i].events & ~(unsigned)EPOLLOUT)) continue;
            receive(d);
            if (want.rate <= 0 && sending && !d->waiting) fill_window(d);
        }
        /* Once more after the end: whoever was not on the core just then still owes what fell due before. */
        if (due) send_due(start, until);
        due = due && sending;
        if (!sending && acked == sent) break;
        if (now > limit) break;
    }
    double seconds = (double)(last_ack - start) / 1e9;
    double counted = (double)(last_ack - count_from) / 1e9;
    printf("{\"sent\":%llu,\"acked\":%llu,\"seconds\":%.3f,\"rate\":%.1f,", (unsigned long long)sent,
           (unsigned long long)acked, seconds, counted > 0 ? (double)acked_counted / counted : 0);
    histogram_print(&latency);
    printf(",\"cpu_seconds\":%.3f,\"devices\":%u,\"start_ns\":%llu,\"count_from_ns\":%llu}\n",
           cpu_seconds() - cpu_before, device_count, (unsigned long long)start, (unsigned long long)count_from);
    fflush(stdout);
}

static void write_acked(void) {
    if (!want.acked) return;
    FILE *file = fopen(want.acked, "wb");
    if (!file) die("cannot write", want.acked);
    for (unsigned i = 0; i < device_count; i++) {
        uint64_t count = devices[i].next;
        if (fwrite(&count, sizeof count, 1, file) != 1) die("cannot write", want.acked);
        bitmap_write(&devices[i].acked, file);
    }
    fclose(file);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"host", 1, 0, 'h'},   {"port", 1, 0, 'p'},   {"devices", 1, 0, 'd'}, {"acked", 1, 0, 'a'},
        {"rate", 1, 0, 'r'},   {"window", 1, 0, 'w'}, {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'u'},
        {"format", 1, 0, 'f'}, {"tick-us", 1, 0, 't'}, {"suffix", 1, 0, 'x'}, {"drain", 1, 0, 'y'},
        {"pad", 1, 0, 'b'},    {"count", 1, 0, 'n'},
        {0, 0, 0, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'h': want.host = optarg; break;
        case 'p': want.port = optarg; break;
        case 'd': want.devices = optarg; break;
        case 'a': want.acked = optarg; break;
        case 'r': want.rate = atof(optarg); break;
        case 'w': want.window = (unsigned)atoi(optarg); break;
        case 's': want.seconds = atof(optarg); break;
        case 'u': want.warmup = atof(optarg); break;
        case 'f': want.envelope = !strcmp(optarg, "envelope"); break;
        case 't': want.tick_us = (unsigned)atoi(optarg); break;
        case 'x': want.suffix = optarg; break;
        case 'b': want.pad = (unsigned)atoi(optarg); break;
        case 'n': want.count = strtoull(optarg, NULL, 10); break;
        case 'y': want.drain = atof(optarg); break;
        default: die("usage: load --devices FILE [--host H --port P --rate R --window W --seconds S ...]", NULL);
        }
    }
    if (!want.devices) die("--devices FILE is missing", NULL);
    if (want.pad > MOST_PAD) die("--pad must be at most 262144", NULL);
    if (!want.window || want.window >= PACKET_IDS) die("--window must be 1 to 65534", NULL);
    prctl(PR_SET_TIMERSLACK, 1ul);
    prctl(PR_SET_PDEATHSIG, 15ul);
    epoll = epoll_create1(0);
    connect_all();
    run();
    write_acked();
    static const uint8_t bye[] = {0xE0, 0};
    for (unsigned i = 0; i < device_count; i++) (void)!write(devices[i].fd, bye, sizeof bye);
    return acked == sent ? 0 : 2;
}
