/* page.h - the page at GET /: one file without anything from elsewhere. */
#ifndef CMD_COLIBRI_SERVE_PAGE_H
#define CMD_COLIBRI_SERVE_PAGE_H

/* Its parts; NULL behind the last. */
extern const char *const serve_page[];

#endif
