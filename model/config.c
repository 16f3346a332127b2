/* What both containers' configurations end with: sn_config_finish checks every size and factor against what the devices
 * compute with (a file can say anything that parses), sets what follows from the family, and fills the tables of the
 * ropes: a frequency for each pair, scaled as the model says. */
#include "model/config.h"

#include "base/math.h"
#include "base/mem.h"
#include "base/terminal.h"

#include <math.h>
#include <string.h>

enum { HEAD_DIM_MAX = 2 * SN_ROPE_FREQS_MAX, LATENT_KEY_MAX = 2 * HEAD_DIM_MAX };

/* The limits are those of the devices (device.h). Buffers are as large as these sizes say, also where no block is
 * recurrent: then all of them are 0. */
static sn_status check_recurrent(const sn_hparams *h, sn_err *err) {
    enum { DIM_MAX = 512, TAPS_MAX = 8 };
    const bool conv = h->recurrence == SN_SHORT_CONV;
    bool fits = h->conv_taps >= 2 && h->conv_taps <= TAPS_MAX && h->delta_key_heads >= 1 &&
                h->delta_value_heads <= SN_HEADS_MAX && h->delta_key_heads <= h->delta_value_heads &&
                h->delta_value_heads % h->delta_key_heads == 0 &&
                (conv ? h->delta_key_dim == 0 && h->delta_value_dim == h->n_embd
                      : h->delta_key_dim >= 1 && h->delta_key_dim <= DIM_MAX && h->delta_value_dim >= 1 &&
                            h->delta_value_dim <= DIM_MAX) &&
                h->delta_rank >= 0 && h->delta_rank <= DIM_MAX && h->delta_floor <= 0 && h->delta_floor >= -80;
    bool none = !h->conv_taps && !h->delta_key_heads && !h->delta_value_heads && !h->delta_key_dim &&
                !h->delta_value_dim && !sn_n_recurrent(h, 0, h->n_blocks);
    if (none || fits) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "the model's recurrent blocks cannot be run: %d taps, %d key heads of %d, %d value heads of %d",
                   h->conv_taps, h->delta_key_heads, h->delta_key_dim, h->delta_value_heads, h->delta_value_dim);
}

typedef struct range {
    const char *what;
    int value, low, high;
} range;

static sn_status check_all(const range *ranges, size_t n, sn_err *err) {
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return sn_fail(err, SN_REFUSED, "the model's %s is %d; it must lie from %d to %d", ranges[i].what,
                           ranges[i].value, ranges[i].low, ranges[i].high);
    return SN_OK;
}

/* The heads of a kind of blocks, and how much of them a rope rotates. */
static sn_status check_heads(const sn_hparams *h, const sn_heads *own, int rope_dim, sn_err *err) {
    const range ranges[] = {
        {"number of heads", own->n, 1, SN_HEADS_MAX},
        {"number of key/value heads", own->n_kv, 1, own->n},
        {"width of a head", own->key_dim, 2, h->latent ? LATENT_KEY_MAX : HEAD_DIM_MAX},
        {"width of a head's values", own->value_dim, 1, own->key_dim},
        {"number of rotated dimensions", rope_dim, h->alibi ? 0 : 2,
         h->alibi    ? 0
         : h->latent ? HEAD_DIM_MAX
                     : own->key_dim},
    };
    SN_TRY(check_all(ranges, sizeof ranges / sizeof *ranges, err));
    if (own->n % own->n_kv)
        return sn_fail(err, SN_REFUSED, "the model's %d heads cannot share %d key/value heads evenly", own->n,
                       own->n_kv);
    if (rope_dim % 2)
        return sn_fail(err, SN_REFUSED, "the model rotates %d dimensions of a head; they come in pairs", rope_dim);
    return SN_OK;
}

static sn_status check_ranges(const sn_hparams *h, sn_err *err) {
    const range ranges[] = {
        {"number of blocks", h->n_blocks, 1, SN_BLOCKS_MAX},
        {"width of the hidden state", h->n_embd, 1, 1 << 17},
        {"width of the feed-forward layer", h->n_ff, 1, 1 << 20},
        {"number of experts", h->n_experts, 0, SN_MODEL_EXPERTS_MAX},
        {"number of experts for a token", h->n_experts_used, h->n_experts ? 1 : 0,
         h->n_experts < SN_MODEL_EXPERTS_USED_MAX ? h->n_experts : SN_MODEL_EXPERTS_USED_MAX},
        {"width of what enters an expert", h->experts_width, 0, h->n_experts ? h->n_embd : 0},
        {"width of a dense feed-forward layer", h->n_ff_dense, 0, 1 << 20},
        {"width of the shared expert", h->n_ff_shared, 0, 1 << 20},
        {"size of the vocabulary", h->n_vocab, 1, 1 << 22},
        {"context length", h->n_ctx, 1, 1 << 26},
        {"sliding window", h->window, 0, 1 << 26},
    };
    SN_TRY(check_all(ranges, sizeof ranges / sizeof *ranges, err));
    const sn_heads usual = sn_usual_heads(h);
    sn_status status = check_heads(h, &usual, h->rope_dim, err);
    if (!status && (h->n_ropes > 1 || h->full_heads.n))
        status = check_heads(h, h->full_heads.n ? &h->full_heads : &usual, sn_rope_dim(h, h->n_ropes > 1), err);
    if (!status) status = check_recurrent(h, err);
    if (status) return status;
    for (int i = 0; i < h->n_blocks; i++)
        if (h->dense[i] && h->n_experts && !h->n_ff_dense)
            return sn_fail(err, SN_REFUSED, "block %d has no experts, and its feed-forward layer no width", i);
    if (!(h->q_growth >= 0 && h->q_growth <= 1e3f) || (h->q_growth > 0 && h->q_growth_step < 1))
        return sn_fail(err, SN_REFUSED, "the model's queries grow by %g every %d positions, which is not possible",
                       (double)h->q_growth, h->q_growth_step);
    if (!(h->score_softcap >= 0 && h->score_softcap <= 1e6f && h->logit_softcap >= 0 && h->logit_softcap <= 1e6f))
        return sn_fail(err, SN_REFUSED, "the model's softcaps are %g and %g; they must lie from 0 to 1e6",
                       (double)h->score_softcap, (double)h->logit_softcap);
    if (!(h->norm_eps > 0 && h->norm_eps < 1))
        return sn_fail(err, SN_REFUSED, "the model's norm epsilon is %g; it must lie between 0 and 1",
                       (double)h->norm_eps);
    return SN_OK;
}

static sn_status check_scaling(const sn_rope_scaling *s, sn_err *err) {
    if (!(s->theta >= 1 && s->theta <= 1e15))
        return sn_fail(err, SN_REFUSED, "the model's rope theta is %g; it must lie from 1 to 1e15", s->theta);
    if (s->kind == SN_ROPE_SCALING_NONE || s->kind == SN_ROPE_SCALING_PROPORTIONAL) return SN_OK;
    if (!(s->factor >= 1 && s->factor <= 1e6))
        return sn_fail(err, SN_REFUSED, "the model's rope scaling factor is %g; it must lie from 1 to 1e6", s->factor);
    if (s->kind == SN_ROPE_SCALING_LINEAR) return SN_OK;
    if (s->kind == SN_ROPE_SCALING_YARN &&
        !(s->beta_slow > 0 && s->beta_slow <= s->beta_fast && s->beta_fast <= 1e6 && s->theta > 1 &&
          s->original_ctx >= 1 && s->original_ctx <= 1e9 && s->attention_factor >= 0 && s->attention_factor <= 1e3 &&
          s->mscale >= 0 && s->mscale <= 1e3 && s->mscale_all_dim >= 0 && s->mscale_all_dim <= 1e3))
        return sn_fail(err, SN_REFUSED,
                       "the model's yarn rope scaling is impossible: beta_fast %g, beta_slow %g, attention_factor %g, "
                       "original_max_position_embeddings %g, rope_theta %g",
                       s->beta_fast, s->beta_slow, s->attention_factor, s->original_ctx, s->theta);
    if (s->kind == SN_ROPE_SCALING_YARN) return SN_OK;
    if (s->kind == SN_ROPE_SCALING_LONG &&
        !(s->original_ctx >= 2 && s->original_ctx <= 1e9 && s->attention_factor >= 0 && s->attention_factor <= 1e3))
        return sn_fail(err, SN_REFUSED,
                       "the model's longrope scaling is impossible: attention_factor %g, "
                       "original_max_position_embeddings %g",
                       s->attention_factor, s->original_ctx);
    if (s->kind == SN_ROPE_SCALING_LONG) return SN_OK;
    if (!(s->low_freq_factor > 0 && s->low_freq_factor <= s->high_freq_factor && s->high_freq_factor <= 1e6 &&
          s->original_ctx >= 1 && s->original_ctx <= 1e9))
        return sn_fail(err, SN_REFUSED,
                       "the model's llama3 rope scaling is impossible: low_freq_factor %g, "
                       "high_freq_factor %g, original_max_position_embeddings %g",
                       s->low_freq_factor, s->high_freq_factor, s->original_ctx);
    return SN_OK;
}

/* float32 throughout: each step rounds where the reference rounds. */
static float llama3_scaled(float freq, const sn_rope_scaling *s) {
    float factor = (float)s->factor, low = (float)s->low_freq_factor, high = (float)s->high_freq_factor;
    float wavelength = (1.0f / freq) * 6.283185307179586f;
    if (wavelength > (float)(s->original_ctx / s->low_freq_factor)) return freq / factor;
    if (wavelength < (float)(s->original_ctx / s->high_freq_factor) || !(low < high)) return freq;
    float smooth = ((1.0f / wavelength) * (float)s->original_ctx - low) / (high - low);
    return (1.0f - smooth) * freq / factor + smooth * freq;
}

/* The index of the pair (of dim / 2) that makes so many rotations over the original context. */
static double pair_with_rotations(const sn_rope_scaling *s, double rotations, int dim) {
    return dim * sn_ln(s->original_ctx / (rotations * 6.283185307179586)) / (2 * sn_ln(s->theta));
}

/* The frequency of pair i, which takes `slow` positions per radian without scaling; float32 where the reference is. */
static float yarn_scaled(float slow, const sn_rope_scaling *s, int i, int dim) {
    double low = pair_with_rotations(s, s->beta_fast, dim), high = pair_with_rotations(s, s->beta_slow, dim);
    if (s->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float kept = 1.0f - fminf(fmaxf(ramp, 0), 1), divided = 1.0f / ((float)s->factor * slow);
    return divided * (1.0f - kept) + 1.0f / slow * kept;
}

double sn_yarn_growth(const sn_rope_scaling *s, double m) { return s->factor > 1 ? 1 + 0.1 * m * sn_ln(s->factor) : 1; }

/* The factor of cosines and sines. */
static float rope_scale_of(const sn_rope_scaling *s) {
    if (s->kind != SN_ROPE_SCALING_YARN && s->kind != SN_ROPE_SCALING_LONG) return 1;
    if (s->attention_factor > 0) return (float)s->attention_factor;
    if (s->kind == SN_ROPE_SCALING_LONG) return (float)sqrt(1 + sn_ln(s->factor) / sn_ln(s->original_ctx));
    bool both = s->mscale > 0 && s->mscale_all_dim > 0;
    return (float)(sn_yarn_growth(s, both ? s->mscale : 1) / (both ? sn_yarn_growth(s, s->mscale_all_dim) : 1));
}

/* The frequency that takes `slow` positions per radian without the divisor; each rounded as the reference's. */
static sn_status divide_freq(const sn_rope_scaling *s, int i, float divisor, float slow, float *freq, sn_err *err) {
    if (!(divisor > 0 && isfinite(divisor)))
        return sn_fail(err, SN_REFUSED, "the model's rope factor %d is %g; it must be above 0", i, (double)divisor);
    *freq = s->kind == SN_ROPE_SCALING_LONG ? 1.0f / (divisor * slow) : *freq / divisor;
    return SN_OK;
}

/* set: of the factors. */
static sn_status fill_rope(const sn_rope_scaling *s, int dim, int set, float *freqs, sn_err *err) {
    if (s->n_factors && s->n_factors != dim / 2)
        return sn_fail(err, SN_REFUSED, "the model has %d rope factors for %d rotated dimensions", s->n_factors, dim);
    for (int i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;
        float slow = (float)sn_pow(s->theta, (double)exponent), freq = 1.0f / slow;
        if (s->kind == SN_ROPE_SCALING_LINEAR) freq /= (float)s->factor;
        if (s->kind == SN_ROPE_SCALING_LLAMA3) freq = llama3_scaled(freq, s);
        if (s->kind == SN_ROPE_SCALING_YARN) freq = yarn_scaled(slow, s, i, dim);
        if (s->kind == SN_ROPE_SCALING_PROPORTIONAL && i >= (int)(s->rotated * dim / 2)) freq = 0;
        if (s->n_factors) SN_TRY(divide_freq(s, i, s->factors[set][i], slow, &freq, err));
        if (!(freq >= 0 && freq <= 1e6f))
            return sn_fail(err, SN_REFUSED, "the model's rope frequency %d comes out as %g", i, (double)freq);
        freqs[i] = freq;
    }
    return SN_OK;
}

/* A factor that is not 1 comes from a file, or from a number of it. */
static sn_status check_factors(const sn_hparams *h, sn_err *err) {
    const struct {
        const char *what;
        float value;
    } factors[] = {{"scores of attention", h->attn_scale},
                   {"values", h->value_scale > 0 ? h->value_scale : 1},
                   {"embeddings", h->embed_scale},
                   {"residuals", h->residual_scale},
                   {"logits", h->logit_scale},
                   {"weights of experts", h->router_scale}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (!(factors[i].value > 0 && factors[i].value <= 1e6f))
            return sn_fail(err, SN_REFUSED, "the model multiplies its %s by %g; it must lie from 0 to 1e6",
                           factors[i].what, (double)factors[i].value);
    return SN_OK;
}

void sn_config_no_recurrence(sn_hparams *h) {
    h->conv_taps = h->delta_key_heads = h->delta_value_heads = h->delta_key_dim = h->delta_value_dim = 0;
    h->recurrence = SN_GATED_DELTA;
    h->conv_bias = h->delta_log_rates = false;
}

sn_status sn_config_finish(sn_hparams *h, const sn_family *family, const sn_rope_scaling scaling[SN_ROPES_MAX],
                           sn_err *err) {
    h->alibi = family->alibi;
    if (h->alibi) h->rope_dim = 0;
    if (!h->rope_dim_full) h->rope_dim_full = h->rope_dim;
    sn_status status = check_ranges(h, err);
    if (status) return status;
    h->layer_norm = family->layer_norm;
    h->parallel = family->parallel;
    h->gated = family->naming[SN_CONTAINER_SAFETENSORS]->names[SN_ROLE_FFN_GATE];
    h->qk_norm = h->qk_norm || family->qk_norm == SN_ALWAYS;
    h->attn_gate = family->attn_gated;
    h->head_gate = family->head_gate;
    h->norm_values = family->norm_values;
    if (family->unscaled) h->attn_scale = 1;
    h->qk_norm_wide = family->qk_norm_wide;
    h->post_norm = family->naming[SN_CONTAINER_SAFETENSORS]->names[SN_ROLE_ATTN_POST_NORM];
    if (h->attn_scale <= 0) h->attn_scale = 1.0f / sqrtf((float)h->head_dim);
    if (h->embed_scale <= 0) h->embed_scale = 1;
    if (h->residual_scale <= 0) h->residual_scale = 1;
    if (h->logit_scale <= 0) h->logit_scale = 1;
    if (h->router_scale <= 0) h->router_scale = 1;
    status = check_factors(h, err);
    if (h->n_ropes < 1) h->n_ropes = 1;
    for (int i = 0; i < h->n_ropes && !status; i++) {
        status = check_scaling(&scaling[i], err);
        if (!status) status = fill_rope(&scaling[i], sn_rope_dim(h, i), 0, i ? h->rope_freq_full : h->rope_freq, err);
        h->rope_scale[i] = rope_scale_of(&scaling[i]);
    }
    if (status || scaling->kind != SN_ROPE_SCALING_LONG) return status;
    h->long_after = (int)scaling->original_ctx;
    h->rope_scale[1] = h->rope_scale[0];
    return fill_rope(scaling, h->rope_dim, 1, h->rope_freq_full, err);
}

void sn_config_copy_name(char out[SN_MODEL_NAME_SIZE], const char *name, size_t len) {
    sn_terminal_text state = {0};
    size_t used = 0;
    for (size_t i = 0; i < len; i++) {
        char byte = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i], clean[3 * (1 + 4)];
        size_t n = sn_terminal_clean(&state, &byte, 1, clean);
        if (used + n >= SN_MODEL_NAME_SIZE) break;
        memcpy(out + used, clean, n);
        used += n;
    }
    out[used] = 0;
}

/* -- latent attention (DeepSeek-AI 2024): what follows from its sizes in both containers -- */

sn_status sn_config_finish_indexer(sn_hparams *h, const sn_family *family, sn_err *err) {
    const struct {
        const char *what;
        int value, low, high;
    } ranges[] = {{"number of keys that its indexer chooses", h->index_topk, 1, SN_INDEX_TOPK_MAX},
                  {"number of heads of its indexer", h->index_heads, 1, SN_HEADS_MAX},
                  {"width of a key of its indexer", h->index_dim, h->rope_dim, SN_INDEX_DIM_MAX},
                  {"rank of the queries, which an indexer reads", h->q_rank, 1, 1 << 17}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return sn_fail(err, SN_REFUSED, "the model's %s is %d; it must lie from %d to %d", ranges[i].what,
                           ranges[i].value, ranges[i].low, ranges[i].high);
    if (h->index_shared[0])
        return sn_fail(err, SN_REFUSED, "the first block attends to what a block before it has chosen: there is none");
    h->index_as_rope = family->index_as_rope;
    return SN_OK;
}

sn_status sn_config_finish_latent(sn_hparams *h, int rope_dim, const sn_rope_scaling *s, sn_err *err) {
    enum { DIM_MAX = 1024 };
    const range ranges[] = {{"width of the latent", h->latent, 1, DIM_MAX},
                            {"number of rotated dimensions", rope_dim, 2, DIM_MAX / 2},
                            {"width of a head's keys without rope", h->nope_dim, 1, DIM_MAX},
                            {"width of a head's values", h->value_dim, 1, DIM_MAX},
                            {"rank of the queries", h->q_rank, 0, 1 << 17}};
    SN_TRY(check_all(ranges, sizeof ranges / sizeof *ranges, err));
    if ((h->latent + rope_dim) % 2 || h->latent + rope_dim > DIM_MAX)
        return sn_fail(err, SN_REFUSED,
                       "a latent of %d with %d rotated dimensions is not taken: together they must be "
                       "even, and at most %d",
                       h->latent, rope_dim, DIM_MAX);
    h->n_kv_heads = 1;
    h->head_dim = h->latent + rope_dim;
    h->rope_dim = rope_dim;
    h->latent_eps = 1e-6f; /* the reference's, whatever rms_norm_eps is */
    /* yarn lengthens q and k by g(mscale_all_dim) each: the rope's factor leaves that out, so that it applies to the
     * whole score, not to the rotated part alone */
    double growth = s->kind == SN_ROPE_SCALING_YARN ? sn_yarn_growth(s, s->mscale_all_dim) : 1;
    h->attn_scale = (float)(growth * growth / sqrt((double)(h->nope_dim + rope_dim)));
    return SN_OK;
}
