/* scheduler_impl.h - the inside of a scheduler. */
#ifndef CLB_SESSION_SCHEDULER_IMPL_H
#define CLB_SESSION_SCHEDULER_IMPL_H

#include <pthread.h>

#include "lib/session/batch_impl.h"
#include "lib/session/prefix.h"
#include "lib/session/scheduler.h"

struct clb_request_list {
    struct clb_request *head, *tail;
};

struct clb_scheduler {
    struct clb_batch *batch;   /* owned */
    struct clb_prefix *prefix; /* owned; NULL: off */
    uint64_t prefix_bytes;
    struct clb_request_room room;
    uint32_t max_queue, shared_chunk, profile_every;
    bool profile_all;

    /* The owner's. */
    struct clb_choice **running; /* [max_sessions] owned; in the order of their starts */
    uint32_t n_running;
    uint64_t n_start;
    struct clb_profile *profile; /* the batch's, which has it only in passes that are profiled */
    struct clb_scheduler_counts count;

    pthread_mutex_t lock; /* of the rest; `active` is read by the owner without it */
    pthread_cond_t news;
    struct clb_request_list incoming, active; /* submitted; seen by the owner; oldest first */
    uint64_t n_ticket;
    uint32_t n_queued; /* requests none of whose choices was started */
    uint32_t n_placed; /* choices that run, as the last step left it */
    uint64_t submitted, refused;
    bool cancels, woken, closing;
    struct clb_scheduler_counts shown; /* copies for other threads */
    struct clb_profile shown_profile;
};

/* scheduler.c. All of `from` behind `to`. */
void clb_request_splice(struct clb_request_list *to, struct clb_request_list *from);

static inline uint32_t clb_blocks_for(uint32_t length)
{
    return length / CLB_KV_BLOCK + (length % CLB_KV_BLOCK != 0);
}

/* scheduler_place.c. Gives places to those who wait, in order. */
void clb_scheduler_start(struct clb_scheduler *s);
/* Inside the allocation guard. Takes KV blocks for `length` positions, from the prefix cache and
 * then from those who started last. False: the choice itself had to give its place back. */
bool clb_scheduler_reserve(struct clb_scheduler *s, struct clb_choice *c, uint32_t length);
/* Its place is free: the session is closed. */
void clb_scheduler_leave(struct clb_scheduler *s, struct clb_choice *c);

/* scheduler_share.c. Takes blocks that are there already. */
void clb_scheduler_adopt(struct clb_scheduler *s, struct clb_choice *c);
/* Blocks from the first that a choice has or that running ones have or will have. */
uint32_t clb_scheduler_promised(const struct clb_scheduler *s, const struct clb_choice *c);
/* True: another is computing what this one needs next. May copy the part of a block that is there
 * already. */
bool clb_scheduler_must_wait(struct clb_scheduler *s, struct clb_choice *c);
/* Full blocks become entries. */
void clb_scheduler_register(struct clb_scheduler *s, struct clb_choice *c);
/* And the one at the end, when the choice goes. */
void clb_scheduler_register_end(struct clb_scheduler *s, struct clb_choice *c);

/* scheduler_step.c. Ends a choice and tells; the request goes with its last one. err: of
 * CLB_ENDING_FAILED. */
void clb_scheduler_finish(struct clb_scheduler *s, struct clb_choice *c, enum clb_ending why,
                          const struct clb_err *err);
/* The same for all choices that have not finished: the request is gone then. */
void clb_scheduler_finish_request(struct clb_scheduler *s, struct clb_request *r,
                                  enum clb_ending why);

#endif
