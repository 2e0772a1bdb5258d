/* list.h - the families that are known, each in a file of its own beside this one (a file may have
 * two). One more is: its file, its word here, and a checkpoint under test/data/families. */
#ifndef CLB_IMPORT_FAMILIES_LIST_H
#define CLB_IMPORT_FAMILIES_LIST_H

/* FAMILY(model_type) for each. */
#define CLB_FAMILIES(FAMILY) \
    FAMILY(deepseek_v2)      \
    FAMILY(deepseek_v3)      \
    FAMILY(dots1)            \
    FAMILY(ernie4_5_moe)     \
    FAMILY(exaone_moe)       \
    FAMILY(flex_olmo)        \
    FAMILY(glm4_moe)         \
    FAMILY(gpt_oss)          \
    FAMILY(granitemoe)       \
    FAMILY(granitemoeshared) \
    FAMILY(hunyuan_v1_moe)   \
    FAMILY(llama4)           \
    FAMILY(llama4_text)      \
    FAMILY(llama_moe)        \
    FAMILY(minimax_m2)       \
    FAMILY(mixtral)          \
    FAMILY(olmoe)            \
    FAMILY(phimoe)           \
    FAMILY(qwen2_moe)        \
    FAMILY(qwen3_moe)

#endif
