// A library to preload. It makes one call of a kind fail, as on a machine without free resources.
// The environment selects the call:
//   FAULT_KIND    thread, spawn, memfd, mmap, open, descriptor, read, write or memory
//   FAULT_AT      the number of the call of this kind that fails, from 1 on; 0 or not set: none
//   FAULT_STAYS   if set, all later calls of the kind fail too
//   FAULT_IN      worker: only calls of worker processes fail; otherwise only calls of rank 0
//   FAULT_SIGNAL  this signal is raised while the libraries are initialized, before main()
//   FAULT_TRACE   if set, the callers of the failing call are written to stderr
//   FAULT_REPORT  a file of sizeof(Report) zero bytes, to which the counts are written
//   FAULT_PATHS   if set, the report gets the numbers of allocations and reads with distinct paths
//   of calls
// Counting begins with main(), because a program has no influence on the initializers of libraries.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../fault_report.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" {
void* __libc_malloc(size_t) noexcept;
void* __libc_calloc(size_t, size_t) noexcept;
void* __libc_realloc(void*, size_t) noexcept;
void* __libc_memalign(size_t, size_t) noexcept;
}

namespace {

using namespace nanovllm::testing;

constinit std::atomic<bool> active = false;
Report own_report;
Report* report = &own_report;
Fault faulty = Fault::kCount;  // none
uint64_t fault_at = 0;
bool stays = false, wants_paths = false, wants_trace = false;
// The default TLS model allocates memory on first use.
__attribute__((tls_model("initial-exec"))) constinit thread_local bool inside = false;

// Records a call whose last callers are new.
void note_path(Fault kind) {
  if (!wants_paths || inside || !is_by_path(kind)) return;
  inside = true;
  std::array<void*, 2 + kPathLength> frames{};
  const int n = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  uint64_t hash = 1469598103934665603U + static_cast<uint64_t>(kind);
  for (int i = 2; i < n; ++i)
    hash = (hash ^ reinterpret_cast<uintptr_t>(frames[static_cast<size_t>(i)])) * 1099511628211U;
  const uint64_t number = report->calls[static_cast<size_t>(kind)] + 1;
  for (size_t slot = hash % kMaxPaths, looks = 0; looks < 64;
       ++looks, slot = (slot + 1) % kMaxPaths) {
    uint64_t none = 0;
    if (report->hashes[slot].compare_exchange_strong(none, hash)) {
      const size_t at = report->num_paths++;
      if (at < kMaxPaths) report->paths[at] = {kind, number};
      break;
    }
    if (none == hash) break;
  }
  inside = false;
}

bool fails(Fault kind) {
  if (!active.load(std::memory_order_relaxed)) return false;
  note_path(kind);
  const uint64_t number = ++report->calls[static_cast<size_t>(kind)];
  if (kind != faulty || fault_at == 0 || (stays ? number < fault_at : number != fault_at))
    return false;
  ++report->num_faults;
  if (wants_trace) {
    inside = true;
    std::array<void*, 40> frames{};
    ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), 2);
    inside = false;
  }
  return true;
}

bool allocation_fails() {
  if (inside || !fails(Fault::kMemory)) return false;
  errno = ENOMEM;
  return true;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

bool fails_with(Fault kind, int error) {
  if (!fails(kind)) return false;
  errno = error;
  return true;
}

bool is_worker() {
  std::array<char, 4096> text{};
  const int fd = next<int(const char*, int, ...)>("open")("/proc/self/cmdline", O_RDONLY);
  const ssize_t n = next<ssize_t(int, void*, size_t)>("read")(fd, text.data(), text.size() - 1);
  ::close(fd);
  const size_t name = std::strlen(text.data()) + 1;
  return n > static_cast<ssize_t>(name) && std::strcmp(text.data() + name, "worker") == 0;
}

void begin() {
  const char* const kind = std::getenv("FAULT_KIND");
  const char* const at = std::getenv("FAULT_AT");
  const char* const in = std::getenv("FAULT_IN");
  if (is_worker() != (in != nullptr && std::strcmp(in, "worker") == 0)) return;
  for (size_t i = 0; kind != nullptr && i < kFaultNames.size(); ++i)
    if (std::strcmp(kind, kFaultNames[i]) == 0) faulty = static_cast<Fault>(i);
  if (at != nullptr) fault_at = std::strtoull(at, nullptr, 10);
  stays = std::getenv("FAULT_STAYS") != nullptr;
  wants_trace = std::getenv("FAULT_TRACE") != nullptr;
  wants_paths = std::getenv("FAULT_PATHS") != nullptr;
  if (const char* const path = std::getenv("FAULT_REPORT")) {
    const int fd = next<int(const char*, int, ...)>("open")(path, O_RDWR);
    void* const p = next<void*(void*, size_t, int, int, int, off_t)>("mmap")(
        nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (p != MAP_FAILED) report = static_cast<Report*>(p);
  }
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);  // the first one loads a library
  active = true;
}

__attribute__((constructor)) void raise_signal() {
  if (const char* const number = std::getenv("FAULT_SIGNAL")) ::raise(std::atoi(number));
}

int (*real_main)(int, char**, char**) = nullptr;
int counted_main(int argc, char** argv, char** environment) {
  begin();
  return real_main(argc, argv, environment);
}

}  // namespace

EXPORTED int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv,
                               void (*init)(), void (*fini)(), void (*rtld_fini)(), void* stack) {
  real_main = main;
  return next<int(decltype(main), int, char**, void (*)(), void (*)(), void (*)(), void*)>(
      "__libc_start_main")(counted_main, argc, argv, init, fini, rtld_fini, stack);
}

// -- memory

EXPORTED void* malloc(size_t n) noexcept { return allocation_fails() ? nullptr : __libc_malloc(n); }
EXPORTED void* calloc(size_t n, size_t m) noexcept {
  return allocation_fails() ? nullptr : __libc_calloc(n, m);
}
EXPORTED void* realloc(void* p, size_t n) noexcept {
  return allocation_fails() ? nullptr : __libc_realloc(p, n);
}
EXPORTED void* aligned_alloc(size_t to, size_t n) noexcept {
  return allocation_fails() ? nullptr : __libc_memalign(to, n);
}
EXPORTED void* memalign(size_t to, size_t n) noexcept {
  return allocation_fails() ? nullptr : __libc_memalign(to, n);
}
EXPORTED int posix_memalign(void** p, size_t to, size_t n) noexcept {
  if (allocation_fails()) return ENOMEM;
  *p = __libc_memalign(to, n);
  return *p == nullptr ? ENOMEM : 0;
}
EXPORTED void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t from) noexcept {
  if (fails_with(Fault::kMmap, ENOMEM)) return MAP_FAILED;
  return next<void*(void*, size_t, int, int, int, off_t)>("mmap")(at, n, protection, flags, fd,
                                                                  from);
}

// -- threads and processes

EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                            void* (*body)(void*), void* argument) noexcept {
  if (fails(Fault::kThread)) return EAGAIN;
  return next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create")(
      thread, attributes, body, argument);
}
EXPORTED int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* files,
                         const posix_spawnattr_t* attributes, char* const* arguments,
                         char* const* environment) noexcept {
  if (fails(Fault::kSpawn)) return EAGAIN;
  return next<int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const*, char* const*)>("posix_spawn")(pid, path, files, attributes,
                                                              arguments, environment);
}

// -- files

EXPORTED int memfd_create(const char* name, unsigned flags) noexcept {
  if (fails_with(Fault::kMemfd, EMFILE)) return -1;
  return next<int(const char*, unsigned)>("memfd_create")(name, flags);
}
EXPORTED int ftruncate(int fd, off_t n) noexcept {
  if (fails_with(Fault::kMemfd, ENOSPC)) return -1;
  return next<int(int, off_t)>("ftruncate")(fd, n);
}
EXPORTED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (fails_with(Fault::kOpen, EMFILE)) return -1;
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}
EXPORTED FILE* fopen(const char* path, const char* mode) {
  if (fails_with(Fault::kOpen, EMFILE)) return nullptr;
  return next<FILE*(const char*, const char*)>("fopen")(path, mode);
}
EXPORTED FILE* fopen64(const char* path, const char* mode) {
  if (fails_with(Fault::kOpen, EMFILE)) return nullptr;
  return next<FILE*(const char*, const char*)>("fopen64")(path, mode);
}
EXPORTED int eventfd(unsigned count, int flags) noexcept {
  if (fails_with(Fault::kDescriptor, EMFILE)) return -1;
  return next<int(unsigned, int)>("eventfd")(count, flags);
}
EXPORTED int socketpair(int domain, int type, int protocol, int* ends) noexcept {
  if (fails_with(Fault::kDescriptor, EMFILE)) return -1;
  return next<int(int, int, int, int*)>("socketpair")(domain, type, protocol, ends);
}
EXPORTED long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  std::array<long, 6> a{};
  for (long& argument : a) argument = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_pidfd_open && fails_with(Fault::kDescriptor, EMFILE)) return -1;
  static auto* const real =
      next<long(long, ...)>("syscall");  // found once, because futexes are many
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
// getc() calls this for the next part of a stream. glibc's own call of read() cannot be
// intercepted.
EXPORTED int __uflow(FILE* file) {  // NOLINT(bugprone-reserved-identifier)
  constexpr int kErrorSeen = 0x20;
  if (fails_with(Fault::kRead, EIO)) {
    file->_flags |= kErrorSeen;
    return EOF;
  }
  return next<int(FILE*)>("__uflow")(file);
}
EXPORTED ssize_t read(int fd, void* to, size_t n) {
  if (fails_with(Fault::kRead, EIO)) return -1;
  return next<ssize_t(int, void*, size_t)>("read")(fd, to, n);
}
EXPORTED ssize_t pread(int fd, void* to, size_t n, off_t at) {
  if (fails_with(Fault::kRead, EIO)) return -1;
  return next<ssize_t(int, void*, size_t, off_t)>("pread")(fd, to, n, at);
}
EXPORTED ssize_t write(int fd, const void* from, size_t n) {
  if (fails_with(Fault::kWrite, ENOSPC)) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(fd, from, n);
}
EXPORTED int fdatasync(int fd) {
  if (fails_with(Fault::kWrite, EIO)) return -1;
  return next<int(int)>("fdatasync")(fd);
}
EXPORTED size_t fwrite(const void* from, size_t size, size_t n, FILE* file) {
  if (file == stdout && fails_with(Fault::kWrite, ENOSPC)) return 0;
  return next<size_t(const void*, size_t, size_t, FILE*)>("fwrite")(from, size, n, file);
}
