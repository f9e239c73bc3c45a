/* Walking through JSON text in place: enter, next key, skip a value. Enough for the bench's own two shapes.
 *
 * Every function takes a position and the end of the text, and returns the next position, or NULL at the end of an
 * object or when the text is broken. json_after() tells these two apart.
 */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include <stdint.h>
#include <string.h>

struct json_key {
    const char *text;
    size_t length;
    const char *closed; /* behind the closing brace, once it was met */
};

static inline const char *json_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    return at < end ? at : NULL;
}

/* Behind the closing quote of the string that begins here. */
static inline const char *json_string(const char *at, const char *end) {
    for (at++; (at = memchr(at, '"', (size_t)(end - at)));) {
        const char *back = at;
        while (back[-1] == '\\') back--;
        at++;
        if (!((at - 1 - back) & 1)) return at;
    }
    return NULL;
}

static inline const char *json_skip(const char *at, const char *end) {
    if (*at == '"') return json_string(at, end);
    int depth = 0;
    for (; at && at < end; at++) {
        switch (*at) {
        case '"':
            at = json_string(at, end);
            if (!at) return NULL;
            at--;
            break;
        case '{': case '[': depth++; break;
        case '}': case ']':
            if (!depth) return at;
            if (!--depth) return at + 1;
            break;
        case ',':
            if (!depth) return at;
            break;
        }
    }
    return NULL;
}

static inline const char *json_enter(const char *at, const char *end, char bracket) {
    at = at ? json_space(at, end) : NULL;
    return at && *at == bracket ? json_space(at + 1, end) : NULL;
}

/* The value that belongs to the object's next key. NULL behind the last one, with ``closed`` set. */
static inline const char *json_next_key(const char *at, const char *end, struct json_key *key) {
    key->closed = NULL;
    at = at ? json_space(at, end) : NULL;
    if (at && *at == ',') at = json_space(at + 1, end);
    if (!at) return NULL;
    if (*at == '}') {
        key->closed = at + 1;
        return NULL;
    }
    if (*at != '"') return NULL;
    key->text = at + 1;
    at = json_string(at, end);
    if (!at) return NULL;
    key->length = (size_t)(at - 1 - key->text);
    at = json_space(at, end);
    return at && *at == ':' ? json_space(at + 1, end) : NULL;
}

/* Where the object that was walked through ends; NULL when it was broken. */
static inline const char *json_after(const char *end, const struct json_key *key) {
    return key->closed && key->closed <= end ? key->closed : NULL;
}

static inline int json_is(const struct json_key *key, const char *name) {
    return strlen(name) == key->length && !memcmp(key->text, name, key->length);
}

static inline const char *json_number(const char *at, const char *end, int64_t *number) {
    int negative = *at == '-';
    int64_t n = 0;
    if (negative) at++;
    while (at < end && *at >= '0' && *at <= '9') n = n * 10 + (*at++ - '0');
    *number = negative ? -n : n;
    return json_skip(at, end);
}

#endif
