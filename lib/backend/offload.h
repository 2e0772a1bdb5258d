/* offload.h - experts that a device has no room for: copied to it when they are wanted, or
 * multiplied by the CPU where they lie. */
#ifndef CLB_BACKEND_OFFLOAD_H
#define CLB_BACKEND_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

/* COPY: those used last are on the device, with the bits as if all were. CPU: it multiplies them,
 * in its own arithmetic; which ones is decided once. AUTO: what takes less time for a token. */
enum clb_offload { CLB_OFFLOAD_COPY, CLB_OFFLOAD_CPU, CLB_OFFLOAD_AUTO };

struct clb_offload_facts {
    uint64_t n_expert; /* of all layers, without those that other devices keep */
    uint64_t n_slot;   /* of them fit on the device */
    double per_token;  /* of them that a token is routed to, in all layers */
    uint64_t expert_bytes;
    double link, host; /* bytes per second: copies to the device, threads that read; 0: unknown */
};

struct clb_offload_guess {
    double hits;      /* share of the wanted experts that copies find on the device */
    double copy, cpu; /* seconds of a token; INFINITY: cannot be */
    bool use_cpu;
};

/* Of decoding, where a token reads each of its experts once and nothing else counts:
 *
 *   copy = per_token * (1 - hits) * expert_bytes / link
 *   cpu  = per_token * (1 - n_slot / n_expert) * expert_bytes / host
 *
 * hits is n_slot / n_expert as well if all experts are equally likely and the least recently used
 * one goes first; but 0 where the slots hold fewer experts than one token wants: then each is gone
 * again before its layer's next turn. With fewer than two slots nothing can be copied. An unknown
 * rate decides for copies, and so does a tie: they change no bits. */
struct clb_offload_guess clb_offload_guess(const struct clb_offload_facts *f);

#endif
