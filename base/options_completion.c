/* A completion script for bash, made from the table that the parser reads.
 *
 * The script is one function. It finds the command, sets `options` to all that the command has, and looks at the word
 * before the cursor: after an option with words it offers these, after one with a file or folder the files, after
 * another one that takes a value nothing, and else the options. */
#include "base/options_private.h"

#include <string.h>

/* "swarm-node" -> "_swarm_node", the name of the function. */
static void function_name(const char *program, char *out, size_t capacity) {
    snprintf(out, capacity, "_%s", program);
    for (char *at = out; *at; at++)
        if (*at == '-') *at = '_';
}

static const char *command_name(const sn_program *program, const sn_command *command) {
    size_t len = strlen(program->name);
    return command->program[len] == ' ' ? command->program + len + 1 : "";
}

static void print_option_names(FILE *out, const char *name) {
    if (sn_option_letter(name)) fprintf(out, " -%c", sn_option_letter(name));
    fprintf(out, " --%s", name);
}

/* A branch for the values of an option: "--model | -m) kind=path ;;". */
static void print_value_case(FILE *out, const char *name, const char *metavar, const sn_word *words) {
    fprintf(out, "        --%s", name);
    if (sn_option_letter(name)) fprintf(out, " | -%c", sn_option_letter(name));
    fputs(") ", out);
    if (words) {
        fputs("kind=words words='", out);
        for (const sn_word *w = words; w->name; w++) fprintf(out, "%s%s", w == words ? "" : " ", w->name);
        fputc('\'', out);
    } else if (!strcmp(metavar, "PATH") || !strcmp(metavar, "FILE")) {
        fputs("kind=path", out);
    } else if (!strcmp(metavar, "FOLDER")) {
        fputs("kind=folder", out);
    } else {
        fputs("kind=none", out);
    }
    fputs(" ;;\n", out);
}

static void print_command(FILE *out, const sn_program *program, const sn_command *command) {
    static const sn_word flag_words[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
    size_t n = sn_command_n_options(command);
    fprintf(out, "    '%s')\n      options='", command_name(program, command));
    for (size_t i = 0; i < n; i++)
        if (sn_command_option(command, i)->help) print_option_names(out, sn_command_option(command, i)->name);
    for (size_t i = 0; i < SN_COMMON_OPTIONS; i++) print_option_names(out, sn_common_options[i].name);
    fputs("'\n", out);
    if (command->max_positionals) fputs("      [ \"${current:0:1}\" = - ] || kind=path\n", out);
    fputs("      case $previous in\n", out);
    for (size_t i = 0; i < n; i++) {
        const sn_option *option = sn_command_option(command, i);
        if (option->kind != SN_OPTION_FLAG && option->help)
            print_value_case(out, option->name, option->metavar ? option->metavar : "", option->words);
    }
    print_value_case(out, sn_common_options[0].name, sn_common_options[0].metavar, NULL);
    fputs("      esac\n", out);
    bool flags = false;
    for (size_t i = 0; i < n; i++) { /* a flag takes a value after "=" only */
        const sn_option *option = sn_command_option(command, i);
        if (option->kind != SN_OPTION_FLAG) continue;
        if (!flags) fputs("      [ \"$equals\" = no ] || case $previous in\n", out);
        flags = true;
        print_value_case(out, option->name, "", flag_words);
    }
    if (flags) fputs("      esac\n", out);
    fputs("      ;;\n", out);
}

void sn_program_completion(const sn_program *program, FILE *out) {
    char function[64];
    bool commands = program->n_commands && *command_name(program, program->commands[0]);
    function_name(program->name, function, sizeof function);
    fprintf(out, "# Completion of %s %s for bash, made by: %s --help=completion\n%s() {\n", program->name, SN_VERSION,
            program->name, function);
    fputs("  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command='' options=''\n"
          "  local kind=options words='' equals=no\n"
          "  COMPREPLY=()\n"
          "  # bash splits --name=value into three words\n"
          "  if [ \"$current\" = = ]; then\n"
          "    current='' equals=yes\n"
          "  elif [ \"$previous\" = = ] && [ \"$COMP_CWORD\" -ge 2 ]; then\n"
          "    previous=${COMP_WORDS[COMP_CWORD-2]} equals=yes\n"
          "  fi\n",
          out);
    if (commands) {
        fputs("  local commands='", out);
        for (size_t i = 0; i < program->n_commands; i++)
            fprintf(out, "%s ", command_name(program, program->commands[i]));
        fputs("help'\n"
              "  if [ \"$COMP_CWORD\" = 1 ] || { [ \"$COMP_CWORD\" = 2 ] && [ \"${COMP_WORDS[1]}\" = help ]; }; then\n"
              "    [ \"$COMP_CWORD\" = 2 ] || commands+=' --help --version'\n"
              "    mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$current\")\n"
              "    return\n"
              "  fi\n"
              "  command=${COMP_WORDS[1]}\n",
              out);
    }
    fputs("  case $command in\n", out);
    for (size_t i = 0; i < program->n_commands; i++) print_command(out, program, program->commands[i]);
    fputs("  esac\n"
          "  case $kind in\n"
          "    path) mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
          "    folder) mapfile -t COMPREPLY < <(compgen -d -- \"$current\") ;;\n"
          "    words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\") ;;\n"
          "    options) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\") ;;\n"
          "  esac\n"
          "}\n",
          out);
    fprintf(out, "complete -o filenames -F %s %s\n", function, program->name);
}
