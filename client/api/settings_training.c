/* The tables of options of a training. */
#include "client/api/settings.h"

#include "blocks/adapter.h"

static const sn_option data_options[] = {
    SN_OPT_STRING("data", "FILE", &sn_program_settings.training.data,
                  "training data: a .txt file, or a .jsonl file with {\"text\"}, {\"prompt\", \"completion\"}, "
                  "{\"messages\"} or {\"text\", \"label\"} on each line"),
    SN_OPT_STRING("eval-data", "FILE", &sn_program_settings.training.eval_data,
                  "evaluation data in the same format: the loss over it is shown before and after training"),
    SN_OPT_INT("seq", "N", &sn_program_settings.training.seq, 2, 1 << 20,
               "limit of tokens in a sequence; longer examples are cut"),
};
static const sn_option method_options[] = {
    SN_OPT_ENUM("method", &sn_program_settings.training.method, sn_method_words,
                "what is trained: virtual tokens before the text (prompt), also before each block (deep-prompt), "
                "low-rank adapters of the blocks' matrices (lora), or a classifier after the last block (head)"),
    SN_OPT_INT("virtual-tokens", "N", &sn_program_settings.training.virtual_tokens, 1, SN_PROMPT_TOKENS_MAX,
               "virtual tokens of prompt and deep-prompt"),
    SN_OPT_INT("rank", "N", &sn_program_settings.training.rank, 1, SN_LORA_RANK_MAX, "rank of LoRA"),
    SN_OPT_FLOAT("alpha", "A", &sn_program_settings.training.alpha, 1e-6, 1e6,
                 "the result of LoRA is scaled by A / rank (default: twice the rank)"),
    SN_OPT_STRING("targets", "LIST", &sn_program_settings.training.targets,
                  "matrices that get LoRA adapters: q, k, v, o, gate, up, down, or all"),
};
static const sn_option training_options[] = {
    SN_OPT_INT("steps", "N", &sn_program_settings.training.steps, 1, 1 << 30, "training steps (default: one epoch)"),
    SN_OPT_INT("epochs", "N", &sn_program_settings.training.epochs, 1, 1 << 20,
               "passes over the data, instead of --steps"),
    SN_OPT_INT("batch", "N", &sn_program_settings.training.batch, 1, 1024, "sequences in a micro-batch"),
    SN_OPT_INT("accumulate", "N", &sn_program_settings.training.accumulate, 1, 1024, "micro-batches in a step"),
    SN_OPT_FLOAT("lr", "R", &sn_program_settings.training.lr, 0, 100,
                 "learning rate (default: 0.03 for prompt and deep-prompt, 0.001 for lora, 0.01 for head)"),
    SN_OPT_ENUM("schedule", &sn_program_settings.training.schedule, sn_schedule_words, "schedule of the learning rate"),
    SN_OPT_INT("warmup-steps", "N", &sn_program_settings.training.warmup_steps, 0, 1 << 30,
               "steps in which the learning rate grows from 0 to its full value"),
    SN_OPT_FLOAT("clip", "N", &sn_program_settings.training.clip, 0, 1e9,
                 "limit of the norm of a step's gradients; 0: no limit"),
    SN_OPT_FLOAT("weight-decay", "W", &sn_program_settings.training.weight_decay, 0, 10, "weight decay of AdamW"),
    SN_OPT_INT("seed", "S", &sn_program_settings.training.seed, 0, 1LL << 53,
               "seed of the initial parameters and of the order of the data"),
    SN_OPT_STRING("resume", "FOLDER", &sn_program_settings.training.resume,
                  "continue from the newest checkpoint in this folder of an earlier training"),
};
const sn_option_group sn_group_data = SN_OPTION_GROUP("Data:", data_options);
const sn_option_group sn_group_method = SN_OPTION_GROUP("Adapter:", method_options);
const sn_option_group sn_group_training = SN_OPTION_GROUP("Training:", training_options);
