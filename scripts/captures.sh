#!/usr/bin/env bash
# Makes the pictures of the terminal in docs/: runs `swarm chat` in tmux with the real model, types, waits for what appears, and
# draws the screen. The answers are greedy, and the same bits on every machine, so a picture changes only with the program.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_packages tmux python3
model=$(real_model) || die "the pictures need the real model"
[ -x build/swarm ] || die "build/swarm is missing: build it first"
work=$(mktemp -d)
terminal() { tmux -L "captures$$" -f /dev/null "$@"; }
trap 'terminal kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

# await TEXT [N]: until the screen shows it in N lines (1), at most two minutes.
await() {
  local i
  for ((i = 0; i < 1200; i++)); do
    [ "$(terminal capture-pane -p | grep -cF -- "$1")" -ge "${2:-1}" ] && return 0
    sleep 0.1
  done
  terminal capture-pane -p >&2
  die "'$1' does not appear"
}
enter() { terminal send-keys -l -- "$1"; terminal send-keys Enter; }
# picture FILE: the screen as it stands.
picture() {
  terminal capture-pane -e -p >"$work/screen"
  python3 scripts/terminal_svg.py "$1" --screen "$work/screen"
  say "$1"
}
# chat LINES: a chat at a terminal of so many lines.
chat() {
  terminal kill-server 2>/dev/null || true
  ln -sf "$model" "$work/model.gguf"
  terminal new-session -d -x 116 -y "$1" "env XDG_STATE_HOME=$work PS1='\$ ' bash --norc"
  enter "cd $work; PATH=$root/build:\$PATH; clear"
  enter "swarm chat --model model.gguf --local all --temperature 0"
  await "/help lists commands"
}

chat 24
enter "List three fruits. Write each name in **bold**."
await "tok/s]"
enter "/reset"
await "a new conversation"
enter "Show me a short Python function that adds two numbers."
await "tok/s]" 2
picture docs/chat.svg

chat 25
enter "/help"
await "Tab completes."
enter "/set temprature 0.5"
await "did you mean temperature?"
terminal send-keys -l -- "/re"
terminal send-keys Tab
await "/reset  /retry"
picture docs/chat-commands.svg
