/* The settings of a hub as Hugging Face's tools take them from the environment: HF_ENDPOINT, HF_TOKEN or the file
 * $HF_HOME/token, HF_HUB_CACHE or $HF_HOME/hub. Called by programs; libraries read no environment. */
#ifndef SN_SHARING_HUB_ENVIRONMENT_H
#define SN_SHARING_HUB_ENVIRONMENT_H

#include "sharing/hub/hub.h"

/* Fills endpoint, token and both caches; the rest is zeroed. cache: our folder for caches; NULL: $SWARM_CACHE, else
 * swarm-node in the user's folder for caches. SN_REFUSED: no folder can be found, or the endpoint is no URL. */
sn_status sn_hub_settings_read(const char *cache, sn_hub_settings *out, sn_err *err) SN_MUST_USE;

#endif
