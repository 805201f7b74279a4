// SPDX-License-Identifier: BSD-3-Clause
// Public. The interface of a store: ranks leave small values for each other before they are
// connected, such as addresses, tokens and results. Keys and values are bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep {

// Rank 0 no longer serves the store: it ended, or the network failed.
class StoreLost : public ErrorType<StoreLost, BackendError> {
 public:
  using ErrorType::ErrorType;
};

// The store does not answer. This tells nothing about missing ranks.
class StoreSilent : public ErrorType<StoreSilent, TimeoutError> {
 public:
  using ErrorType::ErrorType;
};

// The contents of a store, by key.
using StoreValues = std::map<std::string, std::string, std::less<>>;

class Store {
 public:
  virtual ~Store() = default;

  // All requests throw BackendError (StoreLost if rank 0 serves the store) if the store cannot be
  // reached, TimeoutError if it does not answer, and UsageError if it is full, or if add finds a
  // value that is not a number.

  // Sets the key's value, replacing any older one.
  virtual void set(const std::string& key, const std::string& value) = 0;

  // Adds to the number under the key (0 if the key is missing) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Blocks until the key exists, at most until the deadline, and returns its value.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;

  // If this process serves the store: the refused peers, as the end of a message about missing
  // ranks. Empty if none was refused.
  virtual std::string refused() const { return ""; }
};

}  // namespace lockstep
