/* The temporary is named ".NAME.clb-XXXXXX" and locked (flock) while its owner lives, so that
 * whoever comes later can tell a stale one from one in use, even across containers. */
#include "lib/cli/outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/cli/doomed.h"
#include "lib/cli/report.h"

static const char mark[] = ".clb-XXXXXX";

/* The folder part of a path, with its slash ("" for none): its length. */
static size_t folder_len(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? (size_t)(slash - path) + 1 : 0;
}

static char *folder_of(const char *path)
{
    size_t n = folder_len(path);

    return n ? strndup(path, n) : strdup(".");
}

static bool stat_folder(const char *path, struct stat *st)
{
    char *folder = folder_of(path);
    bool ok = folder && stat(folder, st) == 0;

    free(folder);
    return ok;
}

bool clb_same_file(const char *a, const char *b)
{
    struct stat x, y;
    bool there = stat(a, &x) == 0;

    if (there != (stat(b, &y) == 0))
        return false;
    if (there && !S_ISREG(x.st_mode)) /* writing to a device harms nobody */
        return false;
    if (!there && (strcmp(a + folder_len(a), b + folder_len(b)) || !stat_folder(a, &x) ||
                   !stat_folder(b, &y)))
        return false;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool is_mine(const char *name, const char *base)
{
    size_t nb = strlen(base), n = strlen(name), nm = sizeof mark - 1;

    if (nb > 200)
        nb = 200;
    return n == 1 + nb + nm && name[0] == '.' && !strncmp(name + 1, base, nb) &&
           !strncmp(name + 1 + nb, mark, 5);
}

/* Removes temporaries of the same output whose owner has gone. Failing is no harm. */
static void remove_stale(const char *folder, const char *base)
{
    DIR *d = opendir(folder);

    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        if (!is_mine(e->d_name, base))
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    closedir(d);
}

static bool check_room(const char *path, const char *folder, uint64_t size, struct clb_err *err)
{
    struct statvfs v;
    char a[CLB_HUMAN], b[CLB_HUMAN];

    if (size == 0 || statvfs(folder, &v) != 0)
        return true;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (size <= room)
        return true;
    return clb_fail(err, CLB_NO_SPACE, "%s: needs %s (%llu bytes), but its disk has %s free (%llu)",
                    path, clb_human_bytes(a, size), (unsigned long long)size,
                    clb_human_bytes(b, room), (unsigned long long)room);
}

/* A signal between making the file and remembering it would leave it behind. */
static void hold_signals(sigset_t *before)
{
    sigset_t set;

    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, before);
}

static bool make_temporary(struct clb_outfile *o, struct clb_err *err)
{
    const char *base = o->path + folder_len(o->path);
    size_t n = strlen(o->path) + sizeof mark + 2;
    mode_t mask = umask(0);
    sigset_t before;

    umask(mask);
    if (!(o->tmp = malloc(n)))
        return clb_fail_nomem(err, n);
    snprintf(o->tmp, n, "%.*s.%.200s%s", (int)folder_len(o->path), o->path, base, mark);
    hold_signals(&before);
    o->fd = mkostemp(o->tmp, O_CLOEXEC);
    if (o->fd >= 0)
        clb_doom(o->tmp);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (o->fd < 0) {
        clb_fail_sys(err, CLB_FAILED, "%s: cannot be created", o->path);
        free(o->tmp);
        o->tmp = NULL;
        return false;
    }
    flock(o->fd, LOCK_EX | LOCK_NB);
    fchmod(o->fd, 0666 & ~mask);
    return true;
}

bool clb_outfile_open(struct clb_outfile *o, const char *path, bool force, uint64_t size,
                      struct clb_err *err)
{
    struct stat st;
    bool there = stat(path, &st) == 0;

    *o = (struct clb_outfile){ .fd = -1, .path = path, .force = force };
    if (there && S_ISDIR(st.st_mode))
        return clb_fail(err, CLB_USAGE, "%s: is a folder; an output file was expected", path);
    if (there && !S_ISREG(st.st_mode)) {
        o->fd = open(path, O_WRONLY | O_CLOEXEC);
        return o->fd >= 0 || clb_fail_sys(err, CLB_FAILED, "%s: cannot be written", path);
    }
    if (!there && errno == ENAMETOOLONG) /* the temporary has a shorter name and would be made */
        return clb_fail_sys(err, CLB_FAILED, "%s: cannot be created", path);
    if (!force && lstat(path, &st) == 0)
        return clb_fail(err, CLB_USAGE, "%s: exists; use -f to replace it", path);
    char *folder = folder_of(path);
    if (!folder)
        return clb_fail_nomem(err, strlen(path));
    remove_stale(folder, path + folder_len(path));
    bool ok = check_room(path, folder, size, err) && make_temporary(o, err);
    free(folder);
    return ok;
}

bool clb_write_all(int fd, const void *bytes, size_t n, const char *path, struct clb_err *err)
{
    const char *p = bytes;

    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return clb_fail_sys(err, CLB_FAILED, "%s: cannot be written", path);
        p += done;
        n -= (size_t)done;
    }
    return true;
}

bool clb_outfile_write(struct clb_outfile *o, const void *bytes, size_t n, struct clb_err *err)
{
    return clb_write_all(o->fd, bytes, n, o->path, err);
}

/* Gives the temporary its name. Without force an existing file is never replaced, also when it
 * came into being since open. */
static bool publish(struct clb_outfile *o, struct clb_err *err)
{
    if (o->force)
        return rename(o->tmp, o->path) == 0 ||
               clb_fail_sys(err, CLB_FAILED, "%s: cannot be named", o->path);
    if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, RENAME_NOREPLACE) == 0)
        return true;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) { /* this file system cannot */
        if (link(o->tmp, o->path) == 0) {
            unlink(o->tmp);
            return true;
        }
        if (errno == EPERM || errno == ENOTSUP || errno == ENOSYS) {
            struct stat st;
            if (lstat(o->path, &st) == 0)
                errno = EEXIST;
            else if (rename(o->tmp, o->path) == 0)
                return true;
        }
    }
    if (errno == EEXIST)
        return clb_fail(err, CLB_USAGE, "%s: exists; use -f to replace it", o->path);
    return clb_fail_sys(err, CLB_FAILED, "%s: cannot be named", o->path);
}

/* The new name is safe only when the folder has reached the disk. */
static void sync_folder(const char *path)
{
    char *folder = folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

bool clb_outfile_commit(struct clb_outfile *o, struct clb_err *err)
{
    bool ok = true;

    if (o->tmp) /* a device has nothing to sync */
        ok = fsync(o->fd) == 0 || clb_fail_sys(err, CLB_FAILED, "%s: cannot be written", o->path);
    ok = ok && (!o->tmp || publish(o, err));
    if (close(o->fd) != 0 && ok)
        ok = clb_fail_sys(err, CLB_FAILED, "%s: cannot be written", o->path);
    o->fd = -1;
    if (!ok) {
        clb_outfile_discard(o);
        return false;
    }
    if (o->tmp) {
        clb_spare(o->tmp);
        sync_folder(o->path);
        free(o->tmp);
    }
    *o = (struct clb_outfile){ .fd = -1 };
    return true;
}

void clb_outfile_discard(struct clb_outfile *o)
{
    if (o->path && o->fd >= 0)
        close(o->fd);
    if (o->tmp) {
        unlink(o->tmp);
        clb_spare(o->tmp);
        free(o->tmp);
    }
    *o = (struct clb_outfile){ .fd = -1 };
}
