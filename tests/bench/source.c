/* A paced source of event streams, to hold a client against.

   One thread, epoll, plain HTTP/1.1 with keep-alive. Any POST is answered by an event stream as
   vLLM sends it: a chunk that names the role, n chunks of one token and 263 bytes, then finish,
   usage and [DONE]. Each is one send, but for the last three, which are one together. The query
   of the request's target says how:

     n=20            chunks with a token
     pace_us=10000   from one send of a stream to its next
     phase=aligned   all streams tick together, as the steps of an engine do
           spread    each stream has a phase of its own

   GET /log gives a line for each stream that has ended since the last one: its X-Request-ID, when
   the whole request had come, and when each token was sent, in nanoseconds of CLOCK_MONOTONIC taken
   right before the send. Any other GET is 404.

   The port is printed to standard output. Sends block: a client that stops reading stops the
   source, which its log then shows. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES = 8192, ID_BYTES = 96, WORDS = 8 };

typedef struct stream {           /* one answer, and its line of the log */
  char id[ID_BYTES];
  int64_t received_ns, pace_ns, due_ns;
  long tokens, sent;              /* sent counts the role's chunk too */
  size_t prompt;                  /* bytes of the request's body */
  struct conn *conn;
  struct stream *before, *after;  /* in the queue by due_ns; after alone also in the log */
  int64_t sent_ns[];
} stream;

typedef struct conn {
  int fd;
  char head[HEAD_BYTES + 1];
  size_t head_size, body, body_left;
  stream *stream;                 /* none between answers */
} conn;

static stream *first, *last, *logged;
static int epoll, timer;
static char token_chunks[WORDS][512], role_chunk[512];

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The queue: what comes in is nearly always due last, so it is looked for from there. */
static void enqueue(stream *s) {
  stream *place = last;
  while (place && place->due_ns > s->due_ns) place = place->before;
  s->before = place;
  s->after = place ? place->after : first;
  *(s->before ? &s->before->after : &first) = s;
  *(s->after ? &s->after->before : &last) = s;
}

static void dequeue(stream *s) {
  *(s->before ? &s->before->after : &first) = s->after;
  *(s->after ? &s->after->before : &last) = s->before;
}

/* Writes one event as a chunk of the body. */
static int chunk(char *to, const char *choices, const char *rest) {
  char event[480];
  int size = snprintf(event, sizeof event,
      "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\","
      "\"object\":\"chat.completion.chunk\",\"created\":1767225600,"
      "\"model\":\"bench/a-model-with-a-long-name-80B\",\"choices\":[%s]%s}\n\n", choices, rest);
  return sprintf(to, "%x\r\n%s\r\n", size, event);
}

static void write_chunks(void) {
  static const char *words[WORDS] = {"tree", "lake", "door", "wind", "salt", "road", "fish", "moon"};
  char choice[256];
  for (int i = 0; i < WORDS; i++) {
    snprintf(choice, sizeof choice, "{\"index\":0,\"delta\":{\"content\":\" %s\"},\"logprobs\":null,"
             "\"finish_reason\":null,\"token_ids\":null}", words[i]);
    chunk(token_chunks[i], choice, "");
  }
  chunk(role_chunk, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
        "\"logprobs\":null,\"finish_reason\":null}", "");
}

/* Finish, usage, end mark and the last chunk. A token is five bytes of a prompt. */
static int write_end(char *to, const stream *s) {
  char usage[256];
  size_t prompt = s->prompt / 5;
  int size = chunk(to, "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                   "\"finish_reason\":\"length\",\"stop_reason\":null}", "");
  snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,"
           "\"completion_tokens\":%ld,\"prompt_tokens_details\":{\"cached_tokens\":0}}",
           prompt, prompt + (size_t)s->tokens, s->tokens);
  size += chunk(to + size, "", usage);
  return size + sprintf(to + size, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static int send_all(int fd, const char *data, size_t size) {
  while (size) {
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
    if (n < 0) return 0;
    data += n;
    size -= (size_t)n;
  }
  return 1;
}

static void drop(conn *c) {
  if (c->stream) {
    dequeue(c->stream);
    free(c->stream);
  }
  close(c->fd);
  free(c);
}

/* Sends what a stream has due. */
static void emit(stream *s) {
  conn *c = s->conn;
  char end[2048];
  int sent;
  dequeue(s);
  if (s->sent <= s->tokens) {
    const char *data = s->sent ? token_chunks[s->sent % WORDS] : role_chunk;
    size_t size = strlen(data);
    if (s->sent) s->sent_ns[s->sent - 1] = now_ns();
    sent = send_all(c->fd, data, size);
    s->sent++;
    s->due_ns += s->pace_ns;
    enqueue(s);
  } else {
    int size = write_end(end, s);
    c->stream = NULL;
    s->after = logged;
    logged = s;
    sent = send_all(c->fd, end, (size_t)size);
  }
  if (!sent) drop(c);
}

/* A number of the query, or what holds without it. */
static long asked(const char *query, const char *name, long otherwise) {
  const char *at = strstr(query, name);
  return at ? atol(at + strlen(name)) : otherwise;
}

static void begin_stream(conn *c, const char *query) {
  static const char head[] =
      "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
      "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
  static uint64_t started;
  long tokens = asked(query, "n=", 20);
  stream *s = calloc(1, sizeof *s + (size_t)tokens * sizeof s->sent_ns[0]);
  const char *id = strcasestr(c->head, "\r\nx-request-id:");
  s->received_ns = now_ns();
  s->pace_ns = asked(query, "pace_us=", 10000) * 1000;
  s->tokens = tokens;
  s->prompt = c->body;
  s->conn = c;
  strcpy(s->id, "-");
  if (id) sscanf(id + 15, "%95s", s->id);
  s->due_ns = (s->received_ns / s->pace_ns + 1) * s->pace_ns;
  /* Multiples of the golden ratio spread phases evenly, however many there will be. */
  if (strstr(query, "phase=spread"))
    s->due_ns += (int64_t)((double)s->pace_ns * (double)(started++ * 0x9e3779b97f4a7c15u) * 0x1p-64);
  c->stream = s;
  enqueue(s);
  if (!send_all(c->fd, head, sizeof head - 1)) drop(c);
}

static void send_log(conn *c) {
  char *text, head[128];
  size_t size;
  FILE *file = open_memstream(&text, &size);
  while (logged) {
    stream *s = logged;
    fprintf(file, "%s %lld", s->id, (long long)s->received_ns);
    for (long i = 0; i < s->tokens; i++) fprintf(file, " %lld", (long long)s->sent_ns[i]);
    fputc('\n', file);
    logged = s->after;
    free(s);
  }
  fclose(file);
  int head_size = sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
                          "content-length: %zu\r\n\r\n", size);
  if (!send_all(c->fd, head, (size_t)head_size) || !send_all(c->fd, text, size)) drop(c);
  free(text);
}

static void answer(conn *c) {
  static const char none[] = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
  char target[512] = "";
  sscanf(c->head, "%*s %511s", target);
  c->head_size = 0;
  if (!strncmp(c->head, "POST ", 5)) begin_stream(c, target);
  else if (!strcmp(target, "/log")) send_log(c);
  else if (!send_all(c->fd, none, sizeof none - 1)) drop(c);
}

/* Reads what has come: a head is kept until it is whole, a body is only counted. */
static void receive(conn *c) {
  static char data[262144];
  ssize_t n = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
  if (n <= 0) {
    drop(c);
    return;
  }
  size_t size = (size_t)n, room = HEAD_BYTES - c->head_size;
  if (!c->body_left) {
    size_t part = size < room ? size : room, before = c->head_size;
    memcpy(c->head + before, data, part);
    c->head_size += part;
    c->head[c->head_size] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) {
      if (c->head_size == HEAD_BYTES) drop(c);
      return;
    }
    end[2] = 0;
    size -= (size_t)(end + 4 - c->head) - before;
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->body = c->body_left = length ? strtoul(length + 17, NULL, 10) : 0;
  }
  c->body_left -= size < c->body_left ? size : c->body_left;
  if (!c->body_left) answer(c);
}

int main(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  struct epoll_event events[512], wanted = {.events = EPOLLIN};
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  /* nothing is left when the bench goes */
  write_chunks();
  if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) return 1;
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  epoll = epoll_create1(0);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  wanted.data.ptr = &listener;
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &wanted);
  wanted.data.ptr = &timer;
  epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &wanted);
  for (;;) {
    struct itimerspec at = {0};
    if (first) at.it_value = (struct timespec){first->due_ns / 1000000000, first->due_ns % 1000000000};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);  /* also forgets what has fired */
    int count = epoll_wait(epoll, events, 512, -1);
    for (int i = 0; i < count; i++) {
      if (events[i].data.ptr == &timer) continue;
      if (events[i].data.ptr != &listener) {
        receive(events[i].data.ptr);
        continue;
      }
      for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        wanted.data.ptr = c;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted);
      }
    }
    for (int64_t now = now_ns(); first && first->due_ns <= now;) emit(first);
  }
}
