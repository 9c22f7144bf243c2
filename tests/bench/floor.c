/* The least that a client which measures event streams can cost: epoll, recv and the time of each
   read. Nothing is parsed.

   floor PORT STREAMS TARGET:REQUESTS...

   Opens the streams' connections once. For each TARGET, every stream asks for it REQUESTS times,
   one after the other; a line of JSON says what that took. An answer is over when a read ends in
   the last chunk of a body. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

typedef struct {
  int fd, left;
  char tail[5];
  struct timespec read_at;
} conn;

static const char last_chunk[] = "0\r\n\r\n";

static double cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Keeps the last bytes that have come, and tells whether they end a body. */
static int ended(conn *c, const char *data, size_t size) {
  if (size >= sizeof c->tail) {
    memcpy(c->tail, data + size - sizeof c->tail, sizeof c->tail);
  } else {
    memmove(c->tail, c->tail + size, sizeof c->tail - size);
    memcpy(c->tail + sizeof c->tail - size, data, size);
  }
  return !memcmp(c->tail, last_chunk, sizeof c->tail);
}

int main(int argc, char **argv) {
  static char data[262144], request[1024];
  int streams = atoi(argv[2]), poll = epoll_create1(0), on = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)},
                                .sin_port = htons((unsigned short)atoi(argv[1]))};
  conn *conns = calloc((size_t)streams, sizeof *conns);
  for (conn *c = conns; c < conns + streams; c++) {
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) return 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &wanted);
  }
  for (char **phase = argv + 3; phase < argv + argc; phase++) {
    char *colon = strrchr(*phase, ':');
    int requests = atoi(colon + 1), running = streams;
    int size = snprintf(request, sizeof request, "POST %.*s HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                        "content-length: 2\r\n\r\n{}", (int)(colon - *phase), *phase);
    double before_s = cpu_s();
    for (conn *c = conns; c < conns + streams; c++) {
      c->left = requests;
      if (send(c->fd, request, (size_t)size, 0) != size) return 1;
    }
    while (running) {
      struct epoll_event events[512];
      int count = epoll_wait(poll, events, 512, -1);
      for (int i = 0; i < count; i++) {
        conn *c = events[i].data.ptr;
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n <= 0) return 1;
        clock_gettime(CLOCK_MONOTONIC, &c->read_at);
        if (!ended(c, data, (size_t)n)) continue;
        memset(c->tail, 0, sizeof c->tail);
        if (--c->left == 0) running--;
        else if (send(c->fd, request, (size_t)size, 0) != size) return 1;
      }
    }
    printf("{\"requests\": %d, \"cpu_s\": %.6f}\n", streams * requests, cpu_s() - before_s);
  }
  return 0;
}
