#!/usr/bin/env bash
# A short soak (tests/soak.sh; longer ones by hand): nodes come and go, texts are right, none is lost, memory is flat.
SOAK_SECONDS=${SOAK_SECONDS:-40} exec bash "$(dirname "${BASH_SOURCE[0]}")/../soak.sh" "$@"
