/* The activation functions of feed-forward networks, element by element. device/device.h (activate) applies them. */
#ifndef SN_BASE_ACTIVATION_H
#define SN_BASE_ACTIVATION_H

typedef enum sn_activation {
    SN_SILU, /* x / (1 + exp(-x)) */
    /* x * (share of the normal distribution below x) = x (1 + erf(x / sqrt 2)) / 2. Hendrycks & Gimpel 2016 */
    SN_GELU,
    SN_GELU_TANH, /* an approximation of SN_GELU, of the same paper: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
                   */
    /* m / (1 + exp(-1.702 m)) with m = min(x, 7); the factor `up` becomes 1 + min(max(up, -7), 7). gpt-oss, 2025 */
    SN_SWIGLU_CLAMPED,
    SN_SIGMOID,      /* 1 / (1 + exp(-x)): a gate of its own, not a part of a feed-forward */
    SN_TANH,         /* tanh(x), within 1e-6: it bounds logits */
    SN_LINEAR,       /* x: the product of two vectors */
    SN_RELU_SQUARED, /* max(x, 0)^2 */
    SN_ACTIVATION_COUNT
} sn_activation;

#endif
