/* emu_dnn.h - the fake of cuDNN: descriptors, and the interpreter of their graphs. */
#ifndef TEST_CUDA_EMU_EMU_DNN_H
#define TEST_CUDA_EMU_EMU_DNN_H

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_libs.h"

enum { DESC_MARK = 0x646e6e64 };
struct desc {
    int mark = DESC_MARK, type = 0;
    bool final = false;
    std::map<int, std::vector<uint8_t>> told;
    desc *graph = nullptr; /* of a configuration */
    int64_t workspace = 0;
    std::shared_ptr<int> waiting = std::make_shared<int>(0); /* runs of the plan in streams */

    bool has(int name) const
    {
        return told.count(name) != 0;
    }
    template <class T> T one(int name) const
    {
        T v;
        memcpy(&v, told.at(name).data(), sizeof v);
        return v;
    }
    desc *of(int name) const
    {
        return has(name) ? one<desc *>(name) : nullptr;
    }
    template <class T> std::vector<T> all(int name) const
    {
        const std::vector<uint8_t> &b = told.at(name);
        std::vector<T> v(b.size() / sizeof(T));
        memcpy(v.data(), b.data(), b.size());
        return v;
    }
};
/* -- tensors ----------------------------------------------------------------------------------- */

typedef std::array<int64_t, 4> dims;
static inline dims dims_of(const desc *t)
{
    return t->one<dims>(CLB_DNN_TENSOR_DIMS);
}
static inline bool is(const desc *t, int name)
{
    return t->has(name) && t->one<bool>(name);
}
static inline int64_t id_of(const desc *t)
{
    return t->one<int64_t>(CLB_DNN_TENSOR_ID);
}
static inline int type_of(const desc *t)
{
    return t->one<int>(CLB_DNN_TENSOR_TYPE);
}
static inline int64_t count_of(const dims &d)
{
    return d[0] * d[1] * d[2] * d[3];
}

/* What an operation reads, as attributes, and what it makes. */
std::vector<int> emu_dnn_ports(const desc *o, int *result);

/* -- emu_dnn_run.cc ---------------------------------------------------------------------------- */

struct value {
    dims d;
    std::vector<float> v;
};
struct dnn_run {
    std::map<int64_t, void *> at;      /* memory of tensors that are not virtual */
    std::map<int64_t, float> by_value; /* read when the run was enqueued */
    std::map<int64_t, value> made;
};
/* Where a tensor lies, whole, on the device; or its value, which is read now. */
void emu_dnn_bind(dnn_run &w, const desc *t, void *p);
void emu_dnn_interpret(const desc *graph, dnn_run &w);

#endif
