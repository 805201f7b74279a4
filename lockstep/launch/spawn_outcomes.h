// SPDX-License-Identifier: BSD-3-Clause
// Records how this program's calls of spawn() ended. A rank that runs the program again also makes
// the calls before its own, and each ends as it did in its parent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/packed_strings.h"

namespace lockstep {

// The results of one call, by rank.
using SpawnResults = std::vector<std::string>;

// The outcomes of all calls so far, in order, kept until the program ends.
class SpawnOutcomes {
 public:
  // Makes a call, records its result or exception, and returns or rethrows that.
  SpawnResults remember(const std::string& call, const std::function<SpawnResults()>& make);
  const std::string& packed() const { return packed_; }

 private:
  std::string packed_;
};

// The outcomes that the parent process recorded.
class EarlierOutcomes {
 public:
  explicit EarlierOutcomes(std::string_view packed) : packed_(packed) {}
  // Returns the result or throws the exception of the parent's next call. UsageError if that was a
  // different call.
  SpawnResults next(const std::string& call);

 private:
  Unpacking packed_;
};

// UsageError: a rank that runs the program again makes this call where its parent made the other.
[[noreturn]] void throw_other_call(const std::string& here, const std::string& in_parent);

}  // namespace lockstep
