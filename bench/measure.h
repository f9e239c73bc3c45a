/* What the load generator and the listener share: one clock, a latency histogram, devices, bitmaps. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define NS 1000000000ull

static inline uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * NS + (uint64_t)at.tv_nsec;
}

static inline double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static inline void die(const char *what, const char *detail) {
    fprintf(stderr, "%s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
    exit(1);
}

static inline void *must(void *memory) {
    if (!memory) die("out of memory", NULL);
    return memory;
}

/* Log-linear buckets: 128 steps per power of two, so a percentile is at most 0.8 % too high. */
#define HISTOGRAM_STEPS 128u
#define HISTOGRAM_BUCKETS (58u * HISTOGRAM_STEPS)

struct histogram {
    uint64_t count, max;
    uint64_t bucket[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_index(uint64_t value) {
    if (value < HISTOGRAM_STEPS) return (unsigned)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - 7u;
    return (shift + 1) * HISTOGRAM_STEPS + (unsigned)((value >> shift) - HISTOGRAM_STEPS);
}

static inline void histogram_add(struct histogram *h, uint64_t value) {
    h->bucket[histogram_index(value)]++;
    h->count++;
    if (value > h->max) h->max = value;
}

/* The upper edge of the bucket in which the given share of all values is reached, in ms; 0 when empty. */
static inline double histogram_ms(const struct histogram *h, double share) {
    uint64_t wanted = (uint64_t)(share * (double)h->count), seen = 0;
    if (wanted >= h->count && h->count) wanted = h->count - 1;
    for (unsigned i = 0; h->count && i < HISTOGRAM_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen <= wanted) continue;
        if (i < HISTOGRAM_STEPS) return (double)i / 1e6;
        unsigned shift = i / HISTOGRAM_STEPS - 1;
        uint64_t upper = (((uint64_t)(i % HISTOGRAM_STEPS) + HISTOGRAM_STEPS + 1) << shift) - 1;
        return (double)(upper < h->max ? upper : h->max) / 1e6;
    }
    return 0;
}

static inline void histogram_print(const struct histogram *h) {
    printf("\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,\"max_ms\":%.3f", histogram_ms(h, 0.50),
           histogram_ms(h, 0.99), histogram_ms(h, 0.999), (double)h->max / 1e6);
}

/* A set of sequence numbers that grows as needed. */
struct bitmap {
    uint8_t *bits;
    size_t bytes;
};

/* Adds a number; returns 0 when it was there already. */
static inline int bitmap_add(struct bitmap *set, uint32_t n) {
    size_t at = n >> 3;
    if (at >= set->bytes) {
        size_t bytes = set->bytes ? set->bytes : 1024;
        while (bytes <= at) bytes *= 2;
        set->bits = must(realloc(set->bits, bytes));
        memset(set->bits + set->bytes, 0, bytes - set->bytes);
        set->bytes = bytes;
    }
    uint8_t mask = (uint8_t)(1u << (n & 7));
    int fresh = !(set->bits[at] & mask);
    set->bits[at] |= mask;
    return fresh;
}

/* One set in a file: its length in bytes (8 bytes, little endian), then the bits, lowest first. */
static inline void bitmap_write(const struct bitmap *set, FILE *file) {
    uint64_t bytes = set->bytes;
    if (fwrite(&bytes, sizeof bytes, 1, file) != 1 || (bytes && fwrite(set->bits, 1, bytes, file) != bytes))
        die("cannot write the bitmaps", NULL);
}

/* A file of devices: one "id username password" a line, "-" for no username. */
struct credential {
    char id[65], username[257], password[257];
};

static inline struct credential *read_credentials(const char *path, unsigned *count) {
    FILE *file = fopen(path, "r");
    if (!file) die("cannot read", path);
    unsigned room = 64, n = 0;
    struct credential *list = must(malloc(room * sizeof *list));
    while (fscanf(file, "%64s %256s %256s", list[n].id, list[n].username, list[n].password) == 3) {
        if (++n == room) list = must(realloc(list, (room *= 2) * sizeof *list));
    }
    fclose(file);
    if (!n) die("no devices in", path);
    *count = n;
    return list;
}

#endif
