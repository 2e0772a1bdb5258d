/* progress_impl.h - between progress.c and report.c. */
#ifndef CLB_CLI_PROGRESS_IMPL_H
#define CLB_CLI_PROGRESS_IMPL_H

void clb_progress_erase(void); /* removes the line from the terminal, if there is one */

#endif
