/* Names by which models are fetched. */
#include "sharing/hub/hub.h"
#include "sharing/hub/model_name.h"

#include <criterion/criterion.h>
#include <string.h>

Test(model_name, has_repository_file_and_revision) {
    static const struct {
        const char *text, *repo, *file, *revision, *url;
    } cases[] = {
        {"org/name", "org/name", "", "main", ""},
        {"org/name:a.gguf", "org/name", "a.gguf", "main", ""},
        {"Org-1/na.me_2:sub/a b.gguf@v1", "Org-1/na.me_2", "sub/a b.gguf", "v1", ""},
        {"org/name@refs/pr/1", "org/name", "", "refs/pr/1", ""},
        {"https://host:1/x/a.gguf?sig=1@2", "", "", "main", "https://host:1/x/a.gguf?sig=1@2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_model_name n;
        sn_err err = {0};
        cr_expect(sn_model_name_is_remote(cases[i].text), "%s", cases[i].text);
        cr_assert_eq(sn_model_name_parse(cases[i].text, &n, &err), SN_OK, "%s: %s", cases[i].text, err.text);
        cr_expect_str_eq(n.repo, cases[i].repo);
        cr_expect_str_eq(n.file, cases[i].file);
        cr_expect_str_eq(n.revision, cases[i].revision);
        cr_expect_str_eq(n.url, cases[i].url);
    }
}

Test(model_name, paths_are_no_names) {
    static const char *const paths[] = {"model.gguf", "/a/b", "./a", "../a", "a/b/c", "a//b", "", "a/", "/tmp", ".a/b"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        cr_expect(!sn_model_name_is_remote(paths[i]), "%s", paths[i]);
}

Test(model_name, refuses_what_would_leave_the_cache) {
    static const char *const wrong[] = {"o/n:../x.gguf", "o/n:/x.gguf",
                                        "o/n:a/../x",    "o/n:a/.x",
                                        "o/n:",          "o/n:a\nb",
                                        "o/n@",          "o/n@..",
                                        "o/n@a b",       "https://user:word@host/a.gguf",
                                        "http://h/a b"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sn_model_name n;
        cr_expect_eq(sn_model_name_parse(wrong[i], &n, NULL), SN_REFUSED, "%s", wrong[i]);
    }
    cr_expect(!sn_hub_path_is_safe("a/") && !sn_hub_path_is_safe("a//b") && sn_hub_path_is_safe("a/b-c.gguf"));
}

Test(model_name, progress_of_a_fetch_has_bytes_rate_and_time_left) {
    char text[SN_HUB_PROGRESS_SIZE];
    const sn_hub_progress progress = {"block 12", 1 << 20, 4 << 20, 1 << 19};
    cr_expect_str_eq(sn_hub_progress_text(&progress, text),
                     "fetching block 12: 1.0 MiB of 4.0 MiB, 512.0 KiB/s, 6 s left");
}
