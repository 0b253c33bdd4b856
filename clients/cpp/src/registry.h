// The folder that names servers that come and go. docs/client.md has its rules.
#pragma once

#include <future>
#include <string>
#include <vector>

namespace numl {

// The addresses of the servers that are there now, each once; none if there is no such folder.
std::vector<std::string> servers_in(const std::string& folder);
// The same, read by a thread of its own: a file system may hang.
std::shared_future<std::vector<std::string>> servers_soon(const std::string& folder);

}  // namespace numl
