/* Man pages (roff, the macros of man(7), section 1), made from the table that the parser reads. `man -l` shows one. */
#include "base/options_private.h"

#include <string.h>

/* Text between macros: "-" is a minus sign that can be copied, "\" stands for itself, and a line never begins as a
 * request of roff does. */
static void man_text(FILE *out, const char *text, size_t len) {
    if (len && (*text == '.' || *text == '\'')) fputs("\\&", out);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void man_line(FILE *out, const char *text) {
    man_text(out, text, strlen(text));
    fputc('\n', out);
}

/* Paragraphs as sn_command has them; lines that begin with a space are set as they are. */
static void man_paragraphs(FILE *out, const char *text) {
    bool literal = false, ended = true; /* ended: the paragraph before is */
    while (*text) {
        size_t len = strcspn(text, "\n");
        bool indented = *text == ' ';
        if (indented != literal) fputs(indented ? ".PP\n.nf\n" : ".fi\n", out);
        if (!len)
            ended = true;
        else if (!indented && ended)
            fputs(".PP\n", out);
        else if (!indented)
            fputs(".br\n", out);
        if (len) {
            man_text(out, text, len);
            fputc('\n', out);
            ended = false;
        }
        literal = indented;
        text += len;
        if (*text == '\n') text++;
    }
    if (literal) fputs(".fi\n", out);
}

/* "swarm generate" -> "swarm-generate", the page's name. */
static void page_name(const char *program, char *out, size_t capacity) {
    snprintf(out, capacity, "%s", program);
    for (char *at = out; *at; at++)
        if (*at == ' ') *at = '-';
}

static void man_head(FILE *out, const char *program, const char *summary) {
    char name[64], upper[64];
    page_name(program, name, sizeof name);
    size_t i = 0;
    for (; name[i]; i++) upper[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    upper[i] = 0;
    fprintf(out, ".TH \"%s\" 1 \"\" \"swarm-node %s\" \"User Commands\"\n.SH NAME\n", upper, SN_VERSION);
    man_text(out, name, strlen(name));
    fputs(" \\- ", out);
    man_line(out, summary);
}

static void man_option(FILE *out, const char *name, const char *value, const char *text) {
    char letter = sn_option_letter(name);
    fputs(".TP\n", out);
    if (letter) fprintf(out, "\\fB\\-%c\\fR, ", letter);
    fputs("\\fB\\-\\-", out);
    man_text(out, name, strlen(name));
    fputs("\\fR", out);
    if (*value) {
        fputs(" \\fI", out);
        man_text(out, value, strlen(value));
        fputs("\\fR", out);
    }
    fputc('\n', out);
    man_line(out, text);
}

static void man_exit_codes(FILE *out, const sn_exit_code *codes) {
    if (codes) fputs(".SH EXIT STATUS\n", out);
    for (; codes && codes->meaning; codes++) {
        fprintf(out, ".TP\n\\fB%d\\fR\n", codes->code);
        man_line(out, codes->meaning);
    }
}

/* Titles of groups end with a colon in --help, here they are headings. */
static void man_group_title(FILE *out, const char *title) {
    size_t len = strlen(title);
    fputs(".SS ", out);
    man_text(out, title, len && title[len - 1] == ':' ? len - 1 : len);
    fputc('\n', out);
}

void sn_options_man(const sn_command *command, const char *see_also, FILE *out) {
    char value[128], text[2048];
    man_head(out, command->program, command->summary);
    fputs(".SH SYNOPSIS\n\\fB", out);
    man_text(out, command->program, strlen(command->program));
    fputs("\\fR ", out);
    man_line(out, command->synopsis);
    fputs(".SH DESCRIPTION\n", out);
    man_paragraphs(out, command->about);
    fputs(".SH OPTIONS\n", out);
    for (size_t g = 0; g < command->n_groups; g++) {
        const sn_option_group *group = command->groups[g];
        man_group_title(out, group->title);
        for (size_t i = 0; i < group->n; i++)
            if (group->options[i].help)
                man_option(out, group->options[i].name, sn_option_value_name(&group->options[i], value, sizeof value),
                           sn_option_describe(&group->options[i], text, sizeof text));
    }
    man_group_title(out, "General:");
    for (size_t i = 0; i < SN_COMMON_OPTIONS; i++)
        man_option(out, sn_common_options[i].name, sn_common_options[i].metavar, sn_common_options[i].help);
    if (command->notes) {
        fputs(".SH NOTES\n", out);
        man_paragraphs(out, command->notes);
    }
    man_exit_codes(out, command->exit_codes);
    if (!see_also) return;
    fputs(".SH SEE ALSO\n", out);
    for (size_t len; *see_also; see_also += len + (see_also[len] == ' ')) {
        len = strcspn(see_also, " ");
        fputs("\\fB", out);
        man_text(out, see_also, len);
        fprintf(out, "\\fR(1)%s\n", see_also[len] ? "," : "");
    }
}

void sn_program_man(const sn_program *program, FILE *out) {
    char name[64];
    man_head(out, program->name, program->summary);
    fputs(".SH SYNOPSIS\n\\fB", out);
    man_text(out, program->name, strlen(program->name));
    fputs("\\fR \\fICOMMAND\\fR [options]\n.SH DESCRIPTION\n", out);
    man_paragraphs(out, program->about);
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 0; i < program->n_commands; i++) {
        const sn_command *c = program->commands[i];
        page_name(c->program, name, sizeof name);
        fputs(".TP\n\\fB", out);
        man_text(out, c->program, strlen(c->program));
        fputs("\\fR\n", out);
        man_text(out, c->summary, strlen(c->summary));
        fputs("; see \\fB", out);
        man_text(out, name, strlen(name));
        fputs("\\fR(1)\n", out);
    }
    man_exit_codes(out, program->exit_codes);
}
