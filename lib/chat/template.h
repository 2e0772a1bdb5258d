/* template.h - chat templates: Jinja as published models use it.
 *
 * A template is parsed once into a compact tree and rendered any number of times, from several
 * threads at once. The language is Jinja 3.1 with the settings of transformers (trim_blocks,
 * lstrip_blocks, loop controls, `generation`, an immutable sandbox); what is not known is refused
 * when the template is parsed, with its name, line, column and the word. Templates and
 * conversations are hostile input: steps, memory and depth are limited.
 *
 * Every character of a rendered text has an origin: the template (its text and its string literals,
 * and the variables that the publisher gives, such as bos_token) or a value of the conversation.
 * Only in the former is a special token one. */
#ifndef CLB_CHAT_TEMPLATE_H
#define CLB_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

struct clb_template;

/* `name` is for messages; text and name are copied. CLB_BAD_INPUT: not a template;
 * CLB_UNSUPPORTED: Jinja that is not supported. */
bool clb_template_parse(struct clb_template **out, struct clb_str text, const char *name,
                        struct clb_err *err);
void clb_template_free(struct clb_template *t);

struct clb_render_request {
    /* An object: messages (an array), and if wanted tools, documents, add_generation_prompt (true),
     * and chat_template_kwargs or kwargs (an object of further variables). */
    struct clb_str json;
    const char *json_name; /* for messages */
    struct clb_str vars;   /* an object of variables that belong to the template; n 0: none */
    /* For tests of templates: `json` may also have vars and now, other keys are ignored, and
     * messages are whatever they are. Else each message is an object with a role. */
    bool lenient;
};

struct clb_rendered {
    struct clb_text text;   /* UTF-8 */
    struct clb_text origin; /* as long: 1 for a byte of the template, 0 for one of a value */
    struct clb_text raised; /* what the template gave to raise_exception; n 0: it did not */
};

/* Appends to nothing: *out is set anew; free it in any case. A template that refuses the
 * conversation (raise_exception) is CLB_BAD_INPUT. */
bool clb_template_render(const struct clb_template *t, const struct clb_render_request *request,
                         struct clb_rendered *out, struct clb_err *err);
void clb_rendered_free(struct clb_rendered *r);

#endif
