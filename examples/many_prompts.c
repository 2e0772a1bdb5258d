/* many_prompts.c - continues several texts at once. Answers come out as they end, with the number
 * of their prompt.
 *
 *     cc -I. examples/many_prompts.c -lcolibri -o many_prompts
 *     ./many_prompts model.bin "The capital of France is" "The capital of Japan is"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/colibri.h"

struct prompt {
    int number;
    char *text; /* of the answer so far */
    size_t n;
    int failed;
};

/* Both callbacks are called by colibri_scheduler_step. */
static void append(struct prompt *p, const char *text, size_t n)
{
    char *more = realloc(p->text, p->n + n + 1);

    if (!more) {
        p->failed = 1;
        return;
    }
    memcpy(more + p->n, text, n);
    p->n += n;
    more[p->n] = '\0';
    p->text = more;
}

static int on_token(const struct colibri_token_event *e)
{
    struct prompt *p = e->arg;

    append(p, e->text, e->n_text);
    return p->failed;
}

static void on_finish(const struct colibri_finish_event *e)
{
    struct prompt *p = e->arg;

    append(p, e->text, e->n_text);
    p->failed |= e->finish == COLIBRI_FINISH_FAILED;
    if (e->error)
        fprintf(stderr, "many_prompts: prompt %d: %s\n", p->number, e->error->text);
    else
        printf("%d:%s [%u tokens, %.2f s]\n", p->number, p->text ? p->text : "", e->new_tokens,
               e->queue_seconds + e->prefill_seconds + e->decode_seconds);
}

/* Any thread may ask, also while another steps. */
static int submit(struct colibri_scheduler *s, const struct colibri_model *model, const char *text,
                  struct prompt *p)
{
    int32_t ids[4096];
    int64_t n = colibri_encode(model, text, strlen(text), 0, ids, 4096);
    const struct colibri_request request = {
        .size = sizeof request,
        .ids = ids,
        .n_ids = (size_t)(n < 4096 ? n : 4096),
        .max_new_tokens = 24,
        .on_token = on_token,
        .on_finish = on_finish,
        .arg = p,
    };

    return n < 0 ? colibri_last_error_info()->code : colibri_scheduler_submit(s, &request, NULL);
}

static int run(const struct colibri_model *model, char **text, int n, struct prompt *prompt)
{
    struct colibri_scheduler *s;
    size_t n_left = 1;
    int failed = 0;

    if (colibri_scheduler_open(&s, model, NULL) != COLIBRI_OK) {
        fprintf(stderr, "many_prompts: %s\n", colibri_last_error());
        return 1;
    }
    for (int i = 0; i < n; i++) {
        prompt[i].number = i + 1;
        if (submit(s, model, text[i], &prompt[i]) != COLIBRI_OK) {
            fprintf(stderr, "many_prompts: prompt %d: %s\n", i + 1, colibri_last_error());
            prompt[i].failed = 1;
        }
    }
    while (n_left > 0) /* a server would wait for more: colibri_scheduler_wait */
        if (colibri_scheduler_step(s, &n_left) != COLIBRI_OK)
            fprintf(stderr, "many_prompts: %s\n", colibri_last_error());
    colibri_scheduler_close(s);
    for (int i = 0; i < n; i++) {
        failed |= prompt[i].failed;
        free(prompt[i].text);
    }
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: many_prompts MODEL PROMPT...\n", stderr);
        return 2;
    }
    struct colibri_model *model = colibri_load_model(argv[1]);
    struct prompt *prompt = calloc((size_t)argc - 2, sizeof *prompt);
    if (!model || !prompt) {
        fprintf(stderr, "many_prompts: %s\n", model ? "out of memory" : colibri_last_error());
        colibri_unload_model(model);
        free(prompt);
        return 1;
    }
    int status = run(model, argv + 2, argc - 2, prompt);
    colibri_unload_model(model);
    free(prompt);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("many_prompts: standard output");
        status = 1;
    }
    return status;
}
