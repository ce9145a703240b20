/* A load generator for HTTP/1.1: sends one body over and over and times the answers. One thread.
 *
 * usage: load PORT PATH BODY CONCURRENCY REQUESTS RATE TIMEOUT_S
 * BODY is a file; its first run of eight @ is another number in each request, so that no prefix is met twice.
 * RATE 0: each connection sends its next request when it has its answer. Else so many requests a second are
 * due, each timed from when it was due, whether or not a connection was free.
 * Prints one JSON object; times are milliseconds. An answer counts as good if it has status 200 and is whole. */
#include "common.h"
#include <sys/resource.h>

typedef enum { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER } Part;
typedef struct {
    int fd, busy, heard, status, sized, last_call;
    char *request, *mark;
    size_t sent;
    int64_t due, first;
    Part part;
    char line[256];
    size_t line_length, left;
    int matched; /* of EVENT, across reads */
} Connection;

static const char EVENT[] = "data: ";
static int loop, port, concurrency;
static long requests, begun, over, good, failed, timed_out, events, number;
static double *latency, *first_byte;
static size_t request_length;
static Connection *connections;
static int64_t start_ns, period_ns;

static void hang_up(Connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void dial(Connection *c) {
    struct sockaddr_in address = local(port);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    no_delay(c->fd);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect");
    watch(loop, EPOLL_CTL_ADD, c->fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
}

static void transmit(Connection *c) {
    while (c->busy && c->sent < request_length) {
        ssize_t n = send(c->fd, c->request + c->sent, request_length - c->sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        c->sent += n;
    }
}

static void begin(Connection *c, int64_t due) {
    char digits[24];
    snprintf(digits, sizeof digits, "%08ld", number++ % 100000000);
    if (c->mark) memcpy(c->mark, digits, 8);
    c->busy = 1, c->heard = c->status = c->sized = c->last_call = c->matched = 0;
    c->sent = c->line_length = c->left = 0;
    c->part = HEAD, c->due = due, c->first = 0;
    begun++;
    if (c->fd < 0) dial(c);
    transmit(c);
}

static void finish(Connection *c, int whole) {
    c->busy = 0, over++;
    if (whole && c->status == 200) {
        latency[good] = (now_ns() - c->due) / 1e6;
        first_byte[good++] = (c->first - c->due) / 1e6;
    } else failed++;
    if (!whole || c->last_call) hang_up(c);
}

/* A line of the head, or one with a chunk's size, has come. Whether that was the answer's end. */
static int line(Connection *c) {
    char *text = c->line;
    text[c->line_length] = 0;
    size_t length = c->line_length;
    c->line_length = 0;
    if (c->part == CHUNK_SIZE) {
        c->left = strtoul(text, NULL, 16);
        c->part = c->left ? CHUNK : TRAILER;
    } else if (c->part == CHUNK_END) c->part = CHUNK_SIZE;
    else if (c->part == TRAILER) return length == 0;
    else if (!c->status) c->status = length > 9 ? atoi(text + 9) : -1;
    else if (!strncasecmp(text, "content-length:", 15)) c->left = strtoul(text + 15, NULL, 10), c->sized = 1;
    else if (!strncasecmp(text, "connection: close", 17)) c->last_call = 1;
    else if (length == 0) {
        c->part = c->sized ? SIZED : CHUNK_SIZE;
        return c->sized && !c->left;
    }
    return 0;
}

/* Bytes of an answer. Whether that was its end. */
static int take(Connection *c, const char *data, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char byte = data[i];
        if (c->part == SIZED || c->part == CHUNK) {
            c->matched = byte == EVENT[c->matched] ? c->matched + 1 : byte == EVENT[0];
            if (c->matched == sizeof EVENT - 1) events++, c->matched = 0;
            if (--c->left == 0) {
                if (c->part == SIZED) return 1;
                c->part = CHUNK_END;
            }
        } else if (byte == '\n') {
            if (line(c)) return 1;
        } else if (byte != '\r' && c->line_length < sizeof c->line - 1) c->line[c->line_length++] = byte;
    }
    return 0;
}

static void receive(Connection *c) {
    static char data[1 << 18];
    while (c->fd >= 0) {
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            hang_up(c);
            if (c->busy) finish(c, 0);
            return;
        }
        if (!c->busy) continue;
        if (!c->first) c->first = now_ns();
        if (take(c, data, n)) finish(c, 1);
    }
}

/* Begin what may begin; the time in ms until the next is due, -1 if nothing waits for a time. */
static int proceed(void) {
    for (int i = 0; i < concurrency && begun < requests; i++) {
        if (connections[i].busy) continue;
        int64_t now = now_ns(), due = period_ns ? start_ns + begun * period_ns : now;
        if (due > now) return (due - now) / 1000000;
        begin(&connections[i], due);
    }
    return -1;
}

static void give_up(int64_t timeout_ns) {
    for (int i = 0; i < concurrency; i++)
        if (connections[i].busy && now_ns() - connections[i].due > timeout_ns) {
            timed_out++;
            finish(&connections[i], 0);
        }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, double *times) {
    qsort(times, good, sizeof *times, ascending);
#define AT(share) (good ? times[(long)((share) * (good - 1) + 0.5)] : 0)
    printf("\"%s\": {\"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f, \"max\": %.4f}, ", name, AT(.5), AT(.9), AT(.99), AT(1.));
}

static void prepare(const char *path, const char *file) {
    FILE *source = fopen(file, "r");
    Buffer body = {0}, whole = {0};
    char part[65536], text[512];
    if (!source) die(file);
    for (size_t n; (n = fread(part, 1, sizeof part, source));) append(&body, part, n);
    fclose(source);
    append(&whole, text, snprintf(text, sizeof text,
           "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
           "Authorization: Bearer bench\r\nContent-Length: %zu\r\n\r\n", path, port, body.length));
    append(&whole, body.data, body.length);
    request_length = whole.length;
    for (int i = 0; i < concurrency; i++) {
        Connection *c = &connections[i];
        c->fd = -1;
        c->request = malloc(request_length + 1);
        memcpy(c->request, whole.data, request_length + 1);
        c->mark = strstr(c->request, "@@@@@@@@");
    }
}

int main(int argc, char **argv) {
    if (argc != 8) return fprintf(stderr, "usage: load PORT PATH BODY CONCURRENCY REQUESTS RATE TIMEOUT_S\n"), 2;
    struct epoll_event ready[256];
    struct rusage usage;
    port = atoi(argv[1]), concurrency = atoi(argv[4]), requests = atol(argv[5]);
    period_ns = atof(argv[6]) > 0 ? 1e9 / atof(argv[6]) : 0;
    int64_t timeout_ns = atof(argv[7]) * 1e9;
    latency = calloc(requests, sizeof *latency), first_byte = calloc(requests, sizeof *first_byte);
    connections = calloc(concurrency, sizeof *connections);
    loop = epoll_create1(0), number = now_ns() / 1000;
    prepare(argv[2], argv[3]);
    int64_t look_ns = now_ns() + 100000000;
    for (start_ns = now_ns(); over < requests;) {
        int wait = proceed(), most = wait < 0 || wait > 100 ? 100 : wait;
        int n = epoll_wait(loop, ready, 256, most);
        for (int i = 0; i < n; i++) {
            Connection *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) transmit(c);
            if (ready[i].events & ~EPOLLOUT) receive(c);
        }
        if (now_ns() > look_ns) give_up(timeout_ns), look_ns = now_ns() + 100000000;
    }
    double seconds = (now_ns() - start_ns) / 1e9;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("{");
    print_times("latency_ms", latency);
    print_times("first_byte_ms", first_byte);
    printf("\"good\": %ld, \"failed\": %ld, \"timed_out\": %ld, \"events\": %ld, \"seconds\": %.4f, \"own_cpu_s\": %.4f}\n",
           good, failed, timed_out, events, seconds, cpu);
    return 0;
}
