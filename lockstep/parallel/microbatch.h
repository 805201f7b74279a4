// SPDX-License-Identifier: BSD-3-Clause
// Public. The microbatch that a thread computes: what keys its random numbers, and the module that
// it trains. A Trainer with .microbatches makes it; a layer that draws random numbers, such as
// Dropout, asks for it.
#pragma once

#include <cstdint>

#include <torch/nn/module.h>

namespace lockstep {

// Equal on whichever rank or replica the microbatch is computed.
struct Microbatch {
  std::int64_t seed = 0;
  // Steps since training began, counted from 0.
  std::int64_t step = 0;
  // The number of the microbatch in its global batch.
  std::int64_t index = 0;
  // The module that is trained, and what this thread computes with: the same, or a replica of it.
  const torch::nn::Module* trained = nullptr;
  torch::nn::Module* module = nullptr;
  // The number of random draws so far, in the order of the forward; a layer takes the next number.
  std::size_t draws = 0;

  // A seed for the draw with the number `draw`, which no other draw of the training run shares but
  // by chance.
  std::uint64_t key(std::size_t draw) const;
};

// While the object lives, the thread that made it computes this microbatch.
class MicrobatchScope {
 public:
  explicit MicrobatchScope(const Microbatch& microbatch);
  MicrobatchScope(const MicrobatchScope&) = delete;
  MicrobatchScope& operator=(const MicrobatchScope&) = delete;
  ~MicrobatchScope();

  // The microbatch of the calling thread; null if it computes none.
  static Microbatch* current();

 private:
  Microbatch microbatch_;
  Microbatch* before_;
};

}  // namespace lockstep
