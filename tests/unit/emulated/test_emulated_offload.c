/* Blocks and experts that rest elsewhere than where they are computed, over emulated devices
 * (tests/support/emulated_span.h). */
#include "tests/support/emulated_span.h"

#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(emulated_offload, .init = emulated_devices_begin, .fini = emulated_devices_close);

Test(emulated_offload, offloaded_blocks_give_the_bits_of_resident_ones_on_their_device) {
    static const char *const kinds[] = {"cpu", "cuda:0", "xpu:0"};
    static const char *const offload_maps[] = {"0:1=%s,1:6=host", "0:1=%s,1:6=disk",
                                               "0:2=%s,2:3=host,3:4=disk,4:5=%s,5:6=disk"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 6});
    for (int k = 0; k < 3; k++) {
        char map[128];
        snprintf(map, sizeof map, "0:6=%s", kinds[k]);
        emulated_span w = emulated_span_open(path, map, NULL);
        float *resident = make_rows(40, w.hp->n_embd);
        size_t bytes = 40 * (size_t)w.hp->n_embd * sizeof *resident;
        run_rows(&w, resident, 40, 9);
        emulated_span_close(&w);
        for (int r = 0; r < 3; r++)
            for (int preload = 0; preload < 2; preload++) {
                snprintf(map, sizeof map, offload_maps[r], kinds[k], kinds[k]);
                emulated_span o = emulated_span_open(path, map, preload ? "2:4" : NULL);
                float *rows = make_rows(40, o.hp->n_embd);
                run_rows(&o, rows, 40, 9);
                cr_expect(!memcmp(rows, resident, bytes), "%s, preload %d", map, preload);
                free(rows);
                emulated_span_close(&o);
            }
        free(resident);
    }
    tiny_model_remove(&path);
}

/* The bits of resident experts on their device, however few are there at a time. */
Test(emulated_offload, experts_that_rest_elsewhere_give_the_bits_of_resident_ones_on_their_device) {
    static const char *const families[] = {"qwen3_moe", "gpt_oss", "llama4"}, *const places[] = {"cuda:0", "xpu:0"};
    for (int f = 0; f < 3; f++)
        for (int d = 0; d < 2; d++) {
            char path[256], map[64];
            float *want = NULL;
            snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, families[f]);
            for (int way = 0; way < 5; way++) { /* resident; in host memory and on disk, with few slots and with all */
                const char *rest = way == 0 ? "" : way < 3 ? ",*.experts=host" : ",*.experts=disk";
                snprintf(map, sizeof map, "*=%s%s", places[d], rest);
                emulated_expert_memory = way % 2 ? 336 << 10 : 0;
                emulated_span w = emulated_span_open(path, map, way == 4 ? "experts:1:2" : NULL);
                float *rows = make_rows(20, w.hp->n_embd);
                run_rows(&w, rows, 12, 6);
                run_rows(&w, rows + 12 * w.hp->n_embd, 8, 1);
                sn_expert_counts counts = sn_span_expert_counts(w.span);
                cr_expect_eq(way > 0, counts.bytes > 0, "%s on %s", families[f], map);
                cr_expect(!want || !memcmp(rows, want, 20 * (size_t)w.hp->n_embd * sizeof *rows), "%s on %s, %zu bytes",
                          families[f], map, emulated_expert_memory);
                if (want) free(rows);
                if (!want) want = rows;
                emulated_span_close(&w);
            }
            free(want);
        }
    emulated_expert_memory = 0;
}

/* -- recorded passes */

/* DeepSeek's decode step, with its groups of experts, is one recorded pass. */
Test(emulated_offload, a_decode_step_over_latents_is_recorded_once) {
    emulated_span w = emulated_span_open(SN_FIXTURES "/golden/deepseek_v3", "0:4=cuda:0", NULL);
    float *rows = make_rows(20, w.hp->n_embd);
    uint64_t before = emulated_devices[CUDA]->graphs_captured;
    run_rows(&w, rows, 20, 1);
    cr_expect_eq(emulated_devices[CUDA]->graphs_captured - before, 1);
    free(rows);
    emulated_span_close(&w);
}

Test(emulated_offload, a_decode_step_is_recorded_once_whatever_is_preloaded_or_offloaded) {
    static const char *const maps[] = {"0:6=cuda:0", "0:5=cuda:0,5:6=host"}, *const preloads[] = {NULL, "all"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = 6});
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 2; p++) {
            emulated_span w = emulated_span_open(path, maps[m], preloads[p]);
            float *rows = make_rows(20, w.hp->n_embd);
            uint64_t before = emulated_devices[CUDA]->graphs_captured;
            run_rows(&w, rows, 20, 1);
            uint64_t recorded = emulated_devices[CUDA]->graphs_captured - before;
            bool streams = m == 1 && p == 0;
            cr_expect_eq(recorded, streams ? 0 : 1, "%s, preload %s: recorded %llu times", maps[m],
                         preloads[p] ? preloads[p] : "none", (unsigned long long)recorded);
            free(rows);
            emulated_span_close(&w);
        }
    tiny_model_remove(&path);
}
