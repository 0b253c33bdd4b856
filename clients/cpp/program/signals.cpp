#include "signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace numl::program {
namespace {

constexpr int numbers[] = {SIGINT, SIGTERM, SIGHUP};
volatile sig_atomic_t into = -1;

// Nothing else is allowed in a handler.
void note(int number) {
  const int before = errno;
  const auto byte = static_cast<unsigned char>(number);
  if (write(into, &byte, 1) < 0) {
  }
  errno = before;
}

void handle(void (*from)(int), void (*to)(int)) {
  for (const int number : numbers) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != from) continue;
    action.sa_handler = to;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
  }
}

}  // namespace

TidyOnSignal::TidyOnSignal(std::function<void()> tidy) : tidy_(std::move(tidy)) {
  if (pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "no pipe");
  for (const int end : ends_) fcntl(end, F_SETFD, FD_CLOEXEC);
  into = ends_[1];
  thread_ = std::thread([this] { wait(); });
  handle(SIG_DFL, note);
}

TidyOnSignal::~TidyOnSignal() {
  handle(note, SIG_DFL);
  note(0);  // after any signal that came before
  thread_.join();
  for (const int end : ends_) close(end);
}

void TidyOnSignal::wait() {
  unsigned char number = 0;
  while (read(ends_[0], &number, 1) < 0 && errno == EINTR) {
  }
  if (number == 0) return;
  tidy_();
  handle(note, SIG_DFL);
  raise(number);
}

}  // namespace numl::program
