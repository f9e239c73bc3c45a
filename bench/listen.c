/* Consumers under load: read every message from a WebSocket, an MQTT broker or a NATS server, and check it.
 *
 * Per connection and device it counts duplicates and messages that overtook each other, keeps the set of sequence
 * numbers received, and measures from the moment at which a message fell due to the moment at which it was read here.
 *
 * Commands on standard input: "from NS" counts latency for messages due at or after NS; "expect N" ends the program
 * once each connection has N different messages, or nothing has come for --idle seconds. Prints {"event":"ready"} when
 * all are subscribed, with --slice S a line {"event":"slice",…} every S seconds, then one JSON line with the results.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include "doors.h"

static uint64_t expected = UINT64_MAX, bytes_in;
static unsigned link_count = 1;
static struct link *links;

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
        else if (sscanf(line, "expect %llu", &number) == 1) expected = number * link_count;
        else die("unknown command", line);
        length -= (size_t)(stop + 1 - line);
        memmove(line, stop + 1, length + 1);
    }
}

static void end_slice(void) {
    printf("{\"event\":\"slice\",\"counted\":%llu,", (unsigned long long)slice.count);
    histogram_print(&slice);
    printf("}\n");
    fflush(stdout);
    memset(&slice, 0, sizeof slice);
}

static void open_all(int epoll) {
    links = must(calloc(link_count, sizeof *links));
    for (unsigned i = 0; i < link_count; i++) {
        open_link(&links[i], i, link_count == 1 ? 4 << 20 : 128 << 10);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &links[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, links[i].fd, &event);
        link_receive(&links[i]); /* what came with the handshake */
    }
}

static void run(double idle, double slice_seconds) {
    int epoll = epoll_create1(0), ready = 0;
    struct epoll_event input = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &input);
    open_all(epoll);
    uint64_t progress = now_ns(), seen = 0, slice_end = 0;
    double cpu_before = cpu_seconds();
    while (distinct < expected) {
        if (!ready && subscribed_count == link_count) {
            ready = 1;
            printf("{\"event\":\"ready\"}\n");
            fflush(stdout);
        }
        int n = epoll_wait(epoll, events, 256, 100);
        for (int i = 0; i < n; i++) {
            struct link *l = events[i].data.ptr;
            if (!l) {
                read_commands();
                continue;
            }
            if (events[i].events & ~(unsigned)EPOLLOUT) bytes_in += link_receive(l);
            else outbox_flush(&l->out, l->fd);
            int writing = l->out.start < l->out.end;
            if (writing != l->writing) {
                struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = l};
                epoll_ctl(epoll, EPOLL_CTL_MOD, l->fd, &event);
                l->writing = writing;
            }
        }
        uint64_t now = now_ns();
        if (slice_seconds > 0 && count_from) {
            if (!slice_end) slice_end = count_from + (uint64_t)(slice_seconds * 1e9);
            if (now >= slice_end) {
                end_slice();
                slice_end += (uint64_t)(slice_seconds * 1e9);
            }
        }
        if (messages != seen) {
            seen = messages;
            progress = now;
        } else if (expected != UINT64_MAX && now - progress > (uint64_t)(idle * 1e9)) {
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

static void write_received(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) die("cannot write", path);
    for (unsigned i = 0; i < link_count; i++)
        for (unsigned j = 0; j < device_count; j++) bitmap_write(&links[i].seen[j].received, file);
    fclose(file);
}

static enum protocol protocol_of(const char *name) {
    static const char *const names[] = {"iotsphere", "envelopes", "mqtt", "nats"};
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return (enum protocol)i;
    die("no such protocol", name);
    return IOTSPHERE;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"host", 1, 0, 'h'},   {"port", 1, 0, 'p'},    {"path", 1, 0, 'P'},     {"token", 1, 0, 't'},
        {"filter", 1, 0, 'f'}, {"devices", 1, 0, 'd'}, {"received", 1, 0, 'r'}, {"idle", 1, 0, 'i'},
        {"from", 1, 0, 'F'},   {"stream", 1, 0, 's'},  {"protocol", 1, 0, 'm'}, {"connections", 1, 0, 'c'},
        {"slice", 1, 0, 'S'},  {0, 0, 0, 0}};
    const char *known = NULL, *received = NULL;
    double idle = 5, slice_seconds = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'h': door.host = optarg; break;
        case 'p': door.port = optarg; break;
        case 'P': door.path = optarg; break;
        case 't': door.token = optarg; break;
        case 'f': door.filter = optarg; break;
        case 'F': door.from = optarg; break;
        case 's': door.stream = optarg; break;
        case 'm': door.protocol = protocol_of(optarg); break;
        case 'd': known = optarg; break;
        case 'r': received = optarg; break;
        case 'i': idle = atof(optarg); break;
        case 'c': link_count = (unsigned)atoi(optarg); break;
        case 'S': slice_seconds = atof(optarg); break;
        default:
            die("usage: listen --devices FILE [--protocol iotsphere|envelopes|mqtt|nats] [--host H --port P] "
                "[--token T] [--filter F] [--from live|CURSOR] [--connections N] [--slice S] [--received FILE]",
                NULL);
        }
    }
    if (!known) die("--devices FILE is missing", NULL);
    if (!link_count) die("--connections must be 1 or more", NULL);
    prctl(PR_SET_PDEATHSIG, 15ul);
    know_devices(known);
    run(idle, slice_seconds);
    if (received) write_received(received);
    return 0;
}
