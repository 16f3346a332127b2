#include "cli/local_node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPTIONS_MAX = 40, LINE_MAX_BYTES = 1024, READY_MS = 600000, LOOK_MS = 100, END_MS = 5000 };

/* "swarm-node" beside this program, else what PATH has. */
static const char *find_program(char out[4096]) {
    ssize_t n = readlink("/proc/self/exe", out, 4000);
    char *slash = n > 0 ? memrchr(out, '/', (size_t)n) : NULL;
    if (!slash) return "swarm-node";
    snprintf(slash, 96, "/swarm-node");
    return access(out, X_OK) ? "swarm-node" : out;
}

/* In the child: a group of its own, so that Ctrl-C reaches this program alone, which ends the node in order. */
static void become_node(const char *program, char *const *argv, int out, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1); /* it ended before */
    dup2(out, STDOUT_FILENO);
    execvp(program, argv);
    fprintf(stderr, "swarm serve: cannot start %s: %s\n", program, strerror(errno));
    _exit(127);
}

/* Reads the line "ready: address=A node=ID curve_key=K ..." that the node prints. */
static sn_status read_ready(sn_local_node *node, int fd, sn_err *err) {
    char line[LINE_MAX_BYTES], address[128], key[65];
    size_t n = 0;
    for (int ms = 0; ms < READY_MS && n + 1 < sizeof line; ms += LOOK_MS) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        sigset_t pending;
        if (!sigpending(&pending) && (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1))
            return sn_fail(err, SN_RETRY, "interrupted");
        if (poll(&poll_fd, 1, LOOK_MS) <= 0) continue;
        ssize_t got = read(fd, line + n, sizeof line - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        line[n] = 0;
        if (!strchr(line, '\n')) continue;
        if (sscanf(line, "ready: address=%127s node=%*s curve_key=%64s", address, key) != 2) break;
        snprintf(node->address, sizeof node->address, "%s#%s", address, key);
        return SN_OK;
    }
    return sn_fail(err, SN_RETRY, "the node of --local all did not start");
}

sn_status sn_local_node_start(const char *const *options, sn_local_node *out, sn_err *err) {
    char program[4096];
    const char *argv[OPTIONS_MAX + 4] = {find_program(program), "--listen", "127.0.0.1:0"};
    int pipe_fds[2];
    pid_t parent = getpid();
    *out = (sn_local_node){0};
    for (size_t i = 0; i < OPTIONS_MAX && options[i]; i++) argv[3 + i] = options[i];
    if (pipe2(pipe_fds, O_CLOEXEC)) return sn_fail(err, SN_STOP, "cannot make a pipe: %s", strerror(errno));
    out->out = pipe_fds[0];
    out->pid = fork();
    if (!out->pid) become_node(argv[0], (char *const *)(uintptr_t)argv, pipe_fds[1], parent);
    close(pipe_fds[1]);
    sn_status status = out->pid < 0 ? sn_fail(err, SN_STOP, "cannot start a process: %s", strerror(errno))
                                    : read_ready(out, pipe_fds[0], err);
    if (out->pid < 0) {
        out->pid = 0;
        close(pipe_fds[0]);
    }
    if (status) sn_local_node_stop(out);
    return status;
}

bool sn_local_node_has_ended(sn_local_node *node) {
    if (!node->pid || waitpid(node->pid, NULL, WNOHANG) != node->pid) return false;
    node->pid = 0;
    close(node->out);
    return true;
}

void sn_local_node_stop(sn_local_node *node) {
    if (!node->pid) return;
    kill(node->pid, SIGTERM);
    for (int ms = 0; ms < END_MS; ms += LOOK_MS) {
        if (sn_local_node_has_ended(node)) return;
        poll(NULL, 0, LOOK_MS);
    }
    kill(node->pid, SIGKILL);
    waitpid(node->pid, NULL, 0);
    node->pid = 0;
    close(node->out);
}
