/* --help, made from the same table that the options are read by. */
#include "base/options.h"

#include "base/text.h"

#include <string.h>

enum { WIDTH = 100, HELP_COLUMN = 30 };

/* Writes `text` in lines of WIDTH columns that start at `indent`; the cursor stands at `column`. */
static void wrap(FILE *out, const char *text, size_t indent, size_t column) {
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

static void paragraphs(FILE *out, const char *text) {
    char line[2048];
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (len >= sizeof line) len = sizeof line - 1;
        memcpy(line, text, len);
        line[len] = 0;
        if (line[0] == ' ')
            fprintf(out, "%s\n", line);
        else
            wrap(out, line, 0, 0);
        text += len;
        if (*text == '\n') text++;
    }
}

static void default_of(const sn_option *option, char *out, size_t room) {
    char size[32];
    *out = 0;
    switch (option->kind) {
    case SN_OPTION_STRING:
        if (*(const char **)option->target) snprintf(out, room, " (default %s)", *(const char **)option->target);
        break;
    case SN_OPTION_SIZE:
        if (*(size_t *)option->target)
            snprintf(out, room, " (default %s)", sn_format_size(*(size_t *)option->target, size));
        break;
    case SN_OPTION_INT:
        if (*(int64_t *)option->target > 0)
            snprintf(out, room, " (default %lld)", (long long)*(int64_t *)option->target);
        break;
    case SN_OPTION_FLOAT:
        if (*(double *)option->target != 0) snprintf(out, room, " (default %g)", *(double *)option->target);
        break;
    case SN_OPTION_STRINGS:
    case SN_OPTION_FLAG:
    case SN_OPTION_BLOCKS:
        break;
    }
}

static void show_option(FILE *out, const sn_option *option) {
    char text[1024], preset[128];
    default_of(option, preset, sizeof preset);
    snprintf(text, sizeof text, "%s%s%s%s", option->help, option->kind == SN_OPTION_STRINGS ? "; may be repeated" : "",
             preset, option->required ? " (required)" : "");
    int column = fprintf(out, "  --%s%s%s", option->name, option->word ? " " : "", option->word ? option->word : "");
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    wrap(out, text, HELP_COLUMN, (size_t)column);
}

void sn_options_help(const sn_command *command, FILE *out) {
    static const struct {
        const char *name, *help;
    } common[] = {
        {"  --config FILE", "options from lines 'name = value' of a file; the command line wins over it"},
        {"  --help", "this text"},
        {"  --version", "the version"},
    };
    int column = fprintf(out, "Usage: %s", command->program);
    wrap(out, command->synopsis, sizeof "Usage: " - 1, (size_t)column);
    fputc('\n', out);
    paragraphs(out, command->about);
    for (size_t g = 0; g < command->n_groups; g++) {
        fprintf(out, "\n%s\n", command->groups[g].title);
        for (size_t i = 0; i < command->groups[g].n; i++) show_option(out, &command->groups[g].options[i]);
    }
    fprintf(out, "\n%s\n", "General:");
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        wrap(out, common[i].help, HELP_COLUMN, (size_t)fprintf(out, "%s", common[i].name));
    if (command->epilogue) {
        fputc('\n', out);
        paragraphs(out, command->epilogue);
    }
}
