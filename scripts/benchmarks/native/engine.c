/* A mock engine that costs next to nothing: answers a completion at once, or as a stream of which all that run
 * get one event at each tick; all other paths have fixed answers. One thread, one port.
 *
 * usage: engine PORT TICK_US MOST_TOKENS ANSWERS
 * Each line of the file ANSWERS is NAME, a tab, and the body, in which \n stands for a line's end. Names are
 * paths, `answer` (a whole completion), `event` (one of a stream) and `last` (its last before [DONE]).
 * No answer has more than MOST_TOKENS events: 1 makes a prefill engine of it. */
#include "common.h"

enum { MOST_ANSWERS = 64 };
typedef struct {
    char *name;
    Buffer whole; /* with HTTP head, or for events with chunk framing */
} Answer;
typedef struct Connection {
    int fd;
    Buffer in, out;
    long left; /* events of its stream; 0: none runs */
    int blocked, closed;
    struct Connection *next; /* of those with a stream, or of those closed */
} Connection;

static Answer answers[MOST_ANSWERS];
static int count, loop, timer, ticking;
static long tick_us, most_tokens;
static Connection *streams, *closed;
static const char STREAM[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n";
static const char END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static Buffer *answer(const char *name, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(answers[i].name) == length && !memcmp(answers[i].name, name, length)) return &answers[i].whole;
    return NULL;
}

static void head(Buffer *out, const char *status, const char *type, size_t length) {
    char text[200];
    append(out, text, snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                               status, type, length));
}

static void load_answers(const char *path) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    if (!file) die(path);
    while ((length = getline(&line, &room, file)) > 0 && count < MOST_ANSWERS) {
        Answer *made = &answers[count++];
        Buffer body = {0};
        char *tab = strchr(line, '\t');
        if (line[length - 1] == '\n') line[--length] = 0;
        if (!tab) continue;
        made->name = strndup(line, tab - line);
        reserve(&body, length);
        for (char *c = tab + 1; *c; c++) {
            int escaped = c[0] == '\\' && c[1] == 'n';
            append(&body, escaped ? "\n" : c, 1);
            c += escaped;
        }
        if (!strcmp(made->name, "event") || !strcmp(made->name, "last")) {
            char size[20];
            append(&made->whole, size, snprintf(size, sizeof size, "%zx\r\n", body.length + 8));
            append(&made->whole, "data: ", 6);
            append(&made->whole, body.data, body.length);
            append(&made->whole, "\n\n\r\n", 4);
        } else {
            int plain = body.length && body.data[0] != '{' && body.data[0] != '[';
            head(&made->whole, "200 OK", plain ? "text/plain; version=0.0.4" : "application/json", body.length);
            append(&made->whole, body.data, body.length);
        }
    }
    fclose(file);
}

static void flush(Connection *c) {
    size_t sent = 0;
    while (sent < c->out.length) {
        ssize_t n = send(c->fd, c->out.data + sent, c->out.length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) c->closed = 1;
        if (n < 0) break;
        sent += n;
    }
    if (sent) consume(&c->out, sent);
    if (!c->closed && c->blocked != (c->out.length > 0)) {
        c->blocked = !c->blocked;
        watch(loop, EPOLL_CTL_MOD, c->fd, EPOLLIN | (c->blocked ? EPOLLOUT : 0), c);
    }
}

/* The next event of a stream, and its end after the last. */
static void emit(Connection *c) {
    Buffer *event = answer(c->left == 1 ? "last" : "event", c->left == 1 ? 4 : 5);
    append(&c->out, event->data, event->length);
    if (--c->left == 0) append(&c->out, END, sizeof END - 1);
    flush(c);
}

static long number(const char *body, size_t length, const char *field) {
    const char *found = memmem(body, length, field, strlen(field));
    return found ? strtol(found + strlen(field) + strspn(found + strlen(field), ": "), NULL, 10) : 0;
}

static void complete(Connection *c, const char *body, size_t length) {
    const char *field = memmem(body, length, "\"stream\"", 8);
    long tokens = number(body, length, "\"max_tokens\"");
    if (!tokens) tokens = number(body, length, "\"max_completion_tokens\"");
    if (!field || field[8 + strspn(field + 8, ": ")] != 't') {
        Buffer *whole = answer("answer", 6);
        append(&c->out, whole->data, whole->length);
        return;
    }
    append(&c->out, STREAM, sizeof STREAM - 1);
    c->left = tokens < 1 ? 1 : tokens > most_tokens ? most_tokens : tokens;
    emit(c);
    if (!c->left) return;
    c->next = streams;
    streams = c;
    if (!ticking) every(timer, tick_us * 1000, tick_us * 1000);
    ticking = 1;
}

/* The length of the request at the beginning of the buffer, 0 while it is not whole. */
static size_t whole(Buffer *in, char **body) {
    char *end = in->length ? memmem(in->data, in->length, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    *body = end + 4;
    size_t before = end + 4 - in->data;
    *end = 0;
    char *sized = strcasestr(in->data, "\ncontent-length:");
    int chunked = strcasestr(in->data, "\ntransfer-encoding: chunked") != NULL;
    *end = '\r';
    if (chunked) {
        char *last = memmem(end + 2, in->length - before + 2, "\r\n0\r\n\r\n", 7);
        return last ? last + 7 - in->data : 0;
    }
    size_t length = before + (sized ? strtoul(sized + 16, NULL, 10) : 0);
    return in->length >= length ? length : 0;
}

static void serve(Connection *c) {
    char *body;
    size_t length;
    while (!c->closed && !c->left && (length = whole(&c->in, &body))) {
        char *path = memchr(c->in.data, ' ', length);
        if (!path++ || !memcmp(c->in.data, "PRI ", 4)) { /* not HTTP/1.1: routers try whether HTTP/2 is spoken */
            c->closed = 1;
            return;
        }
        Buffer *fixed = answer(path, strcspn(path, " ?"));
        if (fixed) append(&c->out, fixed->data, fixed->length);
        else if (c->in.data[0] == 'P' && memmem(path, strcspn(path, " ?"), "completions", 11))
            complete(c, body, c->in.data + length - body);
        else head(&c->out, "404 Not Found", "application/json", 0);
        consume(&c->in, length);
    }
    flush(c);
}

static void receive(Connection *c) {
    for (;;) {
        reserve(&c->in, 65536);
        size_t room = c->in.room - c->in.length - 1;
        ssize_t n = recv(c->fd, c->in.data + c->in.length, room, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) c->closed = 1;
        if (n <= 0) break;
        c->in.length += n;
        c->in.data[c->in.length] = 0;
        if ((size_t)n < room) break;
    }
    if (!c->left) serve(c);
}

static void tick(void) {
    uint64_t missed;
    if (read(timer, &missed, sizeof missed) < 0) return;
    for (Connection **at = &streams, *c; (c = *at);) {
        if (!c->closed) emit(c);
        if (c->closed || !c->left) {
            *at = c->next;
            if (!c->closed) serve(c);
        } else at = &c->next;
    }
    if (!streams) every(timer, 0, ticking = 0);
}

static void bury(Connection *c) {
    for (Connection **at = &streams; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    close(c->fd);
    c->fd = -1;
    c->next = closed;
    closed = c;
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: engine PORT TICK_US MOST_TOKENS ANSWERS\n"), 2;
    struct sockaddr_in address = local(atoi(argv[1]));
    struct epoll_event events[256];
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tick_us = atol(argv[2]), most_tokens = atol(argv[3]);
    load_answers(argv[4]);
    if (!answer("answer", 6) || !answer("event", 5) || !answer("last", 4))
        return fprintf(stderr, "engine: ANSWERS lacks answer, event or last\n"), 2;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) die("bind");
    loop = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(loop, EPOLL_CTL_ADD, listener, EPOLLIN, &listener);
    watch(loop, EPOLL_CTL_ADD, timer, EPOLLIN, &timer);
    for (;;) {
        int ready = epoll_wait(loop, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            void *what = events[i].data.ptr;
            if (what == &timer) tick();
            else if (what == &listener) {
                for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                    Connection *c = calloc(1, sizeof *c);
                    no_delay(c->fd = fd);
                    watch(loop, EPOLL_CTL_ADD, fd, EPOLLIN, c);
                }
            } else {
                Connection *c = what;
                if (c->fd < 0) continue;
                if (events[i].events & EPOLLOUT) flush(c);
                if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
                if (c->closed) bury(c);
            }
        }
        /* Only now: an event of this batch may still have pointed at one. A stream whose connection broke while it
         * was written to is buried by the hang-up that follows. */
        for (Connection *c; (c = closed);) {
            closed = c->next;
            free(c->in.data), free(c->out.data), free(c);
        }
    }
}
