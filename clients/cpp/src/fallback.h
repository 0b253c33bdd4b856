// A server of the user's own, started by a command and ended with the client.
#pragma once

#include <sys/types.h>

#include <string>

#include "numl/client.h"

namespace numl {

class LocalServer {
 public:
  explicit LocalServer(Fallback commands) : commands_(std::move(commands)) {}
  ~LocalServer() { end(); }
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  bool configured() const { return !ended_ && !commands_.start.empty(); }
  bool started() const { return started_; }
  void start();
  void end();  // it is not started again
  // Why it will not come, or nothing.
  std::string failure();

 private:
  Fallback commands_;
  bool started_ = false;
  bool ended_ = false;
  pid_t pid_ = 0;  // of the command while it runs
  std::string failure_;
};

}  // namespace numl
