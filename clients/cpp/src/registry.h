// The folder that names servers that come and go. docs/client.md has its rules.
#pragma once

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace numl {

using Urls = std::vector<std::string>;

// The addresses of the servers that are there now, each once; none if there is no such folder.
Urls servers_in(const std::string& folder);

// Reads the folder again and again, by a thread of its own: a file system may hang.
class Registry {
 public:
  explicit Registry(std::string folder);
  ~Registry();

  // What the folder names now; none if that cannot be read in time.
  std::optional<Urls> read(std::chrono::milliseconds patience);
  // What was read since the last call, if anything, at most once a second. Unlocked while it waits.
  std::optional<Urls> look(std::unique_lock<std::mutex>& lock);

 private:
  void begin();
  std::optional<Urls> take();

  const std::string folder_;
  std::shared_future<Urls> reading_;  // under way, or read and not taken
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace numl
