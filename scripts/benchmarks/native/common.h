/* What the mock engine and the load generator share: growing buffers, clocks, sockets and epoll. */
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    char *data;
    size_t length, room;
} Buffer;

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

/* Room for `more` bytes and a final NUL, so that text functions may be used on it. */
static inline void reserve(Buffer *b, size_t more) {
    if (b->length + more + 1 <= b->room) return;
    b->room = (b->length + more + 1) * 2;
    if (!(b->data = realloc(b->data, b->room))) die("realloc");
}

static inline void append(Buffer *b, const void *data, size_t length) {
    reserve(b, length);
    memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = 0;
}

static inline void consume(Buffer *b, size_t length) {
    b->length -= length;
    memmove(b->data, b->data + length, b->length);
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline struct sockaddr_in local(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void watch(int loop, int operation, int fd, uint32_t events, void *what) {
    struct epoll_event event = {.events = events, .data.ptr = what};
    if (epoll_ctl(loop, operation, fd, &event) < 0) die("epoll_ctl");
}

static inline void every(int timer, int64_t first_ns, int64_t period_ns) {
    struct itimerspec spec = {
        .it_value = {first_ns / 1000000000, first_ns % 1000000000},
        .it_interval = {period_ns / 1000000000, period_ns % 1000000000},
    };
    timerfd_settime(timer, 0, &spec, 0);
}
#endif
