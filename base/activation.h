/* What the hidden layer of a feed-forward network goes through, element by element. */
#ifndef SN_BASE_ACTIVATION_H
#define SN_BASE_ACTIVATION_H

typedef enum sn_activation {
    SN_SILU,      /* x / (1 + exp(-x)) */
    SN_GELU,      /* x times the normal distribution's share below x: x (1 + erf(x / sqrt 2)) / 2. Hendrycks & Gimpel 2016 */
    SN_GELU_TANH, /* its approximation there: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    SN_SWIGLU_CLAMPED, /* m / (1 + exp(-1.702 m)), m = min(x, 7); and what it is multiplied by, up, becomes
                        * 1 + min(max(up, -7), 7). gpt-oss, 2025 */
    SN_ACTIVATION_COUNT
} sn_activation;

#endif
