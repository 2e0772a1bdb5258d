#include "cmd/colibri-serve/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void serve_notify(const char *state)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    const char *path = getenv("NOTIFY_SOCKET");
    size_t n = path ? strlen(path) : 0;

    if (n == 0 || n >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') /* a name without a file */
        to.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}
