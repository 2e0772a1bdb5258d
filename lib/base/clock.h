/* clock.h - monotonic time. */
#ifndef CLB_BASE_CLOCK_H
#define CLB_BASE_CLOCK_H

double clb_now(void); /* seconds since some fixed moment */

#endif
