// SPDX-License-Identifier: BSD-3-Clause
// Bounds the memory of a store's server, whoever fills it: values, and requests that have arrived
// in part.
#pragma once

#include <cstddef>

namespace lockstep {

class StoreMemory {
 public:
  // In bytes. A few values of the largest size that one may have.
  static constexpr std::size_t bound = std::size_t{256} << 20;
  // What an entry takes beside its key and value.
  static constexpr std::size_t per_entry = 256;

  // A part of the memory, given back when this object is destroyed.
  class Share {
   public:
    explicit Share(StoreMemory& memory) : memory_(memory) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { clear(); }

    // False, and nothing changes, if the bound would be exceeded.
    bool grow(std::size_t bytes) {
      if (bytes > bound - memory_.held_) return false;
      memory_.held_ += bytes;
      bytes_ += bytes;
      return true;
    }
    void clear() {
      memory_.held_ -= bytes_;
      bytes_ = 0;
    }

   private:
    StoreMemory& memory_;
    std::size_t bytes_ = 0;
  };

 private:
  std::size_t held_ = 0;
};

}  // namespace lockstep
