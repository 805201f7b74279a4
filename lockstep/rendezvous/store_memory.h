// SPDX-License-Identifier: BSD-3-Clause
// Bounds the memory of a store's server: values, and requests that have arrived in part.
#pragma once

#include <cstddef>

namespace lockstep {

class StoreMemory {
 public:
  // Bytes. Enough for a few values of the maximum size.
  static constexpr std::size_t kBound = std::size_t{256} << 20;
  // The overhead of an entry beyond its key and value, in bytes.
  static constexpr std::size_t kPerEntry = 256;

  // A part of the memory, returned when this object is destroyed.
  class Share {
   public:
    explicit Share(StoreMemory& memory) : memory_(memory) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { clear(); }

    // Returns false and changes nothing if the bound would be exceeded.
    bool grow(std::size_t bytes) {
      if (bytes > kBound - memory_.held_) return false;
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
