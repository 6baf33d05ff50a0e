/* Loaded before libc: counts the system calls that change anything below a folder, and lets one of them fail.

   faults_arm(root, at, mode, code): the call number `at` (from 0) below `root` is replaced by
   mode 1: SIGKILL; 2: the error `code`; 3: SIGINT, after which it is carried out. Mode 0 only counts.
   faults_count(): how many calls there were since.  faults_disarm(): nothing is counted any more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_size;
static atomic_long count;
static long at = -1;
static int mode, code;
static atomic_int armed;

void faults_arm(const char *folder, long number, int how, int error) {
    strncpy(root, folder, sizeof root - 1);
    root_size = strlen(root);
    at = number, mode = how, code = error;
    atomic_store(&count, 0);
    atomic_store(&armed, 1);
}
void faults_disarm(void) { atomic_store(&armed, 0); }
long faults_count(void) { return atomic_load(&count); }

static int inside(const char *path) { return path && strncmp(path, root, root_size) == 0; }

static int inside_fd(int fd) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (size < 0) return 0;
    path[size] = 0;
    return inside(path);
}

/* Paths that begin at an open folder. */
static int inside_at(int dir, const char *path) {
    return path && (path[0] == '/' || dir == AT_FDCWD ? inside(path) : inside_fd(dir));
}

/* 1: the call fails with errno; 0: it goes on. */
static int hit(void) {
    if (atomic_fetch_add(&count, 1) != at) return 0;
    if (mode == 1) kill(getpid(), SIGKILL);
    if (mode == 3) raise(SIGINT);
    if (mode != 2) return 0;
    errno = code;
    return 1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define GUARD(test) if (atomic_load(&armed) && (test) && hit()) return -1
#define CHANGES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE mode_t bits = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); bits = va_arg(list, mode_t); va_end(list); }

int open(const char *path, int flags, ...) { MODE REAL(open); GUARD(CHANGES(flags) && inside(path)); return real(path, flags, bits); }
int open64(const char *path, int flags, ...) { MODE REAL(open64); GUARD(CHANGES(flags) && inside(path)); return real(path, flags, bits); }
int openat(int dir, const char *path, int flags, ...) { MODE REAL(openat); GUARD(CHANGES(flags) && inside_at(dir, path)); return real(dir, path, flags, bits); }
int openat64(int dir, const char *path, int flags, ...) { MODE REAL(openat64); GUARD(CHANGES(flags) && inside_at(dir, path)); return real(dir, path, flags, bits); }
ssize_t write(int fd, const void *data, size_t size) { REAL(write); GUARD(inside_fd(fd)); return real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t where) { REAL(pwrite); GUARD(inside_fd(fd)); return real(fd, data, size, where); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t where) { REAL(pwrite64); GUARD(inside_fd(fd)); return real(fd, data, size, where); }
ssize_t writev(int fd, const struct iovec *parts, int number) { REAL(writev); GUARD(inside_fd(fd)); return real(fd, parts, number); }
ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t where) { REAL(pwritev); GUARD(inside_fd(fd)); return real(fd, parts, number, where); }
ssize_t pwritev64(int fd, const struct iovec *parts, int number, off64_t where) { REAL(pwritev64); GUARD(inside_fd(fd)); return real(fd, parts, number, where); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); GUARD(inside_fd(fd)); return real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); GUARD(inside_fd(fd)); return real(fd, size); }
/* No power is cut here, and a busy disk takes its time. */
int fsync(int fd) { GUARD(inside_fd(fd)); return 0; }
int fdatasync(int fd) { GUARD(inside_fd(fd)); return 0; }
void sync(void) {}
int rename(const char *from, const char *to) { REAL(rename); GUARD(inside(from) || inside(to)); return real(from, to); }
int renameat(int one, const char *from, int two, const char *to) { REAL(renameat); GUARD(inside_at(one, from)); return real(one, from, two, to); }
int renameat2(int one, const char *from, int two, const char *to, unsigned how) { REAL(renameat2); GUARD(inside_at(one, from)); return real(one, from, two, to, how); }
int link(const char *from, const char *to) { REAL(link); GUARD(inside(to)); return real(from, to); }
int linkat(int one, const char *from, int two, const char *to, int flags) { REAL(linkat); GUARD(inside_at(two, to)); return real(one, from, two, to, flags); }
int unlink(const char *path) { REAL(unlink); GUARD(inside(path)); return real(path); }
int unlinkat(int dir, const char *path, int flags) { REAL(unlinkat); GUARD(inside_at(dir, path)); return real(dir, path, flags); }
int mkdir(const char *path, mode_t bits) { REAL(mkdir); GUARD(inside(path)); return real(path, bits); }
int mkdirat(int dir, const char *path, mode_t bits) { REAL(mkdirat); GUARD(inside_at(dir, path)); return real(dir, path, bits); }
int rmdir(const char *path) { REAL(rmdir); GUARD(inside(path)); return real(path); }
int utimensat(int dir, const char *path, const struct timespec times[2], int flags) { REAL(utimensat); GUARD(path ? inside_at(dir, path) : inside_fd(dir)); return real(dir, path, times, flags); }
int futimens(int fd, const struct timespec times[2]) { REAL(futimens); GUARD(inside_fd(fd)); return real(fd, times); }
