/* Writes a model of DeepSeek-V3's block shape with random FP8 weights into a folder: for measurements, its text is
 * noise.
 *
 * Usage: made_model FOLDER [small]     an existing folder; two blocks take 12.2 GB, small ones 6 MB */
#include "tests/support/made_model.h"

#include <stdio.h>
#include <string.h>

int main(int n, char **args) {
    if (n < 2 || n > 3 || (n == 3 && strcmp(args[2], "small"))) {
        fprintf(stderr, "usage: made_model FOLDER [small]\n");
        return 2;
    }
    made_model_write(args[1], n == 3 ? &made_small : &made_deepseek_v3, MADE_FP8);
    return 0;
}
