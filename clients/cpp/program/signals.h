// Ends the program by SIGINT, SIGTERM or SIGHUP, but tidies up before.
#pragma once

#include <functional>
#include <thread>

namespace numl::program {

// While it lives, the first of these signals has `tidy` called, by a thread of its own, and then
// ends the program; further ones do not interrupt that. What is ignored, as under nohup, stays so.
class TidyOnSignal {
 public:
  explicit TidyOnSignal(std::function<void()> tidy);
  ~TidyOnSignal();
  TidyOnSignal(const TidyOnSignal&) = delete;
  TidyOnSignal& operator=(const TidyOnSignal&) = delete;

 private:
  void wait();

  std::function<void()> tidy_;
  int ends_[2];  // of the pipe through which a handler tells the thread
  std::thread thread_;
};

}  // namespace numl::program
