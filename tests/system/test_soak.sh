#!/usr/bin/env bash
# A short soak test (tests/soak.sh; longer ones by hand): nodes come and go, all texts are correct, none is lost, memory is constant.
SOAK_SECONDS=${SOAK_SECONDS:-40} exec bash "$(dirname "${BASH_SOURCE[0]}")/../soak.sh" "$@"
