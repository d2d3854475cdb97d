/* Library for LD_PRELOAD: counts the system calls that change files below one folder, injects a
   fault at one of them, and can record all of them in memory. In an outage, calls that look at files
   fail too. It can also shift the clock.

   Nothing happens until campaign_arm is called. A forked child inherits the counter and the record. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { NONE, KILL, KILL_AFTER, FAIL, FAIL_AFTER, SHORT, JUMP, STOP, OUTAGE };

static volatile long clock_shift; /* seconds */

static char root[4096];
static size_t root_len;
static volatile int armed;
static long counter, fault_at;
static int fault, fault_errno, lasts, has_hit;
static long outage_calls, outage_left; /* calls that fail in an outage */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *record;
static size_t record_len, record_room;
static int with_data;

#define MAX_CALLS 65536
static const char *calls[MAX_CALLS]; /* names, by number */

#define MAX_FD 4096
static unsigned char is_output[MAX_FD]; /* opened for writing below the folder */

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void campaign_arm(const char *folder, long at, int kind, int number, int persists, int keeps_data) {
  strncpy(root, folder, sizeof root - 1);
  root_len = strlen(root);
  counter = 0, fault_at = at, fault = kind, fault_errno = number, lasts = persists, has_hit = 0;
  record_len = 0, with_data = keeps_data;
  outage_left = 0, outage_calls = number;
  if (kind == OUTAGE) fault_errno = EIO;
  armed = 1;
}
void campaign_disarm(void) { armed = 0; }
long campaign_count(void) { return counter; }
const char *campaign_call(long number) {
  return number > 0 && number < MAX_CALLS && number <= counter ? calls[number] : "";
}
int campaign_has_hit(void) { return has_hit; }
const char *campaign_record(size_t *length) { *length = record_len; return record; }

static int is_below(const char *path) {
  return strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || path[root_len] == 0);
}

/* Write the absolute path of a name into a buffer; return whether it is below the folder. */
static int locate(int dirfd, const char *name, char *path) {
  path[0] = 0;
  if (!name) return 0;
  if (name[0] == '/') {
    snprintf(path, 4096, "%s", name);
  } else {
    char link[64], folder[4096];
    ssize_t n = -1;
    if (dirfd == AT_FDCWD) {
      if (getcwd(folder, sizeof folder)) n = strlen(folder);
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
      n = readlink(link, folder, sizeof folder - 1);
    }
    if (n < 0) return 0;
    folder[n] = 0;
    if (snprintf(path, 4096, "%s/%s", folder, name) >= 4096) return 0;
  }
  return is_below(path);
}

static int locate_fd(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, 4095);
  path[n < 0 ? 0 : n] = 0;
  return n > 0 && is_below(path);
}

static uint64_t inode_of(int fd, const char *path) {
  struct stat status;
  if (fd >= 0 ? fstat(fd, &status) : lstat(path, &status)) return 0;
  return status.st_ino;
}

static void put(const void *data, uint32_t length) {
  if (record_len + length + 4 > record_room) {
    record_room = 2 * (record_len + length + 4) + 65536;
    record = realloc(record, record_room);
  }
  memcpy(record + record_len, &length, 4);
  memcpy(record + record_len + 4, data, length);
  record_len += 4 + length;
}

/* One entry: name of the call, two paths, inode, offset, data. */
static void note(const char *call, const char *first, const char *second, uint64_t inode,
                 int64_t offset, const void *data, size_t length) {
  pthread_mutex_lock(&mutex);
  put(call, strlen(call));
  put(first ? first : "", first ? strlen(first) : 0);
  put(second ? second : "", second ? strlen(second) : 0);
  put(&inode, sizeof inode);
  put(&offset, sizeof offset);
  put(data ? data : "", data && with_data ? length : 0);
  pthread_mutex_unlock(&mutex);
}

/* Count a call; return the fault that it gets. ``grows`` tells whether a full disk refuses it. */
static int next_fault(const char *call, int grows) {
  long number = __atomic_add_fetch(&counter, 1, __ATOMIC_SEQ_CST);
  if (number < MAX_CALLS) calls[number] = call;
  if (outage_left > 0 && outage_left--) return FAIL;
  int is_hit = fault_at > 0 && (number == fault_at || (lasts && number > fault_at && grows));
  if (!is_hit || fault == NONE) return NONE;
  has_hit = 1;
  if (fault == KILL) kill(getpid(), SIGKILL), pause();
  if (fault == JUMP) clock_shift += fault_errno;
  if (fault == STOP) kill(getpid(), SIGSTOP);
  if (fault == OUTAGE) {
    outage_left = outage_calls - 1;
    return FAIL;
  }
  return fault;
}

/* Tell whether a call that only looks at a file meets an outage, and set its error. */
static int is_out(int dirfd, const char *name) {
  char path[4096];
  if (!armed || outage_left <= 0 || !locate(dirfd, name, path)) return 0;
  outage_left--;
  errno = fault_errno;
  return 1;
}

#define LOOKS(result, name, parameters, arguments, dirfd, path, failure) \
  result name parameters { \
    REAL(name); \
    return is_out(dirfd, path) ? failure : real arguments; \
  }

LOOKS(DIR *, opendir, (const char *path), (path), AT_FDCWD, path, NULL)
LOOKS(int, access, (const char *path, int mode), (path, mode), AT_FDCWD, path, -1)
LOOKS(ssize_t, readlink, (const char *path, char *target, size_t length), (path, target, length),
      AT_FDCWD, path, -1)
#if __GLIBC_PREREQ(2, 33) /* before, these were no functions */
LOOKS(int, stat64, (const char *path, struct stat64 *status), (path, status), AT_FDCWD, path, -1)
LOOKS(int, lstat64, (const char *path, struct stat64 *status), (path, status), AT_FDCWD, path, -1)
LOOKS(int, fstatat64, (int fd, const char *path, struct stat64 *status, int flags),
      (fd, path, status, flags), fd, path, -1)
LOOKS(int, stat, (const char *path, struct stat *status), (path, status), AT_FDCWD, path, -1)
LOOKS(int, lstat, (const char *path, struct stat *status), (path, status), AT_FDCWD, path, -1)
LOOKS(int, fstatat, (int fd, const char *path, struct stat *status, int flags),
      (fd, path, status, flags), fd, path, -1)
#endif

/* Return the result of a call that was made, or the error of the fault. */
static long after(int kind, long result) {
  if (kind == KILL_AFTER) kill(getpid(), SIGKILL), pause();
  if (kind == FAIL_AFTER && result >= 0) {
    errno = fault_errno;
    return -1;
  }
  return result;
}

#define FAILS(kind) ((kind) == FAIL && (errno = fault_errno, 1))

static int opened(int fd, const char *path, int flags) {
  if (fd >= 0) {
    if (fd < MAX_FD) is_output[fd] = 1;
    note(flags & O_APPEND ? "append" : "open", path, NULL, inode_of(fd, NULL), flags, NULL, 0);
  }
  return fd;
}

#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))

static int open_at(int (*real)(int, const char *, int, ...), int dirfd, const char *name, int flags,
                   mode_t mode) {
  char path[4096];
  if (!WRITES(flags) && is_out(dirfd, name)) return -1;
  if (!armed || !WRITES(flags) || !locate(dirfd, name, path)) {
    int fd = real(dirfd, name, flags, mode);
    if (fd >= 0 && fd < MAX_FD) is_output[fd] = 0;
    return fd;
  }
  int kind = next_fault("open", flags & O_CREAT);
  if (FAILS(kind)) return -1;
  int fd = opened(real(dirfd, name, flags, mode), path, flags);
  int result = after(kind, fd);
  if (result < 0 && fd >= 0) {
    int saved = errno;
    is_output[fd < MAX_FD ? fd : 0] = 0;
    armed = 0, close(fd), armed = 1;
    errno = saved;
  }
  return result;
}

#define MODE \
  mode_t mode = 0; \
  if (flags & (O_CREAT | O_TMPFILE)) { \
    va_list list; \
    va_start(list, flags); \
    mode = va_arg(list, mode_t); \
    va_end(list); \
  }

int openat(int dirfd, const char *name, int flags, ...) {
  REAL(openat);
  MODE
  return open_at(real, dirfd, name, flags, mode);
}
int openat64(int dirfd, const char *name, int flags, ...) {
  REAL(openat64);
  MODE
  return open_at(real, dirfd, name, flags, mode);
}
int open(const char *name, int flags, ...) {
  REAL(openat);
  MODE
  return open_at(real, AT_FDCWD, name, flags, mode);
}
int open64(const char *name, int flags, ...) {
  REAL(openat64);
  MODE
  return open_at(real, AT_FDCWD, name, flags, mode);
}

#define IS_OUTPUT(fd) (armed && (fd) >= 0 && (fd) < MAX_FD && is_output[fd])

static void note_data(int fd, int64_t offset, const void *data, ssize_t length) {
  char path[4096];
  if (length >= 0) {
    locate_fd(fd, path);
    note("write", path, NULL, inode_of(fd, NULL), offset, data, length);
  }
}

ssize_t write(int fd, const void *data, size_t length) {
  REAL(write);
  if (!IS_OUTPUT(fd)) return real(fd, data, length);
  int kind = next_fault("write", 1);
  if (FAILS(kind)) return -1;
  if ((kind == SHORT || kind == KILL_AFTER) && length > 1) length /= 2;
  int64_t offset = fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
  ssize_t n = real(fd, data, length);
  note_data(fd, offset, data, n);
  return after(kind, n);
}

static ssize_t write_at(ssize_t (*real)(int, const void *, size_t, off64_t), int fd,
                        const void *data, size_t length, off64_t offset) {
  if (!IS_OUTPUT(fd)) return real(fd, data, length, offset);
  int kind = next_fault("pwrite", 1);
  if (FAILS(kind)) return -1;
  if ((kind == SHORT || kind == KILL_AFTER) && length > 1) length /= 2;
  ssize_t n = real(fd, data, length, offset);
  note_data(fd, offset, data, n);
  return after(kind, n);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  REAL(pwrite64);
  return write_at(real, fd, data, length, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
  REAL(pwrite64);
  return write_at(real, fd, data, length, offset);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length,
                        unsigned flags) {
  REAL(copy_file_range);
  if (!IS_OUTPUT(to)) return real(from, from_offset, to, to_offset, length, flags);
  int kind = next_fault("copy", 1);
  if (FAILS(kind)) return -1;
  if ((kind == SHORT || kind == KILL_AFTER) && length > 1) {
    struct stat status;
    length = fstat(from, &status) || status.st_size < 2 ? 1 : (size_t)(status.st_size / 2);
  }
  int64_t offset = to_offset ? *to_offset : lseek(to, 0, SEEK_CUR);
  int64_t source = from_offset ? *from_offset : lseek(from, 0, SEEK_CUR);
  ssize_t n = real(from, from_offset, to, to_offset, length, flags);
  if (n > 0 && with_data) {
    char *data = malloc(n);
    note_data(to, offset, data, pread64(from, data, n, source));
    free(data);
  } else {
    note_data(to, offset, NULL, n);
  }
  return after(kind, n);
}

static int truncate_to(int (*real)(int, off64_t), int fd, off64_t length) {
  char path[4096];
  if (!IS_OUTPUT(fd)) return real(fd, length);
  int kind = next_fault("truncate", 1);
  if (FAILS(kind)) return -1;
  int result = real(fd, length);
  locate_fd(fd, path);
  if (result == 0) note("truncate", path, NULL, inode_of(fd, NULL), length, NULL, 0);
  return after(kind, result);
}
int ftruncate(int fd, off_t length) {
  REAL(ftruncate64);
  return truncate_to(real, fd, length);
}
int ftruncate64(int fd, off64_t length) {
  REAL(ftruncate64);
  return truncate_to(real, fd, length);
}

int fsync(int fd) {
  REAL(fsync);
  char path[4096];
  if (!armed || !locate_fd(fd, path)) return real(fd);
  int kind = next_fault("fsync", 0);
  if (FAILS(kind)) return -1;
  int result = real(fd);
  if (result == 0) note("fsync", path, NULL, inode_of(fd, NULL), 0, NULL, 0);
  return after(kind, result);
}

int close(int fd) {
  REAL(close);
  char path[4096];
  if (!IS_OUTPUT(fd)) return real(fd);
  is_output[fd] = 0;
  int kind = next_fault("close", 0);
  locate_fd(fd, path);
  note("close", path, NULL, inode_of(fd, NULL), 0, NULL, 0);
  int result = real(fd); /* Linux releases the descriptor in any case */
  if (FAILS(kind)) return -1;
  return after(kind, result);
}

static int rename_at(int (*real)(int, const char *, int, const char *, unsigned), int first_fd,
                     const char *first, int second_fd, const char *second, unsigned flags) {
  char from[4096], to[4096];
  int inside = armed && (locate(first_fd, first, from) | locate(second_fd, second, to));
  if (!inside) return real(first_fd, first, second_fd, second, flags);
  int kind = next_fault(flags & RENAME_EXCHANGE ? "exchange" : "rename", 1);
  if (FAILS(kind)) return -1;
  int result = real(first_fd, first, second_fd, second, flags);
  if (result == 0)
    note(flags & RENAME_EXCHANGE ? "exchange" : "rename", from, to, inode_of(-1, to), 0, NULL, 0);
  return after(kind, result);
}
int renameat2(int first_fd, const char *first, int second_fd, const char *second, unsigned flags) {
  REAL(renameat2);
  return rename_at(real, first_fd, first, second_fd, second, flags);
}
int renameat(int first_fd, const char *first, int second_fd, const char *second) {
  REAL(renameat2);
  return rename_at(real, first_fd, first, second_fd, second, 0);
}
int rename(const char *first, const char *second) {
  REAL(renameat2);
  return rename_at(real, AT_FDCWD, first, AT_FDCWD, second, 0);
}

int linkat(int first_fd, const char *first, int second_fd, const char *second, int flags) {
  REAL(linkat);
  char from[4096], to[4096];
  if (!armed || !locate(second_fd, second, to))
    return real(first_fd, first, second_fd, second, flags);
  locate(first_fd, first, from);
  int kind = next_fault("link", 1);
  if (FAILS(kind)) return -1;
  int result = real(first_fd, first, second_fd, second, flags);
  if (result == 0) note("link", from, to, inode_of(-1, to), 0, NULL, 0);
  return after(kind, result);
}
int link(const char *first, const char *second) { return linkat(AT_FDCWD, first, AT_FDCWD, second, 0); }

int unlinkat(int dirfd, const char *name, int flags) {
  REAL(unlinkat);
  char path[4096];
  if (!armed || !locate(dirfd, name, path)) return real(dirfd, name, flags);
  int kind = next_fault(flags & AT_REMOVEDIR ? "rmdir" : "unlink", 0);
  if (FAILS(kind)) return -1;
  int result = real(dirfd, name, flags);
  if (result == 0) note(flags & AT_REMOVEDIR ? "rmdir" : "unlink", path, NULL, 0, 0, NULL, 0);
  return after(kind, result);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int dirfd, const char *name, mode_t mode) {
  REAL(mkdirat);
  char path[4096];
  if (!armed || !locate(dirfd, name, path)) return real(dirfd, name, mode);
  int kind = next_fault("mkdir", 1);
  if (FAILS(kind)) return -1;
  int result = real(dirfd, name, mode);
  if (result == 0) note("mkdir", path, NULL, 0, 0, NULL, 0);
  return after(kind, result);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* Shift the time of day. The monotonic clock and the times of files stay: they are no part of it. */
void campaign_shift_clock(long seconds) { clock_shift = seconds; }

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += clock_shift;
  return result;
}
int gettimeofday(struct timeval *now, void *zone) {
  REAL(gettimeofday);
  int result = real(now, zone);
  if (result == 0) now->tv_sec += clock_shift;
  return result;
}
time_t time(time_t *now) {
  REAL(time);
  time_t result = real(NULL) + clock_shift;
  if (now) *now = result;
  return result;
}
