// SPDX-License-Identifier: BSD-3-Clause
// Reads gzip data in pieces, so that a reader can check a header before it allocates memory for the
// rest.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// Whether the bytes begin with the signature of gzip.
bool is_gzip(const StoredBytes& bytes);

// Reads one gzip member, which ends where the bytes end; fetches them as needed. Errors are
// UsageErrors that begin with the name: damaged data, a wrong checksum, data that ends early or
// continues.
class GzipReader {
 public:
  GzipReader(StoredBytes bytes, std::string name);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Fills output as far as data remains and returns the number of bytes.
  std::size_t read(std::span<std::byte> output);

  // Checks that the data has been read to its end, and its checksum.
  void finish();

  // An upper bound of the uncompressed size: deflate packs at most 1032 bytes into one.
  std::size_t max_size() const;

 private:
  struct Stream;
  void refill();

  StoredBytes bytes_;
  std::string name_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep
