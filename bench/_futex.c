/* A bare futex ping: how long from a store in one process until another one, asleep on the word, has seen it.
 *
 *     futex COUNT INTERVAL_US WRITER_CPU READER_CPU        prints COUNT latencies in nanoseconds, one a line
 *
 * The least any blocking wait across processes can cost on this machine: no log, no lock, no Python. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint32_t word, ready; int64_t stamp; } Page;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int stay_on(const char *cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    return sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int count = atoi(argv[1]), interval_us = atoi(argv[2]);
    Page *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 1;
    if (fork() == 0) {
        if (stay_on(argv[4])) return 1;
        for (int i = 0; i < count; i++) {
            __atomic_store_n(&page->ready, i + 1, __ATOMIC_RELEASE);
            while (__atomic_load_n(&page->word, __ATOMIC_ACQUIRE) == (uint32_t)i)
                syscall(SYS_futex, &page->word, FUTEX_WAIT, i, NULL, NULL, 0);
            printf("%lld\n", (long long)(now_ns() - page->stamp));
        }
        return fflush(stdout) != 0;
    }
    if (stay_on(argv[3])) return 1;
    for (int i = 0; i < count; i++) {
        struct timespec nap = {0, interval_us * 1000L};
        while (__atomic_load_n(&page->ready, __ATOMIC_ACQUIRE) != (uint32_t)i + 1) nanosleep(&nap, NULL);
        nanosleep(&nap, NULL);
        page->stamp = now_ns();
        __atomic_store_n(&page->word, i + 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &page->word, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    int status = 0;
    wait(&status);
    return status != 0;
}
