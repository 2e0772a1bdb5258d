/* simple_infer.c - continues a text with a model, through nothing but lib/colibri.h.
 *
 *     cc -I. examples/simple_infer.c -lcolibri -o simple_infer
 *     ./simple_infer --model-path model.bin --input "The capital of France is" --max-new-tokens 32
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/colibri.h"

struct arguments {
    const char *model_path, *input;
    uint32_t max_new_tokens;
};

static int usage(void)
{
    fputs("usage: simple_infer --model-path FILE --input TEXT [--max-new-tokens N]\n", stderr);
    return 2;
}

static bool parse(struct arguments *a, int argc, char **argv)
{
    *a = (struct arguments){ .max_new_tokens = 32 };
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--model-path")) {
            a->model_path = argv[i + 1];
        } else if (!strcmp(argv[i], "--input")) {
            a->input = argv[i + 1];
        } else if (!strcmp(argv[i], "--max-new-tokens")) {
            char *end;
            unsigned long n = strtoul(argv[i + 1], &end, 10);
            if (*end != '\0' || n == 0 || n > 1000000)
                return false;
            a->max_new_tokens = (uint32_t)n;
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && a->model_path && a->input;
}

/* Each new token: the text that became certain goes out at once. */
static int on_token(void *arg, int32_t id)
{
    const char *text;
    size_t n;

    if (colibri_decoder_feed(arg, id, &text, &n) != COLIBRI_OK)
        return 1;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return 0;
}

/* The ids of a text, owned by the caller; NULL on failure. */
static int32_t *encode(const struct colibri_model *model, const char *text, size_t *n)
{
    size_t length = strlen(text);
    int64_t count = colibri_encode(model, text, length, 0, NULL, 0);
    int32_t *ids = count < 0 ? NULL : malloc((size_t)(count + 1) * sizeof *ids);

    if (ids)
        colibri_encode(model, text, length, 0, ids, (size_t)count);
    *n = (size_t)count;
    return ids;
}

/* A decoder that has seen the prompt: what follows then continues it (with the space between). */
static bool open_decoder(struct colibri_decoder **decoder, const struct colibri_model *model,
                         const int32_t *ids, size_t n)
{
    const char *text;
    size_t n_text;
    bool ok = colibri_decoder_open(decoder, model, true) == COLIBRI_OK;

    for (size_t i = 0; ok && i < n; i++)
        ok = colibri_decoder_feed(*decoder, ids[i], &text, &n_text) == COLIBRI_OK;
    return ok;
}

static int run(const struct colibri_model *model, const struct arguments *a)
{
    struct colibri_batch_options batch_options = { .size = sizeof batch_options };
    struct colibri_generate_options how = { .size = sizeof how,
                                            .max_new_tokens = a->max_new_tokens };
    struct colibri_model_info info = { .size = sizeof info };
    struct colibri_batch *batch = NULL;
    struct colibri_session *session = NULL;
    struct colibri_decoder *decoder = NULL;
    const char *rest;
    size_t n, n_rest;
    int32_t finish;
    int status = 1;

    int32_t *ids = encode(model, a->input, &n);
    if (!ids)
        goto done;
    if (colibri_model_info(model, &info) != COLIBRI_OK)
        goto done;
    uint64_t context = (uint64_t)n + a->max_new_tokens;
    batch_options.context =
        context < info.max_positions ? (uint32_t)context : info.max_positions;
    if (colibri_batch_open(&batch, model, &batch_options) != COLIBRI_OK ||
        colibri_session_open(&session, batch, NULL) != COLIBRI_OK || /* NULL: greedy */
        !open_decoder(&decoder, model, ids, n) ||
        colibri_generate(session, ids, n, &how, on_token, decoder, &finish) != COLIBRI_OK ||
        finish == COLIBRI_FINISH_CALLBACK || /* the decoder has failed */
        colibri_decoder_flush(decoder, &rest, &n_rest) != COLIBRI_OK)
        goto done;
    fwrite(rest, 1, n_rest, stdout);
    putchar('\n');
    status = 0;
done:
    if (status != 0)
        fprintf(stderr, "simple_infer: %s\n", colibri_last_error());
    colibri_decoder_close(decoder);
    colibri_batch_close(batch); /* and its session */
    free(ids);
    return status;
}

int main(int argc, char **argv)
{
    struct arguments a;

    if (!parse(&a, argc, argv))
        return usage();
    struct colibri_model *model = colibri_load_model(a.model_path);
    if (!model) {
        fprintf(stderr, "simple_infer: %s\n", colibri_last_error());
        return 1;
    }
    int status = run(model, &a);
    colibri_unload_model(model);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("simple_infer: standard output");
        status = 1;
    }
    return status;
}
