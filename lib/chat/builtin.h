/* builtin.h - what templates find ready: filters, tests, functions and methods, as tables. */
#ifndef CLB_CHAT_BUILTIN_H
#define CLB_CHAT_BUILTIN_H

#include "lib/chat/value.h"

struct clb_vm;

/* The arguments as written. */
struct clb_call {
    const struct clb_value *arg; /* by position; of a filter, test or method: without its value */
    size_t n;
    const struct clb_dict *named;
};

enum { CLB_MOST_PARAMS = 6 };

/* Fails with vm->err filled. v[0] is the value in front of a filter, a test or a method, v[1]...
 * are the arguments by the names in `params`; those not given are CLB_V_ABSENT. */
typedef bool clb_builtin_fn(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,
                            struct clb_value *out);

struct clb_builtin {
    const char *name;
    const char *params; /* "needed needed [optional ...": names; NULL: the function looks at c */
    clb_builtin_fn *fn;
};

enum clb_builtins {
    CLB_FILTERS,
    CLB_TESTS,
    CLB_FUNCTIONS,
    CLB_STRING_METHODS,
    CLB_LIST_METHODS,
    CLB_DICT_METHODS,
    CLB_LOOP_METHODS,
};
#define CLB_NO_BUILTIN UINT32_MAX
uint32_t clb_builtin_find(enum clb_builtins table, struct clb_str name);
const struct clb_builtin *clb_builtin_at(enum clb_builtins table, uint32_t i);

/* The tables end in a row without name; each in the file that has its functions. */
extern const struct clb_builtin clb_text_filters[], clb_sequence_filters[], clb_number_filters[],
    clb_tests[], clb_functions[], clb_string_methods[], clb_search_methods[], clb_list_methods[],
    clb_dict_methods[], clb_loop_methods[];

#endif
