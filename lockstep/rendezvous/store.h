// SPDX-License-Identifier: BSD-3-Clause
// Where ranks leave small facts for each other before they are connected: addresses, tokens,
// results. Keys and values are bytes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/deadline.h"

namespace lockstep {

class Store {
 public:
  virtual ~Store() = default;

  // Stores the value, over any older one. BackendError if the store cannot be reached.
  virtual void set(const std::string& key, const std::string& value) = 0;

  // Adds to the number that the key holds (0 if it is not there), and returns the new one.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Waits until the key is there and returns its value. TimeoutError at the deadline.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;

  // If this process serves the store: who has been turned away, as the end of a message about ranks
  // that do not come. Empty if nobody was.
  virtual std::string refused() const { return ""; }
};

}  // namespace lockstep
