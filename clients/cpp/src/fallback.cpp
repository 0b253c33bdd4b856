#include "fallback.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

extern char** environ;

namespace numl {
namespace {

constexpr std::chrono::seconds grace{30};

// Run a command by the shell, in a process group of its own: a Ctrl-C at the terminal is for the
// client, which then ends it. What it prints goes to standard error.
int spawn(const std::string& command, pid_t& pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  sigset_t none;  // A framework's threads may block SIGTERM, by which the command is ended.
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t ignored_here;  // perhaps, but not by what expects the shell's
  sigemptyset(&ignored_here);
  for (const int number : {SIGPIPE, SIGTERM}) sigaddset(&ignored_here, number);
  posix_spawnattr_setsigdefault(&attributes, &ignored_here);
  std::string shell = "sh", option = "-c", words = command;
  char* arguments[] = {shell.data(), option.data(), words.data(), nullptr};
  const int failed = posix_spawn(&pid, "/bin/sh", &files, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed;
}

pid_t wait_for(pid_t pid, int* status, int flags) {
  pid_t ended = 0;
  do ended = waitpid(pid, status, flags);
  while (ended < 0 && errno == EINTR);
  return ended;
}

}  // namespace

void LocalServer::start() {
  started_ = true;
  const int failed = spawn(commands_.start, pid_);
  if (failed != 0) {
    pid_ = 0;
    failure_ = "the fallback server cannot be started: " + std::string(std::strerror(failed));
  }
}

std::string LocalServer::failure() {
  int status = 0;
  // None to wait for: a program that ignores SIGCHLD is not told with which status it ended.
  if (pid_ > 0 && wait_for(pid_, &status, WNOHANG) != 0) {
    pid_ = 0;
    if (status != 0) {
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      failure_ = "the fallback server's command ended with status " + std::to_string(code);
    }
  }
  return failure_;
}

void LocalServer::end() {
  const bool runs = started_ && !ended_;
  ended_ = true;
  if (!runs) return;
  failure_ = "the fallback server has been ended";
  if (pid_ > 0) {
    kill(-pid_, SIGTERM);
    const auto end = std::chrono::steady_clock::now() + grace;
    // A shell may have ended before what it has started.
    while (wait_for(-pid_, nullptr, WNOHANG) >= 0 || kill(-pid_, 0) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        kill(-pid_, SIGKILL);
        wait_for(pid_, nullptr, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    pid_ = 0;
  }
  pid_t stopping = 0;
  if (!commands_.stop.empty() && spawn(commands_.stop, stopping) == 0) {
    wait_for(stopping, nullptr, 0);
  }
}

}  // namespace numl
