// SPDX-License-Identifier: BSD-3-Clause
// The hosts of peers that did not know a key, for messages about missing ranks. Thread-safe.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace lockstep {

class Refusals {
 public:
  void add(const std::string& host);
  // "; a process on host 10.0.0.2 was refused, since ..."; empty if nobody was refused.
  std::string in_words() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> hosts_;
};

}  // namespace lockstep
