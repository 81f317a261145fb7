/*
 * Kineto JSON to columns, in one walk, fed piece by piece.
 *
 * The bytes that are not yet understood lie in a window. A step takes one unit from
 * its front (an event, or a key or value next to traceEvents) or finds that the unit
 * is not all there; then the walk waits until the window has doubled, so that no byte
 * is looked at more than a few times however large a unit is. A unit beyond its limit
 * is skipped byte by byte, without being held.
 *
 * Of an event, the eight fields that matter are located first (everything nested is
 * jumped over), and only if the record is wanted are they decoded. The walk accepts
 * more than strict JSON where that costs nothing; what it cannot follow ends it, and
 * the caller learns that the document is not complete.
 *
 * emo.trace._kineto_py is the readable twin; tests hold the two equal.
 */
#include "native.h"

#include <stdint.h>
#include <string.h>

/* ------------------------------------------------------------------------- shared with emo.trace.kineto */

/* Columns of a row, in the order in which kineto_finish returns them. */
#define COLUMNS(X)               \
    X(category, int8_t)          \
    X(start_ns, int64_t)         \
    X(dur_ns, int64_t)           \
    X(device, int32_t)           \
    X(stream, int32_t)           \
    X(thread, int32_t)           \
    X(correlation, int64_t)      \
    X(name_id, int32_t)          \
    X(bytes, int64_t)            \
    X(collective_group, int32_t) \
    X(collective_seq, int64_t)   \
    X(graph_node, int64_t)       \
    X(shape_hash, int64_t)       \
    X(sync_correlation, int64_t) \
    X(sync_stream, int32_t)

/* RawCategory, and THREAD_ONLY of emo.trace.kineto. */
enum { LABEL = 0, API = 1, ANNOTATION = 5, SYNC = 6, THREAD_ONLY = 7 };

/* REASONS of emo.trace.kineto, in its order. */
enum reason { NOT_AN_OBJECT, MALFORMED_RECORD, NO_TIME, TIME_NOT_A_NUMBER, TIME_OUT_OF_RANGE, BEGIN_END_EVENT, TOO_LARGE, N_REASONS };

static const int64_t MAX_TIME_NS = 3000000000000000000;

/* ------------------------------------------------------------------------- growing tables */

typedef struct {
    const uint8_t *at;
    size_t n;
} Slice;

static int equals(Slice s, const char *text)
{
    size_t n = strlen(text);
    return s.n == n && memcmp(s.at, text, n) == 0;
}

/* Room for `wanted` items; 0, or -1 without memory. */
static int reserve(void **items, size_t *capacity, size_t wanted, size_t itemsize)
{
    if (wanted <= *capacity)
        return 0;
    size_t n = *capacity ? *capacity : 64;
    while (n < wanted)
        n *= 2;
    void *larger = PyMem_RawRealloc(*items, n * itemsize);
    if (!larger)
        return -1;
    *items = larger;
    *capacity = n;
    return 0;
}

/* Byte strings to ids 0, 1, ... in order of first use: a hash table with open addressing. */
typedef struct {
    uint64_t hash;
    size_t at; /* in text */
    size_t n;
} Key;

typedef struct {
    uint8_t *text;
    Key *keys;
    int32_t *slots; /* id, or -1 */
    size_t text_n, text_capacity, n, capacity, n_slots;
} Table;

static uint64_t hash_bytes(Slice s)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ s.n, word;
    for (; s.n >= 8; s.at += 8, s.n -= 8) {
        memcpy(&word, s.at, 8);
        h = (h ^ word) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, s.at, s.n);
    h = (h ^ word) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 29;
}

/* The slot that holds `s`, or the free one where it belongs. The table is never full. */
static size_t table_slot(const Table *t, Slice s, uint64_t hash)
{
    size_t slot = hash & (t->n_slots - 1);
    for (; t->slots[slot] >= 0; slot = (slot + 1) & (t->n_slots - 1)) {
        const Key *key = &t->keys[t->slots[slot]];
        if (key->hash == hash && key->n == s.n && memcmp(t->text + key->at, s.at, s.n) == 0)
            break;
    }
    return slot;
}

static int table_rehash(Table *t)
{
    size_t n_slots = t->n_slots ? 2 * t->n_slots : 64;
    int32_t *slots = PyMem_RawMalloc(n_slots * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    PyMem_RawFree(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    for (size_t id = 0; id < t->n; id++) {
        const Key *key = &t->keys[id];
        slots[table_slot(t, (Slice){t->text + key->at, key->n}, key->hash)] = (int32_t)id;
    }
    return 0;
}

/* The id of `s`, or -1. */
static int32_t table_find(const Table *t, Slice s)
{
    return t->n_slots ? t->slots[table_slot(t, s, hash_bytes(s))] : -1;
}

/* The id of `s`, which is added if it is new; -1 without memory. */
static int32_t table_add(Table *t, Slice s)
{
    uint64_t hash = hash_bytes(s);
    if (2 * t->n >= t->n_slots && table_rehash(t) < 0)
        return -1;
    size_t slot = table_slot(t, s, hash);
    if (t->slots[slot] >= 0)
        return t->slots[slot];
    if (t->n >= INT32_MAX || reserve((void **)&t->keys, &t->capacity, t->n + 1, sizeof *t->keys) < 0 ||
        reserve((void **)&t->text, &t->text_capacity, t->text_n + s.n + 1, 1) < 0)
        return -1;
    memcpy(t->text + t->text_n, s.at, s.n);
    t->keys[t->n] = (Key){hash, t->text_n, s.n};
    t->text_n += s.n;
    return t->slots[slot] = (int32_t)t->n++;
}

static void table_free(Table *t)
{
    PyMem_RawFree(t->text);
    PyMem_RawFree(t->keys);
    PyMem_RawFree(t->slots);
}

/* ------------------------------------------------------------------------- the scanner */

enum state {
    DOCUMENT,     /* before the first character */
    KEY,          /* in the outer object, before a key or its end */
    AFTER_VALUE,  /* before a comma or the end of the outer object */
    EVENT,        /* in the array of events, before an event or its end */
    AFTER_EVENT,  /* before a comma or the end of the array */
    SKIP_VALUE,   /* within a value that is too large to hold */
    SKIP_EVENT,
    COMPLETE,     /* the document has ended; what follows is ignored */
    BROKEN,       /* this is no JSON */
    NO_MEMORY,
};

enum step { OK, INCOMPLETE, MALFORMED, OUT_OF_MEMORY };

typedef struct {
    int64_t pid, tid, first_ns, last_ns;
} ThreadSpan;

typedef struct {
    size_t key_at, key_n, value_at, value_n; /* in metadata_text */
} Metadata;

typedef struct {
    int busy; /* a call without the GIL is under way */
    enum state state;
    int events_are_document; /* the outer value is the array of events */
    int has_events;

    uint8_t *window;
    size_t window_n, window_capacity, at;
    size_t wanted; /* bytes from `at` that the window must hold before the next try */

    size_t skip_depth;
    int skip_in_string, skip_escaped;

    size_t max_record, max_metadata;
    Table categories, dtypes;
    int64_t *category_of, *dtype_bytes; /* by id in the table */

#define X(name, type) type *name;
    COLUMNS(X)
#undef X
    size_t n, capacity;

    Table names, groups, thread_ids;
    ThreadSpan *threads;
    size_t threads_capacity;

    uint8_t *metadata_text;
    size_t metadata_text_n, metadata_text_capacity;
    Metadata *metadata;
    size_t metadata_n, metadata_capacity;

    uint8_t *scratch[2]; /* decoded strings; two may be in use at once */
    size_t scratch_capacity[2];

    int64_t dropped[N_REASONS];
} Scanner;

static void scanner_free(Scanner *s)
{
    Table *tables[] = {&s->categories, &s->dtypes, &s->names, &s->groups, &s->thread_ids};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        table_free(tables[i]);
#define X(name, type) PyMem_RawFree(s->name);
    COLUMNS(X)
#undef X
    PyMem_RawFree(s->window);
    PyMem_RawFree(s->category_of);
    PyMem_RawFree(s->dtype_bytes);
    PyMem_RawFree(s->threads);
    PyMem_RawFree(s->metadata_text);
    PyMem_RawFree(s->metadata);
    PyMem_RawFree(s->scratch[0]);
    PyMem_RawFree(s->scratch[1]);
    PyMem_RawFree(s);
}

/* Room for one more row in every column. */
static int reserve_row(Scanner *s)
{
    if (s->n < s->capacity)
        return 0;
    size_t wanted = s->capacity ? 2 * s->capacity : 4096;
#define X(name, type)                                                       \
    {                                                                       \
        type *larger = PyMem_RawRealloc(s->name, wanted * sizeof *larger);  \
        if (!larger)                                                        \
            return -1;                                                      \
        s->name = larger;                                                   \
    }
    COLUMNS(X)
#undef X
    s->capacity = wanted;
    return 0;
}

/* ------------------------------------------------------------------------- locating JSON values */

enum type { ABSENT, STRING, NUMBER, OBJECT, ARRAY, LITERAL };

typedef struct {
    enum type type;
    int escaped; /* STRING: there are backslashes in it */
    Slice text;  /* STRING: between the quotes. Others: all of it */
} Value;

enum { PLAIN, QUOTE, OPEN, CLOSE };
static const uint8_t STRUCTURE[256] = {
    ['"'] = QUOTE, ['{'] = OPEN, ['['] = OPEN, ['}'] = CLOSE, [']'] = CLOSE,
};

/* What ends a number or a literal. */
static const uint8_t ENDS_SCALAR[256] = {
    [' '] = 1, ['\t'] = 1, ['\n'] = 1, ['\r'] = 1, [','] = 1, [':'] = 1,
    ['"'] = 1, ['{'] = 1,  ['['] = 1,  ['}'] = 1,  [']'] = 1,
};

static inline int is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* Bytes of `word` that equal `c`: their top bit is set in the result (exact for the lowest such byte). */
static inline uint64_t bytes_equal(uint64_t word, uint8_t c)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t x = word ^ (ones * c);
    return (x - ones) & ~x & (ones << 7);
}

/* From behind an opening quote to the closing one; NULL if it is not there. */
static inline const uint8_t *find_quote(const uint8_t *p, const uint8_t *end, int *escaped)
{
    for (;;) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint64_t word, hit;
        while (end - p >= 8) {
            memcpy(&word, p, 8);
            hit = bytes_equal(word, '"') | bytes_equal(word, '\\');
            if (hit) {
                p += __builtin_ctzll(hit) >> 3;
                break;
            }
            p += 8;
        }
#endif
        while (p < end && *p != '"' && *p != '\\')
            p++;
        if (p >= end)
            return NULL;
        if (*p == '"')
            return p;
        *escaped = 1;
        if (end - p < 2)
            return NULL;
        p += 2;
    }
}

/* From behind an opening bracket to behind the closing one; NULL if it is not there. */
static const uint8_t *skip_container(const uint8_t *p, const uint8_t *end)
{
    size_t depth = 1;
    int escaped;
    while (p < end) {
        switch (STRUCTURE[*p++]) {
        case QUOTE:
            p = find_quote(p, end, &escaped);
            if (!p)
                return NULL;
            p++;
            break;
        case OPEN:
            depth++;
            break;
        case CLOSE:
            if (--depth == 0)
                return p;
            break;
        }
    }
    return NULL;
}

/* Locate the value that begins at *p (no white space before it), and step behind it. */
static inline enum step take_value(const uint8_t **p, const uint8_t *end, Value *value)
{
    const uint8_t *start = *p, *stop;
    if (start >= end)
        return INCOMPLETE;
    value->escaped = 0;
    switch (*start) {
    case '"':
        stop = find_quote(start + 1, end, &value->escaped);
        if (!stop)
            return INCOMPLETE;
        value->type = STRING;
        value->text = (Slice){start + 1, (size_t)(stop - start - 1)};
        *p = stop + 1;
        return OK;
    case '{':
    case '[':
        stop = skip_container(start + 1, end);
        if (!stop)
            return INCOMPLETE;
        value->type = *start == '{' ? OBJECT : ARRAY;
        break;
    default:
        for (stop = start; stop < end && !ENDS_SCALAR[*stop]; stop++)
            ;
        if (stop == end)
            return INCOMPLETE; /* more digits may follow */
        if (stop == start)
            return MALFORMED;
        value->type = is_digit(*start) || (*start == '-' && is_digit(start[1])) ? NUMBER : LITERAL;
        break;
    }
    value->text = (Slice){start, (size_t)(stop - start)};
    *p = stop;
    return OK;
}

/* ------------------------------------------------------------------------- decoding values */

static int hex4(const uint8_t *p, const uint8_t *end, uint32_t *code)
{
    *code = 0;
    if (end - p < 4)
        return 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], lower = c | 0x20;
        if (is_digit(c))
            *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return 0;
    }
    return 1;
}

static uint8_t *put_utf8(uint8_t *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* One escape sequence; `p` stands behind the backslash. What is no escape stays as it is. */
static const uint8_t *unescape(const uint8_t *p, const uint8_t *end, uint8_t **out)
{
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    const char *known = memchr(FROM, *p, sizeof FROM - 1);
    if (known) {
        *(*out)++ = (uint8_t)TO[known - FROM];
        return p + 1;
    }
    if (*p != 'u' || !hex4(p + 1, end, &code)) {
        *(*out)++ = '\\';
        return p;
    }
    p += 5;
    if (code >= 0xD800 && code <= 0xDBFF && end - p >= 2 && p[0] == '\\' && p[1] == 'u' && hex4(p + 2, end, &low) &&
        low >= 0xDC00 && low <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    } else if (code >= 0xD800 && code <= 0xDFFF) {
        code = 0xFFFD; /* half a surrogate pair is no character */
    }
    *out = put_utf8(*out, code);
    return p;
}

/* The UTF-8 of a string, without its escapes: in place, or in a scratch buffer. at == NULL: no memory. */
static Slice decode(Scanner *s, Value value, int buffer)
{
    if (!value.escaped)
        return value.text;
    /* Decoding never makes a string longer: the shortest escape of a 3-byte character has 6. */
    if (reserve((void **)&s->scratch[buffer], &s->scratch_capacity[buffer], value.text.n + 1, 1) < 0)
        return (Slice){NULL, 0};
    const uint8_t *p = value.text.at, *end = p + value.text.n;
    uint8_t *out = s->scratch[buffer];
    while (p < end) {
        if (*p == '\\' && end - p >= 2)
            p = unescape(p + 1, end, &out);
        else
            *out++ = *p++;
    }
    return (Slice){s->scratch[buffer], (size_t)(out - s->scratch[buffer])};
}

/* An int64 that is written as an integer. */
static int parse_integer(Slice text, int64_t *number)
{
    const uint8_t *p = text.at, *end = p + text.n;
    int negative = p < end && *p == '-';
    p += negative;
    if (p == end)
        return 0;
    while (p < end - 1 && *p == '0')
        p++;
    if (end - p > 19)
        return 0;
    uint64_t magnitude = 0;
    for (; p < end; p++) {
        if (!is_digit(*p))
            return 0;
        magnitude = magnitude * 10 + (uint64_t)(*p - '0'); /* 19 digits fit */
    }
    if (magnitude > (uint64_t)INT64_MAX + (uint64_t)negative)
        return 0;
    *number = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return 1;
}

/* The same for a field: a number, or a string that holds one. */
static int field_integer(Scanner *s, Value value, int64_t *number)
{
    if (value.type == NUMBER)
        return parse_integer(value.text, number);
    return value.type == STRING && parse_integer(decode(s, value, 0), number);
}

/* An ordinal that fits int32; -1 for none. */
static int32_t small(int64_t number)
{
    return number >= 0 && number <= INT32_MAX ? (int32_t)number : -1;
}

static int32_t field_small(Scanner *s, Value value)
{
    int64_t number;
    return field_integer(s, value, &number) ? small(number) : -1;
}

/* An id; those below `least` stand for "unknown", which is -1. */
static int64_t field_id(Scanner *s, Value value, int64_t least)
{
    int64_t number;
    return field_integer(s, value, &number) && number >= least ? number : -1;
}

static const uint8_t *skip_digits(const uint8_t *p, const uint8_t *end)
{
    while (p < end && is_digit(*p))
        p++;
    return p;
}

/* Digits of a decimal number, as if whole part and fraction were one. */
typedef struct {
    const uint8_t *whole, *fraction;
    int64_t n_whole, n;
} Digits;

static inline int digit_at(const Digits *d, int64_t i)
{
    if (i >= d->n)
        return 0;
    return (i < d->n_whole ? d->whole[i] : d->fraction[i - d->n_whole]) - '0';
}

/* Decimal microseconds to nanoseconds, exactly: half of one rounds away from zero. N_REASONS: fine. */
static enum reason parse_time(Slice text, int64_t *time_ns)
{
    const uint8_t *p = text.at, *end = p + text.n;
    int negative = p < end && *p == '-';
    p += negative;
    Digits d = {p, NULL, 0, 0};
    p = skip_digits(p, end);
    d.n = d.n_whole = p - d.whole;
    if (!d.n)
        return TIME_NOT_A_NUMBER;
    if (p < end && *p == '.') {
        d.fraction = ++p;
        p = skip_digits(p, end);
        if (p == d.fraction)
            return TIME_NOT_A_NUMBER;
        d.n += p - d.fraction;
    }
    int64_t exponent = 0;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        int negative_exponent = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        if (p == end || !is_digit(*p))
            return TIME_NOT_A_NUMBER;
        for (; p < end && is_digit(*p); p++)
            if (exponent < 1000000000000) /* far beyond the length of any mantissa */
                exponent = exponent * 10 + (*p - '0');
        exponent = negative_exponent ? -exponent : exponent;
    }
    if (p != end)
        return TIME_NOT_A_NUMBER;

    int64_t zeros = 0;
    while (zeros < d.n && digit_at(&d, zeros) == 0)
        zeros++;
    *time_ns = 0;
    if (zeros == d.n)
        return N_REASONS;
    int64_t places = d.n_whole - zeros + exponent + 3; /* digits of the integer part, in nanoseconds */
    if (places > 19)
        return TIME_OUT_OF_RANGE;
    if (places < 0)
        return N_REASONS;
    uint64_t magnitude = 0;
    for (int64_t i = 0; i < places; i++)
        magnitude = magnitude * 10 + (uint64_t)digit_at(&d, zeros + i);
    magnitude += digit_at(&d, zeros + places) >= 5;
    if (magnitude > (uint64_t)MAX_TIME_NS)
        return TIME_OUT_OF_RANGE;
    *time_ns = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return N_REASONS;
}

static enum reason field_time(Scanner *s, Value value, int64_t *time_ns)
{
    if (value.type == ABSENT || (value.type == LITERAL && equals(value.text, "null")))
        return NO_TIME;
    if (value.type == NUMBER)
        return parse_time(value.text, time_ns);
    return value.type == STRING ? parse_time(decode(s, value, 0), time_ns) : TIME_NOT_A_NUMBER;
}

static const uint64_t FNV_START = 0xCBF29CE484222325u;

static uint64_t fnv1a(uint64_t hash, Slice text)
{
    for (size_t i = 0; i < text.n; i++)
        hash = (hash ^ text.at[i]) * 0x100000001B3u;
    return hash;
}

/* A process or thread as a number: what is not one is hashed, to a negative number below -1. */
static int64_t field_identity(Scanner *s, Value value)
{
    if (value.type != NUMBER && value.type != STRING)
        return -1;
    int64_t number;
    Slice text = decode(s, value, 0);
    return parse_integer(text, &number) ? number : -2 - (int64_t)(fnv1a(FNV_START, text) >> 2);
}

/* Hash of the digits in an array of numbers; 0 if the value is no such array. */
static int array_hash(Value value, uint64_t *hash)
{
    if (value.type != ARRAY)
        return 0;
    *hash = FNV_START;
    const uint8_t *p = value.text.at + 1, *end = value.text.at + value.text.n;
    for (int first = 1;; first = 0) {
        Value item;
        p = skip_space(p, end);
        if (p < end && *p == ']')
            return 1;
        if (!first) {
            if (p >= end || *p != ',')
                return 0;
            p = skip_space(p + 1, end);
            *hash = fnv1a(*hash, (Slice){(const uint8_t *)",", 1});
        }
        if (take_value(&p, end, &item) != OK || item.type != NUMBER)
            return 0;
        *hash = fnv1a(*hash, item.text);
    }
}

/* ------------------------------------------------------------------------- one event */

typedef struct {
    Value ph, cat, name, pid, tid, ts, dur, args;
} Event;

typedef struct {
    Value correlation, device, stream, elements, dtype, grid, block, graph_node;
    Value group_name, group_ranks, group_size, wait_stream, wait_record;
    int64_t bytes, sequence;
    int has_bytes, has_sequence;
} Args;

/* Where the value of an event's key goes; NULL for a key that does not matter. */
static inline Value *event_field(Event *event, Slice key)
{
    const char *k = (const char *)key.at;
    switch (key.n) {
    case 2:
        return !memcmp(k, "ph", 2) ? &event->ph : !memcmp(k, "ts", 2) ? &event->ts : NULL;
    case 3:
        return !memcmp(k, "cat", 3)   ? &event->cat
               : !memcmp(k, "pid", 3) ? &event->pid
               : !memcmp(k, "tid", 3) ? &event->tid
               : !memcmp(k, "dur", 3) ? &event->dur
                                      : NULL;
    case 4:
        return !memcmp(k, "name", 4) ? &event->name : !memcmp(k, "args", 4) ? &event->args : NULL;
    }
    return NULL;
}

/* The same for its args. */
static Value *args_field(Args *args, Slice key)
{
    switch (key.n) {
    case 4:
        return equals(key, "grid") ? &args->grid : NULL;
    case 5:
        return equals(key, "block") ? &args->block : equals(key, "dtype") ? &args->dtype : NULL;
    case 6:
        return equals(key, "device") ? &args->device : equals(key, "stream") ? &args->stream : NULL;
    case 10:
        return equals(key, "Group size") ? &args->group_size : NULL;
    case 11:
        return equals(key, "correlation") ? &args->correlation : NULL;
    case 13:
        return equals(key, "graph node id") ? &args->graph_node : equals(key, "In msg nelems") ? &args->elements : NULL;
    case 14:
        return equals(key, "wait_on_stream") ? &args->wait_stream : NULL;
    case 18:
        return equals(key, "Process Group Name") ? &args->group_name : NULL;
    case 19:
        return equals(key, "Process Group Ranks") ? &args->group_ranks : NULL;
    case 33:
        return equals(key, "wait_on_cuda_event_record_corr_id") ? &args->wait_record : NULL;
    }
    return NULL;
}

static int is_bytes_key(Slice key)
{
    return equals(key, "bytes") || equals(key, "Bytes") || equals(key, "size");
}

static int is_sequence_key(Slice key)
{
    return equals(key, "Seq") || equals(key, "Seq num") || equals(key, "Seq Num");
}

/* A key and its colon: *p stands before the key, then before the value. */
static inline enum step take_key(Scanner *s, const uint8_t **p, const uint8_t *end, Slice *key)
{
    Value quoted;
    enum step step = take_value(p, end, &quoted);
    if (step != OK)
        return step;
    if (quoted.type != STRING)
        return MALFORMED;
    *key = decode(s, quoted, 1);
    if (!key->at)
        return OUT_OF_MEMORY;
    *p = skip_space(*p, end);
    if (*p >= end)
        return INCOMPLETE;
    if (**p != ':')
        return MALFORMED;
    *p = skip_space(*p + 1, end);
    return *p < end ? OK : INCOMPLETE;
}

/* A key and its value. */
static inline enum step take_member(Scanner *s, const uint8_t **p, const uint8_t *end, Slice *key, Value *value)
{
    enum step step = take_key(s, p, end, key);
    return step == OK ? take_value(p, end, value) : step;
}

/* Behind a member or an element: step to the next (OK), or behind the closing bracket (*closed). */
static inline enum step take_comma(const uint8_t **p, const uint8_t *end, uint8_t closing, int *closed)
{
    *p = skip_space(*p, end);
    if (*p < end && **p == ',')
        *p = skip_space(*p + 1, end);
    else if (*p < end && **p != closing)
        return MALFORMED;
    if (*p >= end)
        return INCOMPLETE;
    *closed = **p == closing;
    *p += *closed;
    return OK;
}

/* Locate the fields of the event that begins at *p, and step behind it. */
static enum step take_event(Scanner *s, const uint8_t **p, const uint8_t *end, Event *event)
{
    const uint8_t *q = skip_space(*p + 1, end);
    int closed = q < end && *q == '}';
    q += closed;
    while (!closed) {
        Slice key;
        Value value;
        enum step step = take_member(s, &q, end, &key, &value);
        if (step != OK)
            return step;
        Value *field = event_field(event, key);
        if (field)
            *field = value;
        step = take_comma(&q, end, '}', &closed);
        if (step != OK)
            return step;
    }
    *p = q;
    return OK;
}

/* The members of an object that is complete. What is malformed ends the walk over it. */
static enum step read_args(Scanner *s, Slice object, Args *args)
{
    const uint8_t *p = skip_space(object.at + 1, object.at + object.n), *end = object.at + object.n;
    int closed = *p == '}';
    while (!closed) {
        Slice key;
        Value value;
        enum step step = take_member(s, &p, end, &key, &value);
        if (step != OK)
            return step == INCOMPLETE ? MALFORMED : step;
        Value *field = args_field(args, key);
        if (field)
            *field = value;
        else if (!args->has_bytes && is_bytes_key(key))
            args->has_bytes = field_integer(s, value, &args->bytes);
        else if (!args->has_sequence && is_sequence_key(key))
            args->has_sequence = field_integer(s, value, &args->sequence);
        step = take_comma(&p, end, '}', &closed);
        if (step != OK)
            return step == INCOMPLETE ? MALFORMED : step;
    }
    return OK;
}

/* Index of the event's thread, whose span is widened to include it; -1 without memory. */
static int32_t thread_index(Scanner *s, const Event *event, int64_t first_ns, int64_t last_ns)
{
    int64_t identity[2] = {field_identity(s, event->pid), field_identity(s, event->tid)};
    size_t known = s->thread_ids.n;
    int32_t index = table_add(&s->thread_ids, (Slice){(const uint8_t *)identity, sizeof identity});
    if (index < 0)
        return -1;
    if (s->thread_ids.n > known) {
        if (reserve((void **)&s->threads, &s->threads_capacity, s->thread_ids.n, sizeof *s->threads) < 0)
            return -1;
        s->threads[index] = (ThreadSpan){identity[0], identity[1], first_ns, last_ns};
    }
    ThreadSpan *span = &s->threads[index];
    if (first_ns < span->first_ns)
        span->first_ns = first_ns;
    if (last_ns > span->last_ns)
        span->last_ns = last_ns;
    return index;
}

static int32_t device_of(Scanner *s, const Args *args, const Event *event)
{
    int64_t number;
    if (field_integer(s, args->device, &number))
        return small(number);
    return field_small(s, event->pid);
}

/* In 2021 the thread of a GPU op is called "stream 7". */
static int32_t stream_of(Scanner *s, const Args *args, const Event *event)
{
    static const char PREFIX[] = "stream ";
    int64_t number;
    if (field_integer(s, args->stream, &number))
        return small(number);
    if (event->tid.type != STRING)
        return field_small(s, event->tid);
    Slice text = decode(s, event->tid, 0);
    if (text.n >= sizeof PREFIX - 1 && memcmp(text.at, PREFIX, sizeof PREFIX - 1) == 0)
        text = (Slice){text.at + sizeof PREFIX - 1, text.n - (sizeof PREFIX - 1)};
    return parse_integer(text, &number) ? small(number) : -1;
}

/* Size of a copy or set; of a collective, what this rank puts in. */
static int64_t bytes_of(Scanner *s, const Args *args)
{
    int64_t elements;
    if (args->has_bytes && args->bytes >= 0)
        return args->bytes;
    if (!field_integer(s, args->elements, &elements) || elements < 0 || elements >= (int64_t)1 << 58)
        return -1;
    int32_t dtype = args->dtype.type == STRING ? table_find(&s->dtypes, decode(s, args->dtype, 0)) : -1;
    return dtype < 0 ? -1 : elements * s->dtype_bytes[dtype];
}

/* Index of the process group; -1 if the record names none, -2 without memory.
 * The key is the size and the length of the name, each as int64, then the name and the ranks. */
static int32_t group_of(Scanner *s, const Args *args)
{
    Slice name = {(const uint8_t *)"", 0}, ranks = name;
    if (args->group_name.type == STRING || args->group_name.type == NUMBER)
        name = decode(s, args->group_name, 0);
    if (args->group_ranks.type == STRING)
        ranks = decode(s, args->group_ranks, 1);
    int64_t head[2] = {field_small(s, args->group_size), (int64_t)name.n};
    if (!name.n && !ranks.n && head[0] < 0)
        return -1;
    uint8_t *key = PyMem_RawMalloc(sizeof head + name.n + ranks.n);
    if (!key || !name.at || !ranks.at) {
        PyMem_RawFree(key);
        return -2;
    }
    memcpy(key, head, sizeof head);
    memcpy(key + sizeof head, name.at, name.n);
    memcpy(key + sizeof head + name.n, ranks.at, ranks.n);
    int32_t group = table_add(&s->groups, (Slice){key, sizeof head + name.n + ranks.n});
    PyMem_RawFree(key);
    return group < 0 ? -2 : group;
}

/* Hash of the digits of grid and block; 0 if there are none. Does not depend on their order. */
static int64_t shape_of(const Args *args)
{
    uint64_t grid = FNV_START, block = FNV_START;
    int has_grid = array_hash(args->grid, &grid), has_block = array_hash(args->block, &block);
    if (!has_grid && !has_block)
        return 0;
    grid = has_grid ? grid : FNV_START;
    block = has_block ? block : FNV_START;
    uint64_t mixed = (grid * 31 + block) & INT64_MAX;
    return mixed ? (int64_t)mixed : 1;
}

/* The record that is waited for; -2 if the field says that there is none, -1 without the field. */
static int64_t awaited_record(Scanner *s, const Args *args)
{
    if (args->wait_record.type == ABSENT)
        return -1;
    int64_t record = field_id(s, args->wait_record, 1);
    return record < 0 ? -2 : record;
}

static enum step add_row(Scanner *s, const Event *event, int category, int64_t start_ns, int64_t dur_ns, int32_t thread)
{
    Args args;
    memset(&args, 0, sizeof args);
    if (category != LABEL && event->args.type == OBJECT && read_args(s, event->args.text, &args) == OUT_OF_MEMORY)
        return OUT_OF_MEMORY;

    int on_gpu = thread < 0;
    Slice name = {(const uint8_t *)"", 0};
    if (event->name.type == STRING)
        name = decode(s, event->name, 0);
    int32_t name_id = name.at ? table_add(&s->names, name) : -1;
    int32_t group = group_of(s, &args);
    if (name_id < 0 || group == -2 || reserve_row(s) < 0)
        return OUT_OF_MEMORY;

    size_t row = s->n++;
    s->category[row] = (int8_t)category;
    s->start_ns[row] = start_ns;
    s->dur_ns[row] = dur_ns;
    s->device[row] = on_gpu ? device_of(s, &args, event) : -1;
    s->stream[row] = on_gpu ? stream_of(s, &args, event) : field_small(s, args.stream);
    s->thread[row] = thread;
    s->correlation[row] = field_id(s, args.correlation, 1); /* CUPTI's 0 is "unknown" */
    s->name_id[row] = name_id;
    s->bytes[row] = bytes_of(s, &args);
    s->collective_group[row] = group;
    s->collective_seq[row] = args.has_sequence && args.sequence >= 0 ? args.sequence : -1;
    s->graph_node[row] = field_id(s, args.graph_node, 1);
    s->shape_hash[row] = shape_of(&args);
    s->sync_correlation[row] = category == SYNC ? awaited_record(s, &args) : -1;
    s->sync_stream[row] = field_small(s, args.wait_stream);
    return OK;
}

/* A located event to a row, if it is one. */
static enum step add_event(Scanner *s, const Event *event)
{
    if (event->ph.type != STRING || event->cat.type != STRING)
        return OK;
    Slice ph = decode(s, event->ph, 0);
    int complete = ph.at && equals(ph, "X"), begin = ph.at && equals(ph, "B");
    if (!complete && !begin)
        return ph.at ? OK : OUT_OF_MEMORY;
    Slice cat = decode(s, event->cat, 0);
    int32_t id = cat.at ? table_find(&s->categories, cat) : -1;
    if (id < 0)
        return cat.at ? OK : OUT_OF_MEMORY;
    if (begin) {
        s->dropped[BEGIN_END_EVENT]++;
        return OK;
    }

    int64_t start_ns, dur_ns;
    enum reason reason = field_time(s, event->ts, &start_ns);
    if (reason == N_REASONS)
        reason = field_time(s, event->dur, &dur_ns);
    if (reason != N_REASONS) {
        s->dropped[reason]++;
        return OK;
    }
    int category = (int)s->category_of[id];
    int32_t thread = -1;
    if (category == LABEL || category == API || category == ANNOTATION || category == THREAD_ONLY) {
        thread = thread_index(s, event, start_ns, start_ns + (dur_ns > 0 ? dur_ns : 0));
        if (thread < 0)
            return OUT_OF_MEMORY;
    }
    return category == THREAD_ONLY ? OK : add_row(s, event, category, start_ns, dur_ns, thread);
}

/* ------------------------------------------------------------------------- the document */

/* Skip within a value that is not held. Returns behind it, or NULL if it goes on. */
static const uint8_t *skip_streaming(Scanner *s, const uint8_t *p, const uint8_t *end)
{
    for (; p < end; p++) {
        if (s->skip_in_string) {
            if (s->skip_escaped)
                s->skip_escaped = 0;
            else if (*p == '\\')
                s->skip_escaped = 1;
            else if (*p == '"') {
                s->skip_in_string = 0;
                if (!s->skip_depth)
                    return p + 1;
            }
            continue;
        }
        uint8_t what = STRUCTURE[*p];
        if (what == QUOTE) {
            s->skip_in_string = 1;
        } else if (what == OPEN) {
            s->skip_depth++;
        } else if (what == CLOSE) {
            if (!s->skip_depth)
                return p; /* a number ended before the bracket around it */
            if (--s->skip_depth == 0)
                return p + 1;
        } else if (!s->skip_depth && ENDS_SCALAR[*p]) {
            return p;
        }
    }
    return NULL;
}

static void start_skipping(Scanner *s, enum state state)
{
    s->state = state;
    s->skip_depth = 0;
    s->skip_in_string = s->skip_escaped = 0;
}

/* Keep a small value next to traceEvents, as it is written. */
static enum step keep_metadata(Scanner *s, Slice key, Slice value)
{
    size_t at = s->metadata_text_n;
    if (reserve((void **)&s->metadata_text, &s->metadata_text_capacity, at + key.n + value.n + 1, 1) < 0 ||
        reserve((void **)&s->metadata, &s->metadata_capacity, s->metadata_n + 1, sizeof *s->metadata) < 0)
        return OUT_OF_MEMORY;
    memcpy(s->metadata_text + at, key.at, key.n);
    memcpy(s->metadata_text + at + key.n, value.at, value.n);
    s->metadata[s->metadata_n++] = (Metadata){at, key.n, at + key.n, value.n};
    s->metadata_text_n = at + key.n + value.n;
    return OK;
}

/* "key": value in the outer object; stops in the array of events if that is the value. */
static enum step step_member(Scanner *s, const uint8_t **p, const uint8_t *end)
{
    const uint8_t *q = skip_space(*p, end);
    if (q < end && *q == '}') {
        *p = q + 1;
        s->state = COMPLETE;
        return OK;
    }
    Slice key;
    Value value;
    enum step step = take_key(s, &q, end, &key);
    if (step != OK)
        return step;
    if (*q == '[' && equals(key, "traceEvents")) {
        *p = q + 1;
        s->has_events = 1;
        s->state = EVENT;
        return OK;
    }
    const uint8_t *start = q;
    step = take_value(&q, end, &value);
    if (step == INCOMPLETE && (size_t)(end - start) > s->max_metadata) {
        *p = start;
        start_skipping(s, SKIP_VALUE);
        return OK;
    }
    if (step != OK)
        return step;
    *p = q;
    s->state = AFTER_VALUE;
    Slice written = {start, (size_t)(q - start)};
    return written.n <= s->max_metadata ? keep_metadata(s, key, written) : OK;
}

/* One element of the array of events. */
static enum step step_event(Scanner *s, const uint8_t **p, const uint8_t *end)
{
    const uint8_t *q = skip_space(*p, end), *start = q;
    if (q >= end) {
        *p = q; /* white space need not be kept */
        return INCOMPLETE;
    }
    if (*q == ']') {
        *p = q + 1;
        s->state = s->events_are_document ? COMPLETE : AFTER_VALUE;
        return OK;
    }
    Event event;
    Value value;
    memset(&event, 0, sizeof event);
    int is_object = *q == '{';
    enum step step = is_object ? take_event(s, &q, end, &event) : take_value(&q, end, &value);
    int malformed = step == MALFORMED && is_object;
    if (malformed) {
        /* Its brackets may still tell where it ends. */
        q = skip_container(start + 1, end);
        step = q ? OK : INCOMPLETE;
    }
    if (step == INCOMPLETE && (size_t)(end - start) > s->max_record) {
        *p = start;
        s->dropped[TOO_LARGE]++;
        start_skipping(s, SKIP_EVENT);
        return OK;
    }
    if (step != OK)
        return step;
    if ((size_t)(q - start) > s->max_record) {
        s->dropped[TOO_LARGE]++;
    } else if (malformed) {
        s->dropped[MALFORMED_RECORD]++;
    } else if (!is_object) {
        s->dropped[NOT_AN_OBJECT]++;
    } else {
        s->has_events |= event.ph.type == STRING;
        step = add_event(s, &event);
        if (step != OK)
            return step;
    }
    *p = q;
    s->state = AFTER_EVENT;
    return OK;
}

/* A comma, or the end of the container whose elements `before` reads. */
static enum step step_separator(Scanner *s, const uint8_t **p, const uint8_t *end, enum state before)
{
    const uint8_t *q = skip_space(*p, end);
    *p = q;
    if (q >= end)
        return INCOMPLETE;
    if (*q == ',')
        *p = q + 1;
    else if (*q != (before == EVENT ? ']' : '}'))
        return MALFORMED;
    s->state = before; /* which sees the end itself */
    return OK;
}

static enum step step_document(Scanner *s, const uint8_t **p, const uint8_t *end)
{
    static const char BYTE_ORDER_MARK[] = "\xEF\xBB\xBF";
    const uint8_t *q = *p;
    if (q < end && *q == (uint8_t)BYTE_ORDER_MARK[0]) {
        if (end - q < 3)
            return INCOMPLETE;
        if (memcmp(q, BYTE_ORDER_MARK, 3) == 0)
            q += 3;
    }
    q = skip_space(q, end);
    if (q >= end)
        return INCOMPLETE;
    if (*q != '{' && *q != '[')
        return MALFORMED;
    s->events_are_document = *q == '[';
    s->state = s->events_are_document ? EVENT : KEY;
    *p = q + 1;
    return OK;
}

static enum step step_skip(Scanner *s, const uint8_t **p, const uint8_t *end)
{
    const uint8_t *q = skip_streaming(s, *p, end);
    *p = q ? q : end;
    if (!q)
        return INCOMPLETE;
    s->state = s->state == SKIP_EVENT ? AFTER_EVENT : AFTER_VALUE;
    return OK;
}

/* Take units from the window until one is not all there, or the document ends. */
static void walk(Scanner *s)
{
    const uint8_t *p = s->window + s->at, *end = s->window + s->window_n;
    enum step step = OK;
    while (step == OK) {
        switch (s->state) {
        case DOCUMENT:
            step = step_document(s, &p, end);
            break;
        case KEY:
            step = step_member(s, &p, end);
            break;
        case AFTER_VALUE:
            step = step_separator(s, &p, end, KEY);
            break;
        case EVENT:
            step = step_event(s, &p, end);
            break;
        case AFTER_EVENT:
            step = step_separator(s, &p, end, EVENT);
            break;
        case SKIP_VALUE:
        case SKIP_EVENT:
            step = step_skip(s, &p, end);
            break;
        default:
            p = end; /* nothing more is read */
            step = INCOMPLETE;
        }
    }
    if (step == MALFORMED)
        s->state = BROKEN;
    else if (step == OUT_OF_MEMORY)
        s->state = NO_MEMORY;
    s->at = (size_t)(p - s->window);
    s->wanted = 2 * (size_t)(end - p);
}

/* Add a piece to the window; what was understood leaves it. */
static int extend_window(Scanner *s, Slice piece)
{
    size_t rest = s->window_n - s->at;
    if (rest && s->at)
        memmove(s->window, s->window + s->at, rest);
    s->at = 0;
    s->window_n = rest;
    if (reserve((void **)&s->window, &s->window_capacity, rest + piece.n + 1, 1) < 0)
        return -1;
    memcpy(s->window + rest, piece.at, piece.n);
    s->window_n = rest + piece.n;
    return 0;
}

static void feed(Scanner *s, Slice piece)
{
    if (extend_window(s, piece) < 0)
        s->state = NO_MEMORY;
    else if (s->window_n >= s->wanted)
        walk(s);
}

/* ------------------------------------------------------------------------- Python */

static const char CAPSULE[] = "emo._native.kineto";

static void capsule_free(PyObject *capsule)
{
    scanner_free(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* The scanner of a call, unless another thread is in it. */
static Scanner *scanner_of(PyObject *capsule)
{
    Scanner *s = PyCapsule_GetPointer(capsule, CAPSULE);
    if (s && s->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the scanner is in use by another thread");
        return NULL;
    }
    return s;
}

/* A dict of str to int as a table of names, and their values by id. */
static int table_from_dict(PyObject *dict, Table *table, int64_t **values)
{
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "expected a dict of str to int");
        return -1;
    }
    *values = PyMem_RawCalloc((size_t)PyDict_Size(dict) + 1, sizeof **values);
    if (!*values) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *key, *value;
    Py_ssize_t position = 0, n;
    while (PyDict_Next(dict, &position, &key, &value)) {
        const char *text = PyUnicode_AsUTF8AndSize(key, &n);
        int64_t number = text ? PyLong_AsLongLong(value) : -1;
        if (PyErr_Occurred())
            return -1;
        int32_t id = table_add(table, (Slice){(const uint8_t *)text, (size_t)n});
        if (id < 0) {
            PyErr_NoMemory();
            return -1;
        }
        (*values)[id] = number;
    }
    return 0;
}

/* kineto_new(categories, dtype_bytes, max_record_bytes, max_metadata_bytes) -> scanner */
PyObject *emo_kineto_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "kineto_new takes 4 arguments");
        return NULL;
    }
    Scanner *s = PyMem_RawCalloc(1, sizeof *s);
    if (!s)
        return PyErr_NoMemory();
    if (table_from_dict(args[0], &s->categories, &s->category_of) < 0 ||
        table_from_dict(args[1], &s->dtypes, &s->dtype_bytes) < 0)
        goto fail;
    s->max_record = PyLong_AsSize_t(args[2]);
    s->max_metadata = PyErr_Occurred() ? 0 : PyLong_AsSize_t(args[3]);
    if (PyErr_Occurred())
        goto fail;
    PyObject *capsule = PyCapsule_New(s, CAPSULE, capsule_free);
    if (capsule)
        return capsule;
fail:
    scanner_free(s);
    return NULL;
}

/* kineto_feed(scanner, piece) -> bool: whether the document goes on */
PyObject *emo_kineto_feed(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "kineto_feed takes 2 arguments");
        return NULL;
    }
    Scanner *s = scanner_of(args[0]);
    Py_buffer piece;
    if (!s || PyObject_GetBuffer(args[1], &piece, PyBUF_SIMPLE) < 0)
        return NULL;
    s->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    feed(s, (Slice){piece.buf, (size_t)piece.len});
    Py_END_ALLOW_THREADS
    s->busy = 0;
    PyBuffer_Release(&piece);
    if (s->state == NO_MEMORY)
        return PyErr_NoMemory();
    return PyBool_FromLong(s->state != COMPLETE && s->state != BROKEN);
}

/* A column as a bytearray; the column itself is freed, so that both never exist for all. */
static PyObject *take_column(void **column, size_t n_bytes)
{
    PyObject *result = PyByteArray_FromStringAndSize(*column, (Py_ssize_t)n_bytes);
    PyMem_RawFree(*column);
    *column = NULL;
    return result;
}

static PyObject *columns_as_tuple(Scanner *s)
{
    PyObject *columns[32], *tuple = NULL;
    int n = 0, ok = 1;
#define X(name, type) ok &= (columns[n++] = take_column((void **)&s->name, s->n * sizeof *s->name)) != NULL;
    COLUMNS(X)
#undef X
    if (ok && (tuple = PyTuple_New(n)))
        for (int i = 0; i < n; i++)
            PyTuple_SET_ITEM(tuple, i, columns[i]);
    else
        for (int i = 0; i < n; i++)
            Py_XDECREF(columns[i]);
    s->n = s->capacity = 0;
    return tuple;
}

/* A new list of n items made by `item`; NULL if one fails. */
static PyObject *list_of(Scanner *s, size_t n, PyObject *(*item)(Scanner *, size_t))
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *object = item(s, i);
        if (object)
            PyList_SET_ITEM(list, (Py_ssize_t)i, object);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *key_as_bytes(const Table *t, size_t id)
{
    return PyBytes_FromStringAndSize((const char *)t->text + t->keys[id].at, (Py_ssize_t)t->keys[id].n);
}

static PyObject *name_item(Scanner *s, size_t i)
{
    return key_as_bytes(&s->names, i);
}

static PyObject *thread_item(Scanner *s, size_t i)
{
    const ThreadSpan *t = &s->threads[i];
    return Py_BuildValue("(LLLL)", (long long)t->pid, (long long)t->tid, (long long)t->first_ns, (long long)t->last_ns);
}

static PyObject *group_item(Scanner *s, size_t i)
{
    const Key *key = &s->groups.keys[i];
    const char *text = (const char *)s->groups.text + key->at;
    int64_t head[2];
    memcpy(head, text, sizeof head);
    text += sizeof head;
    return Py_BuildValue("(y#y#L)", text, (Py_ssize_t)head[1], text + head[1],
                         (Py_ssize_t)key->n - (Py_ssize_t)sizeof head - (Py_ssize_t)head[1], (long long)head[0]);
}

static PyObject *metadata_item(Scanner *s, size_t i)
{
    const Metadata *m = &s->metadata[i];
    const char *text = (const char *)s->metadata_text;
    return Py_BuildValue("(y#y#)", text + m->key_at, (Py_ssize_t)m->key_n, text + m->value_at, (Py_ssize_t)m->value_n);
}

static PyObject *dropped_item(Scanner *s, size_t i)
{
    return PyLong_FromLongLong(s->dropped[i]);
}

/* kineto_finish(scanner) -> (columns, names, threads, groups, metadata, dropped, complete, has_events)
 *
 * columns: one bytearray each. names: bytes. threads: (pid, tid, first_ns, last_ns).
 * groups: (name, ranks, size). metadata: (key, value as JSON). dropped: a count for each reason. */
PyObject *emo_kineto_finish(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 1) {
        PyErr_SetString(PyExc_TypeError, "kineto_finish takes 1 argument");
        return NULL;
    }
    Scanner *s = scanner_of(args[0]);
    if (!s)
        return NULL;
    walk(s); /* what waited for the window to double */
    if (s->state == NO_MEMORY)
        return PyErr_NoMemory();
    PyObject *parts[] = {
        columns_as_tuple(s),
        list_of(s, s->names.n, name_item),
        list_of(s, s->thread_ids.n, thread_item),
        list_of(s, s->groups.n, group_item),
        list_of(s, s->metadata_n, metadata_item),
        list_of(s, N_REASONS, dropped_item),
        PyBool_FromLong(s->state == COMPLETE),
        PyBool_FromLong(s->has_events),
    };
    int n = sizeof parts / sizeof *parts, ok = 1;
    for (int i = 0; i < n; i++)
        ok &= parts[i] != NULL;
    PyObject *result = ok ? PyTuple_New(n) : NULL;
    for (int i = 0; i < n; i++) {
        if (result)
            PyTuple_SET_ITEM(result, i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    }
    return result;
}
