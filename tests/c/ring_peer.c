/* A program that knows the ring only by its document: magic, params, header, slots, and "0 is free, anything else is held".
 *
 *   ring_peer create PATH MAX_LEN MSG_SIZE
 *   ring_peer write  PATH COUNT PRODUCER WORD   lock words are WORD; "pid" uses the process number
 *   ring_peer read   PATH COUNT WORD            prints "producer sequence" for each message
 *   ring_peer drain  PATH WORD                  as read, until the queue is empty
 *
 * Message: word 0 is producer << 32 | sequence, every further word i is word 0 times (2 i + 1). Exit code 3: a torn message.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x576f726b20697320)

struct header {
    uint64_t magic;
    uint32_t queue_max_len;
    uint32_t msg_size;
    _Atomic uint64_t header_lock;
    _Atomic uint32_t start_idx;
    _Atomic uint32_t queue_len;
};

struct message {
    _Atomic uint64_t msg_lock;
    uint64_t msg_data[];
};

static struct header *ring;
static uint64_t held;

static struct message *message(uint32_t index) {
    size_t stride = 8 + 8 * (size_t)ring->msg_size;
    return (struct message *)((char *)ring + 32 + index * stride);
}

static void lock(_Atomic uint64_t *word) {
    for (unsigned turns = 0;; turns++) {
        uint64_t free = 0;
        if (atomic_compare_exchange_weak(word, &free, held)) return;
        if (turns % 100 == 99) sched_yield();
    }
}

static void unlock(_Atomic uint64_t *word) { atomic_store(word, 0); }

static void enqueue(const uint64_t *data) {
    lock(&ring->header_lock);
    uint32_t start = ring->start_idx, len = ring->queue_len, max = ring->queue_max_len;
    uint32_t index;
    if (len < max) {
        index = (uint32_t)(((uint64_t)start + len) % max);
        ring->queue_len = len + 1;
    } else {
        index = start;
        ring->start_idx = (start + 1) % max;
    }
    struct message *slot = message(index);
    lock(&slot->msg_lock);
    unlock(&ring->header_lock);
    memcpy(slot->msg_data, data, 8 * (size_t)ring->msg_size);
    unlock(&slot->msg_lock);
}

static int dequeue(uint64_t *data, int wait) {
    for (;;) {
        while (ring->queue_len == 0) {
            if (!wait) return 0;
            sched_yield();
        }
        lock(&ring->header_lock);
        if (ring->queue_len != 0) break;
        unlock(&ring->header_lock);
    }
    uint32_t index = ring->start_idx;
    ring->queue_len = ring->queue_len - 1;
    ring->start_idx = (index + 1) % ring->queue_max_len;
    struct message *slot = message(index);
    lock(&slot->msg_lock);
    unlock(&ring->header_lock);
    memcpy(data, slot->msg_data, 8 * (size_t)ring->msg_size);
    unlock(&slot->msg_lock);
    return 1;
}

static void show(const uint64_t *data) {
    for (uint32_t i = 1; i < ring->msg_size; i++) {
        if (data[i] != data[0] * (2 * (uint64_t)i + 1)) {
            fprintf(stderr, "torn message: word 0 %llx, word %u %llx\n", (unsigned long long)data[0], i,
                    (unsigned long long)data[i]);
            exit(3);
        }
    }
    printf("%u %u\n", (unsigned)(data[0] >> 32), (unsigned)data[0]);
}

static void create(const char *path, uint32_t max_len, uint32_t msg_size) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    uint64_t length = 32 + (uint64_t)max_len * (8 + 8 * (uint64_t)msg_size);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)length) != 0) exit(2);
    struct header head = {.magic = MAGIC, .queue_max_len = max_len, .msg_size = msg_size};
    if (pwrite(fd, &head, 32, 0) != 32) exit(2);
}

static void attach(const char *path) {
    int fd = open(path, O_RDWR);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0) exit(2);
    ring = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED || ring->magic != MAGIC) exit(2);
}

static uint64_t lock_word(const char *text) {
    return strcmp(text, "pid") == 0 ? (uint64_t)getpid() : strtoull(text, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "create") == 0) {
        create(argv[2], (uint32_t)atol(argv[3]), (uint32_t)atol(argv[4]));
        return 0;
    }
    if (argc < 4) return 2;
    held = lock_word(argv[argc - 1]);
    attach(argv[2]);
    uint64_t *data = calloc(ring->msg_size, 8);
    if (argc == 6 && strcmp(argv[1], "write") == 0) {
        for (uint64_t sequence = 0; sequence < strtoull(argv[3], NULL, 0); sequence++) {
            data[0] = strtoull(argv[4], NULL, 0) << 32 | sequence;
            for (uint32_t i = 1; i < ring->msg_size; i++) data[i] = data[0] * (2 * (uint64_t)i + 1);
            enqueue(data);
        }
    } else if (argc == 5 && strcmp(argv[1], "read") == 0) {
        for (uint64_t count = strtoull(argv[3], NULL, 0); count > 0; count--) {
            dequeue(data, 1);
            show(data);
        }
    } else if (argc == 4 && strcmp(argv[1], "drain") == 0) {
        while (dequeue(data, 0)) show(data);
    } else {
        return 2;
    }
    return 0;
}
