// numl-label's command line.
#pragma once

#include <string>
#include <vector>

#include "numl/client.h"

namespace numl::program {

struct Arguments {
  Options options;
  std::vector<std::string> files;
  std::string out;
  bool list = false;
  bool quiet = false;
  bool json = false;
  std::size_t repeat = 1;
};

// Throws Error::Kind::usage. Prints the help, and ends the program, for --help.
Arguments parse(int count, char** words);

}  // namespace numl::program
