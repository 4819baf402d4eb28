/* job_server PORT: runs shell scripts for the host. A TCP connection is one job.
 *
 * From the host: the script's length (4 bytes, big endian), the script. To the host: records of a letter, a length (4 bytes, big
 * endian) and so many bytes: 'o' output of the job, both streams in one; 'x', the last, its exit status as text (128 + n: ended by
 * signal n). When the host closes the connection earlier, the job and everything that it has started is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int all_in(int fd, void *at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)at + done, n - done);
        if (got <= 0)
            return 0;
        done += got;
    }
    return 1;
}

static int all_out(int fd, const void *at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = send(fd, (const char *)at + done, n - done, MSG_NOSIGNAL);
        if (put <= 0)
            return 0;
        done += put;
    }
    return 1;
}

static int record(int fd, char kind, const void *at, size_t n)
{
    uint32_t length = htonl(n);
    return all_out(fd, &kind, 1) && all_out(fd, &length, 4) && all_out(fd, at, n);
}

static void serve(int fd)
{
    uint32_t length;
    int out[2], status = 0, ended = 0, more = 1;
    if (!all_in(fd, &length, 4))
        return;
    length = ntohl(length);
    char *script = calloc(1, length + 1), buffer[16384];
    if (!script || !all_in(fd, script, length) || pipe2(out, O_CLOEXEC))
        return;
    pid_t job = fork();
    if (!job) {
        setsid();
        int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        close(fd);
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    while (!ended) {
        struct pollfd watched[2] = {{.fd = fd, .events = POLLIN}, {.fd = more ? out[0] : -1, .events = POLLIN}};
        poll(watched, 2, more ? 20 : 2);
        ended = waitpid(job, &status, WNOHANG) == job;      /* before the last look at what it has written */
        ssize_t got = 1;
        while (more && (got = read(out[0], buffer, sizeof buffer)) > 0)
            if (!record(fd, 'o', buffer, got))
                goto gone;
        if (got == 0)
            more = 0;
        if (watched[0].revents && recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) == 0)
            goto gone;
    }
    int n = snprintf(buffer, sizeof buffer, "%d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    record(fd, 'x', buffer, n);
    return;
gone:
    kill(-job, SIGKILL);
    waitpid(job, &status, 0);
}

int main(int argc, char **argv)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7000)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 16)) {
        perror("job_server");
        return 1;
    }
    puts("guest: takes jobs");          /* what the host waits for */
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);           /* nobody waits for those who serve */
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (!fork()) {
            signal(SIGCHLD, SIG_DFL);
            close(listener);
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
}
