/* What the hidden layer of a feed-forward network goes through, element by element. */
#ifndef SN_BASE_ACTIVATION_H
#define SN_BASE_ACTIVATION_H

typedef enum sn_activation {
    SN_SILU,      /* x / (1 + exp(-x)) */
    SN_GELU,      /* x times the normal distribution's share below x: x (1 + erf(x / sqrt 2)) / 2. Hendrycks & Gimpel 2016 */
    SN_GELU_TANH, /* its approximation there: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    SN_ACTIVATION_COUNT
} sn_activation;

#endif
