// SPDX-License-Identifier: BSD-3-Clause
// SHA-256 of bytes that are added in pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Lower-case hexadecimal digits, as sha256sum prints them. Call it once, at the end.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_of(std::span<const std::byte> bytes);

}  // namespace lockstep
