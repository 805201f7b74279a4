// SPDX-License-Identifier: BSD-3-Clause
// Reads gzip data piece by piece, so that a reader can check a header before it makes room for
// what follows.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/data/stored_bytes.h"

namespace lockstep {

// True if the bytes begin as a gzip member does.
bool is_gzip(const StoredBytes& bytes);

// One gzip member that ends where the bytes end; they are read as they are needed. Errors are
// UsageErrors that begin with the name: damaged data, a checksum that does not match, data that
// ends early or goes on.
class GzipReader {
 public:
  GzipReader(StoredBytes bytes, std::string name);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Fills output as far as there is data and returns how many bytes that were.
  std::size_t read(std::span<std::byte> output);

  // Checks that the data is read to its end, and its checksum.
  void finish();

  // More than this the bytes cannot hold: deflate packs at most 1032 bytes into one.
  std::size_t max_size() const;

 private:
  struct Stream;
  void refill();

  StoredBytes bytes_;
  std::string name_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep
