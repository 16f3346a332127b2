/* Any bytes as a tuning's image, as a stranger may send it: refused with a sentence, or something that a pass can add to a model's
 * weights. And as an adapter's folder: a JSON text, a zero byte, a file of tensors; what it becomes is such an image. */
#include "blocks/tuning.h"
#include "model/peft.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 3 };
static sn_span *span;
static sn_kv_pool *pool;
static sn_device *device;

static void load_once(void) {
    sn_model *model = NULL;
    if (span) return;
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32, .n_blocks = 2});
    NEED(sn_model_open(path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    NEED(sn_span_load(model, device, 0, 2, NULL, NULL, &span, &err));
    NEED(sn_span_kv_pool(span, 1 << 20, &pool, &err));
    sn_model_close(&model);
    tiny_remove(&path);
}

/* Some rows go through it: every tensor of it is read. */
static void use(const sn_tuning *tuning) {
    static float rows[ROWS * 4096], out[ROWS * 4096];
    int n_embd = sn_span_hparams(span)->n_embd;
    sn_kv *kv = NULL;
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {ROWS, n_embd}};
    NEED(sn_kv_new(pool, &kv, &err));
    NEED(sn_kv_reserve(kv, ROWS, &err));
    sn_span_part part = {kv, &input, 0, ROWS, out};
    NEED(sn_span_forward_tuned(span, 0, 2, tuning, 1, &part, NULL, &err));
    sn_kv_free(&kv);
}

/* True if it was taken. */
static bool load(const void *image, size_t len) {
    sn_tuning *tuning = NULL;
    sn_err why = {0};
    if (sn_tuning_load(span, image, len, &tuning, &why)) {
        if (tuning || !why.text[0]) abort(); /* every refusal says why */
        return false;
    }
    if (sn_tuning_floats(tuning, 0, 2) != sn_tuning_floats(tuning, 0, 1) + sn_tuning_floats(tuning, 1, 2)) abort();
    use(tuning);
    sn_tuning_free(&tuning);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_buf image;
    sn_err why = {0};
    load_once();
    (void)load(data, size);
    const uint8_t *end = memchr(data, 0, size);
    if (!size || !end) return 0;
    sn_buf_init(&image, 1 << 24);
    size_t len = (size_t)(end - data);
    sn_status status = sn_peft_lora_parse((const char *)data, len, end + 1, size - len - 1, sn_span_hparams(span), &image, &why);
    if (status && !why.text[0]) abort();
    if (!status && !load(image.data, image.len)) abort(); /* what comes of a folder fits the model */
    sn_buf_fini(&image);
    return 0;
}
