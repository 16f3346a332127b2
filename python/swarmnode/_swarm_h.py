"""Declarations of include/swarm.h. Made by scripts/python_binding.py, not by hand."""
# fmt: off
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

SWARM_OK = 0
SWARM_RETRY = 1
SWARM_REBUILD = 2
SWARM_REFUSED = 3
SWARM_STOP = 4
SWARM_CANCELLED = 5
SWARM_TEXT_BEGINS = 1
SWARM_TEXT_SPECIAL = 2
SWARM_TEXT_NO_BOS = 4
SWARM_ANSWER_ENDS = 1
SWARM_ANSWER_THINKS = 2
SWARM_ANSWER_CONTENT = 1
SWARM_ANSWER_THOUGHT = 2
SWARM_ANSWER_CALL = 3
SWARM_ANSWER_ARGUMENTS = 4
SWARM_EVENT_PROGRESS = 1
SWARM_EVENT_TOKEN = 2
SWARM_EVENT_TEXT = 3
SWARM_EVENT_RETRACT = 4
SWARM_EVENT_FAILOVER = 5
SWARM_EVENT_MOVE = 6
SWARM_EVENT_AUDIT = 7

swarm_event_callback = CFUNCTYPE(c_int, c_void_p, c_void_p)
swarm_logits_callback = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)

# name: (result, parameters)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "swarm_version": (c_char_p, []),
    "swarm_free": (None, [c_void_p]),
    "swarm_error_code": (c_int, [c_void_p]),
    "swarm_error_text": (c_char_p, [c_void_p]),
    "swarm_error_retry_after_ms": (c_int64, [c_void_p]),
    "swarm_error_reason": (c_char_p, [c_void_p]),
    "swarm_error_free": (None, [c_void_p]),
    "swarm_options_new": (c_void_p, []),
    "swarm_options_set": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]),
    "swarm_options_free": (None, [c_void_p]),
    "swarm_options_describe": (c_int, [c_char_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_cancel_new": (c_void_p, []),
    "swarm_cancel_set": (None, [c_void_p]),
    "swarm_cancel_clear": (None, [c_void_p]),
    "swarm_cancel_free": (None, [c_void_p]),
    "swarm_connect": (c_int, [c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_disconnect": (None, [c_void_p]),
    "swarm_connection_status": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_open": (c_int, [c_char_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_model_close": (None, [c_void_p]),
    "swarm_model_describe": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_blocks": (c_int32, [c_void_p]),
    "swarm_model_width": (c_int32, [c_void_p]),
    "swarm_model_vocab": (c_int32, [c_void_p]),
    "swarm_model_context": (c_int32, [c_void_p]),
    "swarm_model_tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_detokenize": (c_int, [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_token_bytes": (c_int, [c_void_p, c_int32, c_int, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_ends": (c_int, [c_void_p, c_int32]),
    "swarm_model_render_chat": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_render_parts": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_prompt_thinks": (c_int, [c_void_p, c_char_p, c_size_t]),
    "swarm_model_answer_marks": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_model_read_answer": (c_int, [c_void_p, c_char_p, c_size_t, c_int, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_answer_open": (c_int, [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_answer_close": (None, [c_void_p]),
    "swarm_answer_add": (c_int, [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p)]),
    "swarm_answer_text": (c_void_p, [c_void_p, c_int, c_size_t, POINTER(c_size_t)]),
    "swarm_model_embed": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "swarm_model_logits": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "swarm_model_logprob": (c_int, [c_void_p, c_void_p, c_int32, POINTER(c_double), c_size_t, c_void_p, POINTER(c_double), POINTER(c_void_p)]),
    "swarm_model_norm": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "swarm_model_logits_backward": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_adapter_open": (c_int, [c_void_p, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_adapter_close": (None, [c_void_p]),
    "swarm_adapter_warning": (c_char_p, [c_void_p]),
    "swarm_event_get_kind": (c_int, [c_void_p]),
    "swarm_event_text": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "swarm_event_number": (c_double, [c_void_p, c_char_p]),
    "swarm_event_top": (c_size_t, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_session_open": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_session_close": (None, [c_void_p]),
    "swarm_session_on_event": (None, [c_void_p, swarm_event_callback, c_void_p]),
    "swarm_session_want_events": (None, [c_void_p, c_uint64]),
    "swarm_session_on_logits": (None, [c_void_p, swarm_logits_callback, c_void_p]),
    "swarm_session_generate": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_session_append": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "swarm_session_sample": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_session_tokens": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "swarm_session_rewind": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "swarm_session_forward": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_session_save": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "swarm_session_load": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]),
    "swarm_session_extra": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "swarm_session_audit": (c_int, [c_void_p, POINTER(c_void_p)]),
    "swarm_session_poll": (c_int, [c_void_p, POINTER(c_void_p)]),
    "swarm_session_describe": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p)]),
    "swarm_blocks_open": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_blocks_close": (None, [c_void_p]),
    "swarm_blocks_parameters": (c_size_t, [c_void_p]),
    "swarm_blocks_set": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_blocks_get": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_blocks_adapter": (c_int, [c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_blocks_save": (c_int, [c_void_p, c_void_p, c_char_p, POINTER(c_void_p)]),
    "swarm_blocks_forward": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_blocks_backward": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "swarm_training_open": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "swarm_training_close": (None, [c_void_p]),
    "swarm_training_step": (c_int, [c_void_p, POINTER(c_double), POINTER(c_int), POINTER(c_void_p)]),
    "swarm_training_evaluate": (c_int, [c_void_p, POINTER(c_double), POINTER(c_void_p)]),
    "swarm_training_checkpoint": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "swarm_training_save": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
}
