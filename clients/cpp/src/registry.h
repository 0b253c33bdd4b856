// The folder that names servers that come and go. docs/client.md has its rules.
#pragma once

#include <string>
#include <vector>

namespace numl {

// The addresses of the servers that are there now, each once; none if there is no such folder.
std::vector<std::string> servers_in(const std::string& folder);

}  // namespace numl
