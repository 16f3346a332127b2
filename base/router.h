/* How the router of a mixture of experts weighs the experts. device/device.h (moe_gate) computes it. */
#ifndef SN_BASE_ROUTER_H
#define SN_BASE_ROUTER_H

typedef enum sn_router_scoring {
    SN_ROUTER_SOFTMAX,     /* by the softmax of the chosen experts' logits. Shazeer et al. 2017 */
    SN_ROUTER_SOFTMAX_ALL, /* by the softmax of all experts' logits, of which the chosen ones have a part */
    SN_ROUTER_SIGMOID,     /* each by 1 / (1 + exp(-logit)). DeepSeek-V3, 2024 */
} sn_router_scoring;

#endif
