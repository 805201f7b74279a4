// SPDX-License-Identifier: BSD-3-Clause
// How this program's calls of spawn() ended. A rank that is started anew makes the calls before its
// own as well, and each ends in it as it ended in its parent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/packed_strings.h"

namespace lockstep {

// What the ranks of one call returned, by rank.
using SpawnResults = std::vector<std::string>;

// The outcomes of all calls so far, in order, kept until the program ends.
class SpawnOutcomes {
 public:
  // Makes a call, remembers what it returns or throws, and returns or throws that.
  SpawnResults remember(const std::string& call, const std::function<SpawnResults()>& make);
  const std::string& packed() const { return packed_; }

 private:
  std::string packed_;
};

// The outcomes that the parent process remembered.
class EarlierOutcomes {
 public:
  explicit EarlierOutcomes(std::string_view packed) : packed_(packed) {}
  // Returns or throws what the next call did in the parent. UsageError if that was another call.
  SpawnResults next(const std::string& call);

 private:
  Unpacking packed_;
};

// UsageError: a rank that was started anew makes this call, where its parent made the other.
[[noreturn]] void throw_other_call(const std::string& here, const std::string& in_parent);

}  // namespace lockstep
