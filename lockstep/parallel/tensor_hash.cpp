// SPDX-License-Identifier: BSD-3-Clause
// A hash of eight interleaved states, fast enough to read a model at memory speed.
#include "lockstep/parallel/tensor_hash.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include <ATen/ATen.h>

#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Fractional parts of the golden ratio and of the square root of 3; odd, so that products lose
// nothing.
constexpr std::uint64_t kOne = 0x9e37'79b9'7f4a'7c15;
constexpr std::uint64_t kOther = 0xbb67'ae85'84ca'a73b;

// From one state, different words lead to different states, so a difference in one word is never
// lost. Multiplication carries bits only upwards, so the shift between the two products brings high
// bits, such as signs, down: otherwise flipping two of them in different words could cancel out.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  const std::uint64_t spread = (state ^ word) * kOne;
  return (spread ^ spread >> 32) * kOther;
}

// Several states take the words in turn: the processor computes their products in parallel, while
// products of one state depend on each other.
std::uint64_t hash_of(const std::byte* bytes, std::size_t count) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, 8> states{1, 2, 3, 4, 5, 6, 7, 8};
  const auto take = [&](std::size_t position, std::size_t state, std::size_t length) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + position, length);
    states[state] = mix(states[state], word);
  };
  std::size_t position = 0;
  for (; position + states.size() * kWord <= count; position += states.size() * kWord) {
    for (std::size_t i = 0; i < states.size(); ++i) take(position + i * kWord, i, kWord);
  }
  for (std::size_t i = 0; position < count; position += kWord, ++i) {
    take(position, i, std::min(kWord, count - position));
  }
  std::uint64_t hash = count;
  for (const std::uint64_t state : states) hash = mix(hash, state);
  return mix(hash, 0);
}

}  // namespace

std::uint64_t tensor_hash(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    const at::Tensor plain = tensor.detach();
    const at::Tensor sparse = (plain.is_sparse() ? plain : plain.to_sparse()).coalesce();
    return mix(tensor_hash(sparse.indices()), tensor_hash(sparse.values()));
  }
  const at::Tensor plain = on_host(tensor);
  const std::uint64_t hash = hash_of(static_cast<const std::byte*>(plain.data_ptr()),
                                     static_cast<std::size_t>(plain.nbytes()));
  return hash == 0 ? 1 : hash;
}

}  // namespace lockstep
