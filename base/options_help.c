/* --help, made from the table that the parser reads. */
#include "base/options_private.h"

#include <string.h>

enum { WIDTH = 100, HELP_COLUMN = 30, COMMAND_COLUMN = 14, TEXT_MAX = 2048 };

/* Writes `text` in lines of WIDTH columns that begin at column `indent`; the cursor is at `column`. */
static void wrap_text(FILE *out, const char *text, size_t indent, size_t column) {
    while (*text) {
        size_t len = strcspn(text, " ");
        if (column > indent && column + 1 + len > WIDTH) {
            fputc('\n', out);
            column = 0;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        for (; column < indent; column++) fputc(' ', out);
        fprintf(out, "%.*s", (int)len, text);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_paragraphs(FILE *out, const char *text) {
    char line[TEXT_MAX];
    while (*text) {
        size_t len = sn_min_size(strcspn(text, "\n"), sizeof line - 1);
        memcpy(line, text, len);
        line[len] = 0;
        if (line[0] == ' ')
            fprintf(out, "%s\n", line);
        else
            wrap_text(out, line, 0, 0);
        text += len;
        if (*text == '\n') text++;
    }
}

static void print_exit_codes(FILE *out, const sn_exit_code *codes) {
    char text[TEXT_MAX];
    if (!*sn_exit_codes_format(codes, text, sizeof text)) return;
    fputc('\n', out);
    wrap_text(out, text, 0, 0);
}

/* "  -m, --model PATH", then the text from HELP_COLUMN on, below when the name reaches into it. */
static void print_entry(FILE *out, const char *name, const char *value, const char *text) {
    char letter = sn_option_letter(name), shown[8] = "    ";
    if (letter) snprintf(shown, sizeof shown, "-%c, ", letter);
    int column = fprintf(out, "  %s--%s%s%s", shown, name, *value ? " " : "", value);
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    wrap_text(out, text, HELP_COLUMN, (size_t)column);
}

void sn_options_help(const sn_command *command, FILE *out) {
    char value[128], text[TEXT_MAX];
    int column = fprintf(out, "Usage: %s", command->program);
    wrap_text(out, command->synopsis, sizeof "Usage: " - 1, (size_t)column);
    fputc('\n', out);
    print_paragraphs(out, command->about);
    for (size_t g = 0; g < command->n_groups; g++) {
        const sn_option_group *group = command->groups[g];
        fprintf(out, "\n%s\n", group->title);
        for (size_t i = 0; i < group->n; i++)
            if (group->options[i].help)
                print_entry(out, group->options[i].name, sn_option_value_name(&group->options[i], value, sizeof value),
                            sn_option_describe(&group->options[i], text, sizeof text));
    }
    fputs("\nGeneral:\n", out);
    for (size_t i = 0; i < SN_COMMON_OPTIONS; i++)
        print_entry(out, sn_common_options[i].name, sn_common_options[i].metavar, sn_common_options[i].help);
    if (command->notes) {
        fputc('\n', out);
        print_paragraphs(out, command->notes);
    }
    print_exit_codes(out, command->exit_codes);
}

void sn_program_help(const sn_program *program, FILE *out) {
    fprintf(out, "Usage: %s COMMAND [options]\n\n", program->name);
    print_paragraphs(out, program->about);
    fputs("\nCommands:\n", out);
    for (size_t i = 0; i < program->n_commands; i++) {
        const sn_command *c = program->commands[i];
        int column = fprintf(out, "  %s", c->program + strlen(program->name) + 1);
        wrap_text(out, c->summary, COMMAND_COLUMN, (size_t)column);
    }
    fprintf(out, "\n'%s help COMMAND' shows the options of a command, '%s --version' the version.\n", program->name,
            program->name);
    print_exit_codes(out, program->exit_codes);
}
