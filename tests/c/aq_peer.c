/* An independent implementation of the AQ format, written from its description alone: C11 atomics, one file.
 *
 * It shares no code and no idea with the crate: every operation is a plain transcription of the algorithm, all accesses are
 * sequentially consistent, and it knows nothing of the trailer. tests/aq_interop.rs lets both work on one mapped file.
 *
 *   aq_peer format FILE SIZE SHIFT TIMEOUT_MS OPTIONS     formats the first SIZE bytes (creates the file if need be)
 *   aq_peer write FILE PRODUCER COUNT                     puts COUNT messages
 *   aq_peer read FILE COUNT                               gets COUNT messages, checks each, prints "PRODUCER SEQUENCE"
 *   aq_peer snapshot FILE                                 prints "FLAGS SIZE FIRSTBYTE" of each item, oldest first
 *   aq_peer dump FILE                                     prints what isFormatted, page size, page count and so on say
 *
 * A message: u32 length, u32 producer, u64 sequence, then bytes (producer * 31 + sequence + index) & 255.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CLAIM 0x80000000u
#define COMMIT 0x40000000u
#define DISCARD 0x20000000u
#define FLAGS 0xE0000000u
#define SEQ9 0x1FF00000u
#define INDEX 0x000FFFFFu
#define OPT_CRC 1u
#define OPT_LINK 2u
#define OPT_EXT 4u

typedef _Atomic uint32_t word;

struct queue {
    unsigned char *base;
    size_t length;
    word *head, *tail, *contention, *commits, *frees, *control, *link, *crc;
    unsigned char *pages;
    uint32_t shift, count, timeout, options;
};

static void die(const char *what) {
    fprintf(stderr, "aq_peer: %s (errno %s)\n", what, strerror(errno));
    exit(1);
}

static word *at(struct queue *q, size_t offset) { return (word *)(q->base + offset); }

static unsigned per_page(uint32_t options) {
    return 1u + ((options & (OPT_LINK | OPT_EXT)) != 0) + ((options & OPT_CRC) != 0);
}

static void map(struct queue *q, const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) die(path);
    q->length = (size_t)st.st_size;
    q->base = mmap(NULL, q->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (q->base == MAP_FAILED) die("mmap");
    close(fd);
}

static int attach(struct queue *q) {
    uint32_t shift = *at(q, 12), count = *at(q, 16), offset = *at(q, 20);
    if (*at(q, 0) != 1 || (*at(q, 4) & ~7u) != 0 || *at(q, 8) > q->length) return 0;
    if (*at(q, 28) != ((shift << 26) | (offset << 14) | count)) return 0;
    q->options = *at(q, 4);
    q->shift = shift;
    q->count = count;
    q->timeout = *at(q, 24);
    q->contention = at(q, 32);
    q->commits = at(q, 36);
    q->frees = at(q, 40);
    q->head = at(q, 44);
    q->tail = at(q, 48);
    q->control = at(q, 52);
    size_t next = 52 + 4 * (size_t)count;
    q->link = NULL;
    q->crc = NULL;
    if (q->options & (OPT_LINK | OPT_EXT)) {
        q->link = at(q, next);
        next += 4 * (size_t)count;
    }
    if (q->options & OPT_CRC) q->crc = at(q, next);
    q->pages = q->base + offset;
    return 1;
}

static void format(const char *path, size_t size, uint32_t shift, uint32_t timeout, uint32_t options) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) die(path);
    if ((size_t)st.st_size < size && posix_fallocate(fd, 0, (off_t)size) != 0) die("posix_fallocate");
    close(fd);
    struct queue q;
    map(&q, path);
    unsigned m = per_page(options);
    uint64_t page = 1ull << shift, align = page < 64 ? page : 64;
    uint64_t count = (size - 52) / (page + 4 * m);
    if (count > 1u << 20) count = 1u << 20;
    uint64_t start;
    for (;; count--) {
        if (count <= 1) die("no room for two pages");
        start = 52 + 4 * m * count;
        start = (start + align - 1) / align * align; /* a mapping starts at a multiple of 4096 */
        if (start + (count << shift) <= size) break;
    }
    *at(&q, 0) = 0;
    *at(&q, 4) = 0xFFFFFFFFu;
    *at(&q, 28) = 0;
    *at(&q, 8) = (uint32_t)size;
    *at(&q, 12) = shift;
    *at(&q, 16) = (uint32_t)count;
    *at(&q, 20) = (uint32_t)start;
    *at(&q, 24) = timeout;
    for (size_t o = 32; o < 52 + 4 * m * count; o += 4) *at(&q, o) = 0;
    *at(&q, 28) = (shift << 26) | ((uint32_t)start << 14) | (uint32_t)count;
    *at(&q, 4) = options;
    *at(&q, 0) = 1;
}

static uint32_t pages_of(struct queue *q, uint32_t bytes) {
    return (uint32_t)(((uint64_t)bytes + (1ull << q->shift) - 1) >> q->shift);
}

static uint32_t next_turn(uint32_t ref) { return (ref & ~INDEX) + (1u << 20); }

/* CRC-32, reflected, no final inversion. */
static uint32_t crc_more(uint32_t crc, const unsigned char *bytes, size_t n) {
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0xEDB88320u : crc >> 1;
    }
    return crc;
}

static uint32_t crc_of(struct queue *q, uint32_t index, uint32_t quid, uint32_t size, uint32_t link) {
    unsigned char head[11] = {quid >> 24, quid >> 16, quid >> 8, quid, size >> 16, size >> 8, size,
                              link >> 24, link >> 16, link >> 8, link};
    uint32_t crc = crc_more(0xFFFFFFFFu, head, q->link ? 11 : 7);
    return crc_more(crc, q->pages + ((size_t)index << q->shift), size);
}

/* Claims n bytes; the reference at which they start, or 0 in *ok. */
static uint32_t claim(struct queue *q, uint32_t n, int *ok) {
    if (q->options & OPT_EXT) n = n ? pages_of(q, n) << q->shift : 1u << q->shift;
    uint32_t pages = pages_of(q, n), head = *q->head, start;
    for (;;) {
        uint32_t tail = *q->tail, h = head & INDEX, t = tail & INDEX;
        int waste = 0;
        *ok = 0;
        if (h < t) {
            if (pages > t - h - 1) return 0;
        } else {
            uint32_t end = q->count - h - (t == 0);
            if (pages > end) {
                if (t < pages + 1) return 0;
                waste = 1;
            }
        }
        start = waste ? next_turn(head) : head;
        uint32_t next = (start & INDEX) + pages < q->count ? start + pages : next_turn(start);
        if (atomic_compare_exchange_strong(q->head, &head, next)) {
            if (waste) {
                for (uint32_t i = h + 1; i < q->count; i++) q->control[i] = 0;
                q->control[h] = DISCARD | COMMIT | (head & SEQ9) | ((q->count - h) << q->shift);
            }
            break;
        }
        atomic_fetch_add(q->contention, 1);
    }
    uint32_t i = start & INDEX;
    for (uint32_t k = 1; k < pages; k++) q->control[i + k] = 0;
    q->control[i] = CLAIM | (start & SEQ9) | n;
    *ok = 1;
    return start;
}

static int commit(struct queue *q, uint32_t ref, uint32_t n, uint32_t link) {
    uint32_t i = ref & INDEX, size = n;
    if (q->options & OPT_EXT) size = n ? pages_of(q, n) << q->shift : 1u << q->shift;
    if (q->link) q->link[i] = link;
    if (q->crc) q->crc[i] = crc_of(q, i, ref & (SEQ9 | INDEX), size, link);
    uint32_t expected = CLAIM | (ref & SEQ9) | size;
    if (!atomic_compare_exchange_strong(&q->control[i], &expected, expected | COMMIT)) return 0;
    atomic_fetch_add(q->commits, 1);
    return 1;
}

static uint32_t message_size(uint64_t sequence) { return 16 + (uint32_t)(sequence * 37 % 180); }

static void put(struct queue *q, uint32_t producer, uint64_t sequence) {
    uint32_t n = message_size(sequence), ref;
    unsigned char m[256];
    int ok;
    memcpy(m, &n, 4);
    memcpy(m + 4, &producer, 4);
    memcpy(m + 8, &sequence, 8);
    for (uint32_t i = 16; i < n; i++) m[i] = (unsigned char)(producer * 31 + sequence + i);
    do {
        while (ref = claim(q, n, &ok), !ok) sched_yield();
        memcpy(q->pages + ((size_t)(ref & INDEX) << q->shift), m, n);
    } while (!commit(q, ref, n, q->options & OPT_EXT ? 0x60000000u | n : 7));
}

static void check_message(struct queue *q, uint32_t index, uint32_t size) {
    unsigned char *m = q->pages + ((size_t)index << q->shift);
    uint32_t n, producer;
    uint64_t sequence;
    memcpy(&n, m, 4);
    memcpy(&producer, m + 4, 4);
    memcpy(&sequence, m + 8, 8);
    if (n != message_size(sequence) || (q->options & OPT_EXT ? n > size : n != size)) die("wrong length");
    for (uint32_t i = 16; i < n; i++)
        if (m[i] != (unsigned char)(producer * 31 + sequence + i)) die("wrong byte");
    printf("%u %llu\n", producer, (unsigned long long)sequence);
}

/* The simplest reader: in order, each item released at once; it waits for an uncommitted one. */
static void read_messages(struct queue *q, uint64_t wanted) {
    uint64_t idle = 0;
    while (wanted > 0) {
        uint32_t tail = *q->tail, head = *q->head, i = tail & INDEX;
        if (tail == head) {
            if (++idle > 20000000) die("no message comes");
            sched_yield();
            continue;
        }
        uint32_t c = q->control[i], flags = c & FLAGS;
        if ((c & SEQ9) != (tail & SEQ9) || flags == CLAIM || flags == 0 || flags == COMMIT || flags == DISCARD) {
            if (++idle > 20000000) die("an item is never committed");
            sched_yield();
            continue;
        }
        idle = 0;
        uint32_t pages = pages_of(q, c & INDEX);
        if (flags == (CLAIM | COMMIT)) {
            uint32_t link = q->link ? (uint32_t)q->link[i] : 0xFFFFFFFFu;
            if (q->crc && q->crc[i] != crc_of(q, i, tail & (SEQ9 | INDEX), c & INDEX, link)) die("wrong CRC");
            if ((q->options & OPT_EXT) && (link & 0x60000000u) != 0x60000000u) die("an item in segments");
            check_message(q, i, c & INDEX);
            wanted--;
            q->control[i] = c | DISCARD;
            q->control[i] = COMMIT | (c & (SEQ9 | INDEX));
        } else if (flags == (COMMIT | DISCARD)) {
            q->control[i] = DISCARD | (c & (SEQ9 | INDEX));
        }
        *q->tail = i + pages < q->count ? tail + pages : next_turn(tail);
        atomic_fetch_add(q->frees, 1);
    }
}

static void snapshot(struct queue *q) {
    uint32_t first = *q->head;
    uint32_t *control = malloc(4 * (size_t)q->count);
    unsigned char *pages = malloc((size_t)q->count << q->shift);
    if (!control || !pages) die("malloc");
    for (uint32_t i = 0; i < q->count; i++) control[i] = q->control[i];
    memcpy(pages, q->pages, (size_t)q->count << q->shift);
    uint32_t last = *q->head, turns = ((last >> 20) - (first >> 20)) & 0xFFF;
    if (!((turns == 0 && (last & INDEX) >= (first & INDEX)) || (turns == 1 && (last & INDEX) < (first & INDEX)))) return;
    uint32_t ref = last - (1u << 20);
    while (ref != first) {
        uint32_t i = ref & INDEX, c = control[i], flags = c & FLAGS, pages_here = 1;
        int of_turn = (c & SEQ9) == (ref & SEQ9) && (c & INDEX) > 0;
        if (of_turn && flags && flags != DISCARD && flags != (COMMIT | DISCARD)) {
            pages_here = pages_of(q, c & INDEX);
            printf("%c%c%c %u %u\n", flags & CLAIM ? 'C' : '-', flags & COMMIT ? 'M' : '-', flags & DISCARD ? 'D' : '-',
                   c & INDEX, pages[(size_t)i << q->shift]);
        } else if ((flags == DISCARD || flags == (COMMIT | DISCARD)) && (c & INDEX) == (q->count - i) << q->shift) {
            pages_here = q->count - i;
        }
        ref = i + pages_here < q->count ? ref + pages_here : next_turn(ref);
    }
}

int main(int argc, char **argv) {
    struct queue q;
    if (argc < 3) die("usage: aq_peer COMMAND FILE ...");
    const char *command = argv[1], *path = argv[2];
    if (strcmp(command, "format") == 0) {
        if (argc != 7) die("format FILE SIZE SHIFT TIMEOUT OPTIONS");
        format(path, strtoul(argv[3], 0, 0), (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[6]));
        return 0;
    }
    map(&q, path);
    if (!attach(&q)) die("not formatted");
    if (strcmp(command, "write") == 0)
        for (uint64_t s = 0, n = strtoull(argv[4], 0, 0); s < n; s++) put(&q, (uint32_t)atoi(argv[3]), s);
    else if (strcmp(command, "read") == 0)
        read_messages(&q, strtoull(argv[3], 0, 0));
    else if (strcmp(command, "snapshot") == 0)
        snapshot(&q);
    else if (strcmp(command, "dump") == 0)
        printf("page %u count %u offset %u timeout %u options %u head %08x tail %08x commits %u frees %u\n", 1u << q.shift,
               q.count, (uint32_t)*at(&q, 20), q.timeout, q.options, (uint32_t)*q.head, (uint32_t)*q.tail,
               (uint32_t)*q.commits, (uint32_t)*q.frees);
    else
        die("unknown command");
    return 0;
}
