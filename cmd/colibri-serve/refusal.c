#include <stdarg.h>
#include <stdio.h>

#include "cmd/colibri-serve/serve.h"

/* OpenAI's word for a status. */
static const char *type_of(unsigned status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

static void fill(struct serve_refusal *no, unsigned status, const char *code, const char *fmt,
                 va_list ap)
{
    *no = (struct serve_refusal){ .status = status, .type = type_of(status), .code = code };
    vsnprintf(no->text, sizeof no->text, fmt, ap);
}

bool serve_refuse(struct serve_refusal *no, unsigned status, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(no, status, code, fmt, ap);
    va_end(ap);
    return false;
}

bool serve_refuse_field(struct serve_refusal *no, const char *field, const char *fmt, ...)
{
    char why[sizeof no->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    serve_refuse(no, 400, "invalid_value", "'%s': %.400s", field, why);
    snprintf(no->param, sizeof no->param, "%s", field);
    return false;
}

static void word(struct clb_text *t, const char *name, const char *value)
{
    clb_text_printf(t, ",\"%s\":", name);
    if (value && *value)
        clb_text_json(t, value, strlen(value));
    else
        clb_text_puts(t, "null");
}

void serve_refusal_json(struct clb_text *t, const struct serve_refusal *no)
{
    clb_text_puts(t, "{\"message\":");
    clb_text_json(t, no->text, strlen(no->text));
    word(t, "type", no->type);
    word(t, "param", no->param);
    word(t, "code", no->code);
    clb_text_puts(t, "}");
}
