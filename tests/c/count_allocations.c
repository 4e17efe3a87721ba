/* Counts what Python's own allocators are asked for, objects that are freed at once included. Loaded into the interpreter:
 * the declarations are those of its C API, so that its headers are not needed. */
#include <stddef.h>

struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

enum { RAW, MEM, OBJ, DOMAINS };

extern void PyMem_GetAllocator(int domain, struct allocator *);
extern void PyMem_SetAllocator(int domain, struct allocator *);

static struct allocator inner[DOMAINS];
static size_t allocations;

static void *counted_malloc(void *context, size_t size) {
    struct allocator *to = context;
    allocations++;
    return to->malloc(to->context, size);
}

static void *counted_calloc(void *context, size_t count, size_t size) {
    struct allocator *to = context;
    allocations++;
    return to->calloc(to->context, count, size);
}

static void *counted_realloc(void *context, void *memory, size_t size) {
    struct allocator *to = context;
    allocations++;
    return to->realloc(to->context, memory, size);
}

static void counted_free(void *context, void *memory) {
    struct allocator *to = context;
    to->free(to->context, memory);
}

void start_counting(void) {
    allocations = 0;
    for (int domain = MEM; domain < DOMAINS; domain++) {
        struct allocator counted = {&inner[domain], counted_malloc, counted_calloc, counted_realloc, counted_free};
        PyMem_GetAllocator(domain, &inner[domain]);
        PyMem_SetAllocator(domain, &counted);
    }
}

size_t stop_counting(void) {
    for (int domain = MEM; domain < DOMAINS; domain++) PyMem_SetAllocator(domain, &inner[domain]);
    return allocations;
}
