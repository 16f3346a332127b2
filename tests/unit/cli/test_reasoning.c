/* Thoughts apart from answers, in a stream that is cut anywhere. */
#include "cli/terminal/reasoning.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "T:thought|A:answer|" */
typedef struct parts {
    char text[512];
    int last;
} parts;

static sn_status add(void *ctx, bool thought, const char *text, size_t n, sn_err *err) {
    parts *p = ctx;
    (void)err;
    size_t at = strlen(p->text);
    if (p->last != 1 + thought) snprintf(p->text + at, sizeof p->text - at, "%s", thought ? "|T:" : "|A:");
    p->last = 1 + thought;
    strncat(p->text, text, n);
    return SN_OK;
}

static void push(sn_reasoning *r, const char *text, size_t cut) {
    sn_err err = {0};
    size_t n = strlen(text);
    cut = cut < n ? cut : n;
    cr_assert_eq(sn_reasoning_push(r, text, cut, &err), SN_OK);
    cr_assert_eq(sn_reasoning_push(r, text + cut, n - cut, &err), SN_OK);
}

static void expect_parts(bool thinks, const char *text, const char *expected) {
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        parts p = {0};
        sn_err err = {0};
        sn_reasoning r = {.on_text = add, .ctx = &p};
        sn_reasoning_begin(&r, thinks);
        push(&r, text, cut);
        cr_assert_eq(sn_reasoning_end(&r, &err), SN_OK);
        cr_expect_str_eq(p.text, expected, "cut at %zu: %s", cut, text);
    }
}

Test(reasoning, tags_part_the_thought_from_the_answer) {
    expect_parts(false, "<think>\nhm < 3 </thin> so\n</think>\n\nFour. <b>", "|T:hm < 3 </thin> so\n|A:Four. <b>");
    expect_parts(false, "\n <think></think>Four.", "|A:Four.");
    expect_parts(true, "hm</think>Four.", "|T:hm|A:Four.");
    expect_parts(false, "<think>never ends", "|T:never ends");
}

Test(reasoning, text_without_a_thought_is_the_answer) {
    expect_parts(false, "The tag <think> begins a thought, </think> ends it.",
                 "|A:The tag <think> begins a thought, </think> ends it.");
    expect_parts(false, "<thing>", "|A:<thing>");
    expect_parts(false, "<thi", "|A:<thi");
    expect_parts(false, "", "");
}

Test(reasoning, channels_part_the_thought_from_the_answer) {
    for (size_t cut = 0; cut < 9; cut++) {
        parts p = {0};
        sn_err err = {0};
        sn_reasoning r = {.on_text = add, .ctx = &p};
        static const char *const stream[] = {"<|channel|>", "analysis",    "<|message|>", "hm </think>",
                                             "<|end|>",     "<|start|>",   "assistant",   "<|channel|>",
                                             "final",       "<|message|>", "Four.",       "<|return|>"};
        sn_reasoning_begin(&r, false);
        for (size_t i = 0; i < sizeof stream / sizeof *stream; i++)
            if (stream[i][1] == '|')
                cr_assert_eq(sn_reasoning_special(&r, stream[i], &err), SN_OK);
            else
                push(&r, stream[i], cut);
        cr_assert_eq(sn_reasoning_end(&r, &err), SN_OK);
        cr_expect(!strncmp(p.text, "|T:hm ", 6) && strstr(p.text, "|A:Four."), "%s", p.text);
    }
}

Test(reasoning, tags_may_be_special_tokens_and_messages_may_lack_a_channel) {
    parts p = {0};
    sn_err err = {0};
    sn_reasoning r = {.on_text = add, .ctx = &p};
    sn_reasoning_begin(&r, false);
    cr_assert_eq(sn_reasoning_special(&r, "<think>", &err), SN_OK);
    push(&r, "hm", 1);
    cr_assert_eq(sn_reasoning_special(&r, "</think>", &err), SN_OK);
    push(&r, "Four.", 1);
    cr_assert_eq(sn_reasoning_special(&r, "<|start|>", &err), SN_OK);
    push(&r, "assistant", 1);
    cr_assert_eq(sn_reasoning_special(&r, "<|message|>", &err), SN_OK);
    push(&r, " Five.", 1);
    cr_assert_eq(sn_reasoning_end(&r, &err), SN_OK);
    cr_expect_str_eq(p.text, "|T:hm|A:Four.Five.");
}
