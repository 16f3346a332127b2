/* Asking the nodes takes up to two seconds, so one thread does it, when a reader finds what is known older than a
 * second. Readers get what is known meanwhile; only the first one waits. */
#include "gateway/http/http_private.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FRESH_MS = 1000, FIRST_WAIT_S = 6 };

struct sn_view {
    sn_server *server;
    json_t *model; /* {"name", "blocks"} */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *text; /* NULL: nothing is known yet */
    int64_t made_us;
    bool started, wanted, stopping;
};

/* How to fill each range of blocks that no node serves, through a node that answers. */
static void add_gaps(const json_t *coverage, const json_t *nodes, json_t *gaps) {
    const json_t *blocks, *node;
    const char *address = NULL;
    size_t i;
    json_array_foreach(nodes, i, node) {
        if (!address && json_is_true(json_object_get(node, "answered")))
            address = json_string_value(json_object_get(node, "address"));
    }
    json_array_foreach(json_object_get(coverage, "gaps"), i, blocks) {
        json_t *command = json_sprintf("swarm-node --model PATH --blocks %s --join %s", json_string_value(blocks),
                                       address ? address : "HOST:PORT");
        json_array_append_new(gaps, json_pack("{ss so}", "blocks", json_string_value(blocks), "command", command));
    }
}

/* The status of the connection with what the map wants besides: the model, gaps of all models, errors of nodes. */
static json_t *describe(const sn_view *v, json_t *status) {
    json_t *gaps = json_array(), *errors = json_array(), *item;
    size_t i;
    json_array_foreach(json_object_get(status, "coverage"), i, item)
        add_gaps(item, json_object_get(status, "nodes"), gaps);
    json_array_foreach(json_object_get(status, "nodes"), i, item) {
        json_t *error = json_object_get(item, "error");
        if (error)
            json_array_append_new(errors, json_pack("{sO sO}", "node", json_object_get(item, "name"), "error", error));
    }
    json_t *model = json_deep_copy(v->model), *coverage = json_object_get(status, "coverage");
    if (json_array_size(coverage) == 1) /* else it is not known which of them this model is */
        json_object_set(model, "id", json_object_get(json_array_get(coverage, 0), "model"));
    json_object_set_new(status, "model", model);
    json_object_set_new(status, "blocks", json_incref(json_object_get(v->model, "blocks")));
    json_object_set_new(status, "gaps", gaps);
    json_object_set_new(status, "errors", errors);
    return status;
}

static char *ask(const sn_view *v) {
    swarm_error *error = NULL;
    char *text = NULL, *made = NULL;
    if (swarm_connection_status(v->server->options.connection, &text, NULL, &error)) {
        sn_log_rated(SN_LOG_WARN, "swarm not asked", "text=%s", swarm_error_text(error));
        swarm_error_free(error);
        return NULL;
    }
    json_t *status = json_loads(text, JSON_ALLOW_NUL, NULL);
    swarm_free(text);
    if (status) made = json_dumps(describe(v, status), JSON_COMPACT);
    json_decref(status);
    return made;
}

static void *watch(void *view) {
    sn_view *v = view;
    pthread_mutex_lock(&v->lock);
    while (!v->stopping) {
        if (!v->wanted) {
            pthread_cond_wait(&v->changed, &v->lock);
            continue;
        }
        pthread_mutex_unlock(&v->lock);
        char *text = ask(v);
        pthread_mutex_lock(&v->lock);
        v->wanted = false;
        if (text) {
            free(v->text);
            v->text = text;
            v->made_us = sn_now_us();
        }
        pthread_cond_broadcast(&v->changed);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

char *sn_view_get(sn_view *v) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FIRST_WAIT_S;
    pthread_mutex_lock(&v->lock);
    if (!v->text || sn_now_us() - v->made_us > FRESH_MS * 1000) {
        v->wanted = true;
        pthread_cond_broadcast(&v->changed);
    }
    while (!v->text && v->wanted && !v->stopping && !pthread_cond_timedwait(&v->changed, &v->lock, &until)) {}
    char *text = v->text ? strdup(v->text) : NULL;
    pthread_mutex_unlock(&v->lock);
    return text;
}

sn_status sn_view_new(sn_server *server, sn_view **out, sn_err *err) {
    sn_view *v;
    *out = NULL;
    sn_status status = sn_calloc(&v, 1, sizeof *v, err);
    if (status) return status;
    v->server = server;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->changed, NULL);
    v->model = json_pack("{ss si}", "name", server->options.model_name, "blocks",
                         (int)swarm_model_blocks(server->options.model));
    v->started = v->model && !pthread_create(&v->thread, NULL, watch, v);
    if (!v->started) {
        sn_view_free(&v);
        return sn_fail(err, SN_STOP, "out of memory for the view of the swarm");
    }
    *out = v;
    return SN_OK;
}

void sn_view_free(sn_view **view) {
    sn_view *v = *view;
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
    if (v->started) pthread_join(v->thread, NULL);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    json_decref(v->model);
    free(v->text);
    free(v);
    *view = NULL;
}
