// SPDX-License-Identifier: BSD-3-Clause
// Where ranks leave small facts for each other before they are connected: addresses, tokens,
// results. Keys and values are bytes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep {

// Rank 0 no longer serves the store: it ended, or the network failed.
class StoreLost : public BackendError {
 public:
  using BackendError::BackendError;
};

// The store answers nothing, which says nothing of the ranks that are waited for.
class StoreSilent : public TimeoutError {
 public:
  using TimeoutError::TimeoutError;
};

class Store {
 public:
  virtual ~Store() = default;

  // All requests throw BackendError (StoreLost if rank 0 serves it) if the store cannot be reached,
  // TimeoutError if it does not answer, and UsageError if it has no room, or if add finds a value
  // that is not a number.

  // Stores the value, over any older one.
  virtual void set(const std::string& key, const std::string& value) = 0;

  // Adds to the number that the key holds (0 if it is not there), and returns the new one.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Waits until the key is there, at most until the deadline, and returns its value.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;

  // If this process serves the store: who has been turned away, as the end of a message about ranks
  // that do not come. Empty if nobody was.
  virtual std::string refused() const { return ""; }
};

}  // namespace lockstep
