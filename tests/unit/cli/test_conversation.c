/* The messages of a chat: what commands do to them, and what a file gives back. */
#include "cli/chat_conversation.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sn_err err;

static json_t *conversation_of_two(void) {
    json_t *messages = json_array();
    static const char *const turns[][2] = {
        {"user", "What?"}, {"assistant", "That."}, {"user", "Why?"}, {"assistant", "So."}};
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(sn_conversation_add(messages, turns[i][0], turns[i][1], strlen(turns[i][1]), &err), SN_OK);
    return messages;
}

static const char *content(const json_t *messages, size_t i) {
    return json_string_value(json_object_get(json_array_get(messages, i), "content"));
}

Test(conversation, the_last_turn_can_be_removed_and_the_system_message_stays) {
    json_t *messages = conversation_of_two();
    cr_expect_eq(sn_conversation_turns(messages), 2);
    cr_expect_eq(sn_conversation_last_turn(messages), 2);
    cr_expect_eq(sn_conversation_set_system(messages, "Be brief.", &err), SN_OK);
    cr_expect_eq(sn_conversation_set_system(messages, "Be long.", &err), SN_OK);
    cr_expect_str_eq(sn_conversation_system(messages), "Be long.");
    cr_expect_eq(json_array_size(messages), 5);
    sn_conversation_cut(messages, sn_conversation_last_turn(messages));
    cr_expect_eq(json_array_size(messages), 3);
    cr_expect_str_eq(content(messages, 2), "That.");
    sn_conversation_reset(messages);
    cr_expect_eq(json_array_size(messages), 1);
    cr_expect_eq(sn_conversation_last_turn(messages), 1, "there is no turn");
    cr_expect_eq(sn_conversation_set_system(messages, NULL, &err), SN_OK);
    cr_expect_eq(json_array_size(messages), 0);
    cr_expect_null(sn_conversation_system(messages));
    json_decref(messages);
}

Test(conversation, text_that_is_no_utf8_is_refused_and_any_other_is_kept) {
    json_t *messages = json_array();
    cr_expect_eq(sn_conversation_add(messages, "user", "a\xff", 2, &err), SN_REFUSED);
    cr_expect_eq(json_array_size(messages), 0);
    cr_expect_eq(sn_conversation_add(messages, "user", "a\0b", 3, &err), SN_OK);
    cr_expect_eq(json_string_length(json_object_get(json_array_get(messages, 0), "content")), 3);
    json_decref(messages);
}

Test(conversation, a_file_gives_it_back_and_is_private) {
    char folder[] = "/tmp/sn_conversation_XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/talk.json", folder);
    json_t *messages = conversation_of_two(), *read;
    cr_assert_eq(sn_conversation_add(messages, "user", "a\0b", 3, &err), SN_OK);
    umask(0);
    cr_assert_eq(sn_conversation_save(messages, path, false, &err), SN_OK, "%s", err.text);
    struct stat info;
    cr_assert_eq(stat(path, &info), 0);
    cr_expect_eq(info.st_mode & 0777, 0600, "others can read it: %o", info.st_mode & 0777);
    cr_assert_eq(sn_conversation_load(path, &read, &err), SN_OK, "%s", err.text);
    cr_expect(json_equal(read, messages));
    json_decref(read);
    cr_expect_eq(sn_conversation_save(messages, path, false, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "exists"), "%s", err.text);
    cr_expect_eq(sn_conversation_save(messages, path, true, &err), SN_OK);
    static const char *const wrong[] = {"", "{}", "[1]", "{\"messages\": [{\"role\": \"user\"}]}",
                                        "[{\"content\": \"x\"}]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        FILE *file = fopen(path, "w");
        cr_assert(file && fputs(wrong[i], file) >= 0 && !fclose(file));
        cr_expect_eq(sn_conversation_load(path, &read, &err), SN_REFUSED, "%s", wrong[i]);
        cr_expect_null(read);
    }
    unlink(path);
    cr_expect_eq(sn_conversation_load(path, &read, &err), SN_REFUSED);
    json_decref(messages);
    rmdir(folder);
}
