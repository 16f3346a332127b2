/* Any bytes as an adapter's image, as a peer may send it: refused with an error, or an adapter that can be used in a
 * batch. And any bytes as an adapter's folder (a JSON text, a zero byte, a file of tensors), which becomes such an
 * image. */
#include "blocks/adapter.h"
#include "model/peft/peft.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 3 };
static sn_span *span;
static sn_kv_pool *pool;
static sn_device *device;
static char *folder;

static void remove_folder(void) { temp_folder_remove(&folder); }

static void load_once(void) {
    sn_model *model = NULL;
    if (span) return;
    folder = temp_folder();
    atexit(remove_folder);
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_blocks = 2});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_span_load(model, device, 0, 2, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 1 << 20, &pool, &err));
    sn_model_close(&model);
    tiny_model_remove(&path);
}

/* Runs a few rows through the adapter, so that every tensor of it is read. */
static void use_adapter(const sn_adapter *adapter) {
    static float rows[ROWS * 4096], out[ROWS * 4096];
    int n_embd = sn_span_hparams(span)->n_embd;
    sn_kv_cache *kv = NULL;
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {ROWS, n_embd}};
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    REQUIRE(sn_kv_cache_reserve(kv, ROWS, &err));
    sn_span_sequence part = {kv, &input, 0, ROWS, out};
    REQUIRE(sn_span_forward_adapter(span, 0, 2, adapter, 1, &part, NULL, &err));
    sn_kv_cache_free(&kv);
}

/* True if the adapter was accepted. */
static bool load_adapter(const void *image, size_t len) {
    sn_adapter *adapter = NULL;
    sn_err err = {0};
    if (sn_adapter_load(span, image, len, &adapter, &err)) {
        if (adapter || !err.text[0]) abort(); /* every refusal has a message */
        return false;
    }
    if (sn_adapter_n_params(adapter, 0, 2) != sn_adapter_n_params(adapter, 0, 1) + sn_adapter_n_params(adapter, 1, 2))
        abort();
    use_adapter(adapter);
    sn_adapter_free(&adapter);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_buf image;
    sn_err err = {0};
    load_once();
    (void)load_adapter(data, size);
    const uint8_t *end = memchr(data, 0, size);
    if (!size || !end) return 0;
    sn_buf_init(&image, 1 << 24);
    size_t len = (size_t)(end - data);
    write_file(folder, "adapter_config.json", data, len);
    write_file(folder, "adapter_model.safetensors", end + 1, size - len - 1);
    sn_status status = sn_peft_lora(folder, sn_span_hparams(span), &image, &err);
    if (status && !err.text[0]) abort();
    if (!status && !load_adapter(image.data, image.len)) abort(); /* the image made from a folder fits the model */
    sn_buf_fini(&image);
    return 0;
}
