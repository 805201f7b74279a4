// SPDX-License-Identifier: BSD-3-Clause
// Public. What Trainer::fit() makes of a range of batches: how many there are, how many samples
// each has, and the loop over them. Internal, and subject to change in any version.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep::detail {

struct TrainerBatch {
  std::int64_t samples;  // -1 if unknown
  bool is_last;          // true if this is known to be the epoch's last batch
  std::function<at::Tensor()> loss;
};

// Returns whether to go on with the next batch.
using TrainOn = std::function<bool(const TrainerBatch&)>;
// Calls the function with each batch of an epoch, as long as it returns true.
using RunBatches = std::function<void(const TrainOn&)>;

// Returns the number of samples in a batch; -1 if its type does not tell.
template <class Batch>
std::int64_t samples_in(const Batch& batch) {
  if constexpr (requires { batch.data.size(0); }) {
    return batch.data.size(0);
  } else if constexpr (requires { batch.size(0); }) {
    return batch.size(0);
  } else if constexpr (requires { batch.size(); }) {
    return static_cast<std::int64_t>(batch.size());
  }
  return -1;
}

// Whether a range-based for loop can run over it.
template <class Batches>
concept BatchRange = requires(Batches& batches) {
  batches.begin() != batches.end();
};

// What a range of batches says about an epoch of this rank. `batches` is its number of batches.
struct LoaderBatches {
  std::optional<std::int64_t> batches = {};
  std::optional<std::int64_t> batch_size = {};
  bool drop_last = false;  // whether the last batch is left out if it is smaller
  // Whether a loop can begin again after it was left early.
  bool can_begin_again = true;
};

template <class Batches>
LoaderBatches batches_in(Batches& batches) {
  LoaderBatches found;
  if constexpr (requires { batches.batches_per_epoch(); }) {  // DataLoader
    found.batches = static_cast<std::int64_t>(batches.batches_per_epoch());
    found.batch_size = static_cast<std::int64_t>(batches.batch_size());
  } else if constexpr (requires { batches.options().batch_size; }) {  // libtorch's, MemoryLoader
    found.batch_size = static_cast<std::int64_t>(batches.options().batch_size);
    if constexpr (requires { batches.options().drop_last; }) {
      found.drop_last = batches.options().drop_last;
    }
    if constexpr (requires { batches.options().enforce_ordering; }) {  // libtorch's
      found.can_begin_again = batches.options().workers == 0;
    }
  } else if constexpr (requires { batches.size(); }) {
    found.batches = static_cast<std::int64_t>(batches.size());
  }
  return found;
}

// Calls body(batch, is_last) for each batch, until it returns false. `is_last` is true only for the
// epoch's last batch, and only if the last step has fewer than batches_per_step batches. A batch
// that completes a full step is used before the next one is drawn: the checkpoint after the step
// must hold the random numbers for drawing the next batch.
template <class Batches, class Body>
void for_each_batch(Batches& batches, std::int64_t batches_per_step, const Body& body) {
  auto next = batches.begin();
  const auto end = batches.end();
  for (std::int64_t number = 1; next != end; ++number) {
    if (number % batches_per_step != 0) {
      auto batch = *next;  // an advanced iterator may reuse its batch
      ++next;
      if (!body(batch, !(next != end))) return;
    } else {
      auto&& batch = *next;
      if (!body(batch, false)) return;
      ++next;
    }
  }
}

}  // namespace lockstep::detail
