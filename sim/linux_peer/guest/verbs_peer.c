/* verbs_peer: one queue pair of a Linux verbs device, driven over TCP. docs/linux-peer.md describes the conversation.
 *
 * Arguments are KEY=VALUE, see `settings`. It waits for a connection at `port`, or with host=ADDRESS makes one there; exchanges
 * what rdma-core's pingpong programs exchange, then one line more; then it takes commands.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OPS_MAX 4096
#define PINGPONG "0000:000000:000000:00000000000000000000000000000000"
#define OURS "optinic:00000000:0000000000000000:00000000\n"

/* What can be set; all numbers, by any base of C. */
static struct {
    const char *name;
    uint64_t value;
} settings[] = {
    {"port", 18515}, {"gid", 1}, {"uc", 0}, {"mtu", 1024}, {"psn", 0x123456}, {"timeout", 19}, {"retry", 7}, {"rnr_retry", 7},
    {"rnr_timer", 12}, {"rd_atomic", 16}, {"dest_rd_atomic", 16}, {"tos", 0}, {"ttl", 64}, {"memory", 1 << 20}, {"access", 15}, {"qp_access", 15},
    {"queue", 256}, {"extension", 1}, {NULL, 0}};

static struct op {
    char name[16];
    uint32_t length, imm, rkey;
    uint64_t local, remote, compare, swap;
    int has_rkey, solicited, inlined;
} ops[OPS_MAX];

static struct {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *sends, *receives;
    struct ibv_qp *qp;
    uint8_t *memory;
    union ibv_gid gid;
} my;
static struct {
    unsigned lid, qpn, psn, rkey, length;
    uint64_t addr;
    union ibv_gid gid;
} peer;
static FILE *out;
static int in_fd;

static void die(const char *format, ...)
{
    va_list more;
    va_start(more, format);
    fprintf(stdout, "verbs_peer: ");
    vfprintf(stdout, format, more);
    fprintf(stdout, "%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint64_t setting(const char *name)
{
    for (int i = 0; settings[i].name; i++)
        if (!strcmp(settings[i].name, name))
            return settings[i].value;
    abort();
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

/* -- the device ------------------------------------------------------------------------------------------- */

static void open_device(void)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list || !n)
        die("there is no verbs device");
    my.context = ibv_open_device(list[0]);
    my.pd = my.context ? ibv_alloc_pd(my.context) : NULL;
    size_t size = setting("memory");
    if (!my.pd || posix_memalign((void **)&my.memory, 4096, size))
        die("the device can't be opened");
    memset(my.memory, 0, size);
    my.mr = ibv_reg_mr(my.pd, my.memory, size, setting("access"));
    int depth = setting("queue");
    my.sends = ibv_create_cq(my.context, depth + 1, NULL, NULL, 0);
    my.receives = ibv_create_cq(my.context, depth + 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = my.sends, .recv_cq = my.receives, .qp_type = setting("uc") ? IBV_QPT_UC : IBV_QPT_RC,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
    if (!my.mr || !my.sends || !my.receives || !(my.qp = ibv_create_qp(my.pd, &init)))
        die("memory region, queues or queue pair");
    if (ibv_query_gid(my.context, 1, setting("gid"), &my.gid))
        die("there is no GID %d", (int)setting("gid"));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = setting("qp_access")};
    if ((errno = ibv_modify_qp(my.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
        die("INIT");
}

static void connect_pair(void)
{
    int uc = setting("uc"), code = IBV_MTU_256, mask;
    while (code < IBV_MTU_4096 && 128u << code < setting("mtu"))
        code++;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = code, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
        .max_dest_rd_atomic = setting("dest_rd_atomic"), .min_rnr_timer = setting("rnr_timer"),
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .sgid_index = setting("gid"),
            .hop_limit = setting("ttl"), .traffic_class = setting("tos")}}};
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (!uc)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if ((errno = ibv_modify_qp(my.qp, &attr, mask)))
        die("RTR");
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = setting("psn"), .timeout = setting("timeout"),
        .retry_cnt = setting("retry"), .rnr_retry = setting("rnr_retry"), .max_rd_atomic = setting("rd_atomic")};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (!uc)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if ((errno = ibv_modify_qp(my.qp, &rts, mask)))
        die("RTS");
}

/* -- the exchange ----------------------------------------------------------------------------------------- */

static void take(void *at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(in_fd, (char *)at + done, n - done);
        errno = got < 0 ? errno : 0;
        if (got <= 0)
            die("the peer has closed the connection");
        done += got;
    }
}

static void put(const void *at, size_t n)
{
    fwrite(at, 1, n, out);
    fflush(out);
}

static void take_pingpong(void)
{
    char text[sizeof PINGPONG], gid[33];
    take(text, sizeof text);
    errno = 0;
    if (sscanf(text, "%x:%x:%x:%32s", &peer.lid, &peer.qpn, &peer.psn, gid) != 4)
        die("the peer said %.60s", text);
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        sscanf(gid + 2 * i, "%2x", &byte);
        peer.gid.raw[i] = byte;
    }
}

static void put_pingpong(void)
{
    char text[sizeof PINGPONG];
    int n = snprintf(text, sizeof text, "%04x:%06x:%06x:", 0, my.qp->qp_num, (unsigned)setting("psn"));
    for (int i = 0; i < 16; i++)
        n += snprintf(text + n, sizeof text - n, "%02x", my.gid.raw[i]);
    put(text, sizeof text);
}

static void exchange(const char *host)
{
    int one = 1, port = setting("port"), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (host) {
        inet_pton(AF_INET, host, &at.sin_addr);
        if (connect(in_fd = listener, (void *)&at, sizeof at))
            die("no connection to %s:%d", host, port);
    } else {
        if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1))
            die("port %d", port);
        printf("verbs_peer: listening\n");
        fflush(stdout);
        if ((in_fd = accept(listener, NULL, NULL)) < 0)
            die("accept");
        close(listener);
    }
    setsockopt(in_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    out = fdopen(dup(in_fd), "w");
    char done[5], line[sizeof OURS];
    if (host) {
        put_pingpong();
        take_pingpong();
        put("done", 5);
        connect_pair();
    } else {
        take_pingpong();
        connect_pair();
        put_pingpong();
        take(done, sizeof done);
    }
    if (!setting("extension"))
        return;
    snprintf(line, sizeof line, "optinic:%08x:%016" PRIx64 ":%08x\n", my.mr->rkey, (uint64_t)(uintptr_t)my.memory,
             (unsigned)setting("memory"));
    put(line, sizeof line - 1);
    take(line, sizeof line - 1);
    errno = 0;
    if (sscanf(line, "optinic:%x:%" SCNx64 ":%x", &peer.rkey, &peer.addr, &peer.length) != 3)
        die("the peer said %.60s", line);
}

/* -- work requests ---------------------------------------------------------------------------------------- */

static void report(const struct ibv_wc *wc)
{
    fprintf(out, "wc %" PRIu64 " %d %u %u %u %u %u %s\n", wc->wr_id, wc->status, wc->vendor_err, wc->opcode, wc->byte_len,
            wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0, (unsigned)wc->wc_flags, ibv_wc_status_str(wc->status));
}

static int post_op(int i)
{
    struct op *op = &ops[i];
    struct ibv_sge sge = {(uintptr_t)my.memory + op->local, op->length, my.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = i, .sg_list = &sge, .num_sge = op->length ? 1 : 0, .imm_data = htonl(op->imm),
        .send_flags = IBV_SEND_SIGNALED | (op->solicited ? IBV_SEND_SOLICITED : 0) | (op->inlined ? IBV_SEND_INLINE : 0)};
    static const struct {
        const char *name;
        enum ibv_wr_opcode opcode;
    } known[] = {{"write", IBV_WR_RDMA_WRITE}, {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM}, {"send", IBV_WR_SEND},
        {"send_imm", IBV_WR_SEND_WITH_IMM}, {"read", IBV_WR_RDMA_READ}, {"cas", IBV_WR_ATOMIC_CMP_AND_SWP},
        {"fadd", IBV_WR_ATOMIC_FETCH_AND_ADD}};
    int k = -1;
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        if (!strcmp(known[n].name, op->name))
            k = n;
    if (k < 0)
        return EINVAL;
    wr.opcode = known[k].opcode;
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = op->remote;
        wr.wr.atomic.rkey = op->has_rkey ? op->rkey : peer.rkey;
        wr.wr.atomic.compare_add = op->compare;
        wr.wr.atomic.swap = op->swap;
    } else {
        wr.wr.rdma.remote_addr = op->remote;
        wr.wr.rdma.rkey = op->has_rkey ? op->rkey : peer.rkey;
    }
    return ibv_post_send(my.qp, &wr, &bad);
}

/* Up to `depth` of the n operations under way; each has one completion. Ends with the time or when all are complete. */
static int run_ops(int n, int depth, double ms)
{
    double end = now_ms() + ms;
    int posted = 0, complete = 0;
    struct ibv_wc wc;
    while (complete < n && now_ms() < end) {
        while (posted < n && posted - complete < depth) {
            int error = post_op(posted);
            if (error) {
                fprintf(out, "error operation %d can't be posted: %s\n", posted, strerror(error));
                return -1;
            }
            posted++;
        }
        if (ibv_poll_cq(my.sends, 1, &wc) == 1) {
            report(&wc);
            complete++;
        } else
            usleep(20);         /* the device needs the processor too */
    }
    return complete;
}

static int await_receives(int n, double ms)
{
    double end = now_ms() + ms;
    int found = 0;
    struct ibv_wc wc;
    while (found < n && now_ms() < end)
        if (ibv_poll_cq(my.receives, 1, &wc) == 1) {
            report(&wc);
            found++;
        } else
            usleep(20);
    return found;
}

/* -- commands --------------------------------------------------------------------------------------------- */

static int inside(uint64_t offset, uint64_t length)
{
    uint64_t size = setting("memory");
    if (offset <= size && length <= size - offset)
        return 1;
    fprintf(out, "error bytes %" PRIu64 " to %" PRIu64 " are not all in a memory of %" PRIu64 "\n", offset, offset + length, size);
    return 0;
}

static uint32_t crc32_of(const uint8_t *at, size_t n)
{
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void read_op(struct op *op, char *more)
{
    static const char *const keys[] = {"imm=", "rkey=", "compare=", "swap=", "add=", "solicited=", "inline="};
    for (char *word = strtok(more, " \n"); word; word = strtok(NULL, " \n"))
        for (unsigned k = 0; k < sizeof keys / sizeof *keys; k++) {
            if (strncmp(word, keys[k], strlen(keys[k])))
                continue;
            uint64_t value = strtoull(word + strlen(keys[k]), NULL, 0);
            switch (k) {
            case 0: op->imm = value; break;
            case 1: op->rkey = value; op->has_rkey = 1; break;
            case 2: case 4: op->compare = value; break;
            case 3: op->swap = value; break;
            case 5: op->solicited = value; break;
            case 6: op->inlined = value; break;
            }
        }
}

/* One line, already taken; answers, the last line of each answer beginning with "ok" or "error". */
static void command(char *line, int *count)
{
    char verb[16] = "";
    uint64_t a = 0, b = 0, c = 0;
    int rest = 0, n;
    sscanf(line, "%15s %n", verb, &rest);
    char *arguments = line + rest;
    sscanf(arguments, "%" SCNi64 " %" SCNi64 " %" SCNi64, (int64_t *)&a, (int64_t *)&b, (int64_t *)&c);
    if (!strcmp(verb, "op")) {
        struct op *op = &ops[*count];
        memset(op, 0, sizeof *op);
        rest = 0;
        if (*count == OPS_MAX || sscanf(arguments, "%15s %" SCNi32 " %" SCNi64 " %" SCNi64 " %n", op->name, (int32_t *)&op->length,
                                        (int64_t *)&op->local, (int64_t *)&op->remote, &rest) < 4) {
            fprintf(out, "error op NAME LENGTH LOCAL REMOTE, %d at most\n", OPS_MAX);
            return;
        }
        if (!inside(op->local, op->length))
            return;
        if (rest)
            read_op(op, arguments + rest);
        ++*count;
        fprintf(out, "ok\n");
    } else if (!strcmp(verb, "run")) {
        n = run_ops(*count, a ? (int)a : 1, b ? b : 10000);
        *count = 0;
        if (n >= 0)
            fprintf(out, "ok %d\n", n);
    } else if (!strcmp(verb, "receive")) {
        struct ibv_sge sge = {(uintptr_t)my.memory + b, c, my.mr->lkey};
        struct ibv_recv_wr *bad, wr = {.wr_id = a, .sg_list = &sge, .num_sge = c ? 1 : 0};
        if (!inside(b, c))
            return;
        n = ibv_post_recv(my.qp, &wr, &bad);
        fprintf(out, n ? "error %s\n" : "ok\n", strerror(n));
    } else if (!strcmp(verb, "receives"))
        fprintf(out, "ok %d\n", await_receives(a, b));
    else if (!strcmp(verb, "load")) {
        if (!inside(a, b))
            return;
        take(my.memory + a, b);
        fprintf(out, "ok\n");
    } else if (!strcmp(verb, "fill")) {
        if (!inside(a, b))
            return;
        memset(my.memory + a, c, b);
        fprintf(out, "ok\n");
    } else if (!strcmp(verb, "dump")) {
        if (!inside(a, b))
            return;
        fprintf(out, "ok %" PRIu64 "\n", b);
        fwrite(my.memory + a, 1, b, out);
    } else if (!strcmp(verb, "crc")) {
        if (inside(a, b))
            fprintf(out, "ok %u\n", crc32_of(my.memory + a, b));
    } else if (!strcmp(verb, "state")) {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        ibv_query_qp(my.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init);
        fprintf(out, "ok %d %u %u\n", attr.qp_state, attr.sq_psn, attr.rq_psn);
    } else if (!strcmp(verb, "flush")) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        n = ibv_modify_qp(my.qp, &attr, IBV_QP_STATE);
        fprintf(out, n ? "error %s\n" : "ok\n", strerror(n));
    } else
        fprintf(out, "error %.15s is not a command\n", verb);
}

int main(int argc, char **argv)
{
    const char *host = NULL;
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        int k = 0;
        if (value && !strncmp(argv[i], "host=", 5)) {
            host = value + 1;
            continue;
        }
        while (settings[k].name && !(value && strlen(settings[k].name) == (size_t)(value - argv[i]) &&
                                     !strncmp(settings[k].name, argv[i], value - argv[i])))
            k++;
        if (!settings[k].name)
            die("%s is not KEY=VALUE with a known key", argv[i]);
        settings[k].value = strtoull(value + 1, NULL, 0);
    }
    open_device();
    exchange(host);
    char line[256];
    size_t n = 0;
    int count = 0;
    while (read(in_fd, line + n, 1) == 1) {
        if (line[n] != '\n' && n < sizeof line - 2) {
            n++;
            continue;
        }
        line[n + 1] = 0;
        n = 0;
        command(line, &count);
        fflush(out);
    }
    return 0;
}
