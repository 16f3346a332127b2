#include "tests/support/program.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_US = 120 * 1000000, POLL_US = 2000 };

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "running a program: %s failed\n", what);
    abort();
}

static char *read_all(FILE *file) {
    long size = -1;
    require(!fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0, "seeking");
    require(!fseek(file, 0, SEEK_SET), "seeking");
    char *text = calloc((size_t)size + 1, 1);
    require(text && fread(text, 1, (size_t)size, file) == (size_t)size, "reading what it printed");
    fclose(file);
    return text;
}

static int wait_for(pid_t pid) {
    int state; /* in real time: a test's virtual clock does not know what the program does */
    for (int naps = 0; waitpid(pid, &state, WNOHANG) == 0; naps++) {
        if (naps == LIMIT_US / POLL_US) kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = POLL_US * 1000}, NULL);
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

program program_run(const char *const *argv, const char *input) {
    FILE *in = tmpfile(), *out = tmpfile(), *err = tmpfile();
    require(in && out && err, "making temporary files");
    if (input) fputs(input, in);
    require(!fflush(in), "writing its input");
    require(!fseek(in, 0, SEEK_SET), "seeking");
    pid_t pid = fork();
    require(pid >= 0, "fork");
    if (!pid) {
        setenv("XDG_CONFIG_HOME", "/nonexistent", 1); /* the user's own options are not for tests */
        dup2(fileno(in), STDIN_FILENO);
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    program p = {.code = wait_for(pid)};
    fclose(in);
    p.out = read_all(out);
    p.err = read_all(err);
    return p;
}

void program_fini(program *p) {
    free(p->out);
    free(p->err);
    *p = (program){0};
}

json_t *program_json(const program *p) {
    json_error_t where;
    json_t *value = json_loads(p->out, 0, &where);
    if (!value) fprintf(stderr, "exit code %d, printed: %.400s\nand: %.400s\n", p->code, p->out, p->err);
    require(value != NULL, "reading its output as JSON");
    return value;
}
