// Wrong use is found when the client is made.
#pragma once

#include <string>

#include "channel.h"
#include "numl/client.h"

namespace numl {

// Throw Error::Kind::usage. A time that clocks cannot count becomes one that they can.
Options checked(Options options);
Address checked(const std::string& server, const Options& options);

}  // namespace numl
