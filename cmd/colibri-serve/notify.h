/* notify.h - what systemd wants to know (Type=notify). */
#ifndef CMD_COLIBRI_SERVE_NOTIFY_H
#define CMD_COLIBRI_SERVE_NOTIFY_H

/* Sends "READY=1" and the like to the socket of NOTIFY_SOCKET; nothing happens without one. */
void serve_notify(const char *state);

#endif
