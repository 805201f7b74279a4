// SPDX-License-Identifier: BSD-3-Clause
// The result of a training run, and its JSON form, which docs/cli.md documents.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The mean loss over a section of an epoch, and the end of the section: 1.5 is in the middle of the
// second epoch.
struct LossPoint {
  double epoch = 0;
  double loss = 0;
};

struct TrainResult {
  std::string recipe;
  // "single", "dp" or "ddp".
  std::string mode;
  int ranks = 1;
  // Replicas of the net in one rank; more than one only for dp.
  int replicas = 1;
  // The threads of each rank.
  int threads = 1;
  std::string device;
  std::int64_t seed = 0;
  // The samples per step of each rank or replica.
  std::int64_t batch_size = 0;
  std::int64_t global_batch_size = 0;
  // The microbatches of a step; 0 if batches are not divided into them. `batch_size` is theirs.
  std::int64_t microbatches = 0;
  // The initial rate, before scaling.
  double learning_rate = 0;
  double learning_rate_scale = 1;
  std::int64_t epochs = 0;
  // "bf16" or "fp16"; empty if layers compute in the type of the parameters.
  std::string amp;

  // Time of the training steps, including drawing batches from memory but not reading or
  // evaluation: the sum over the epochs, and the median epoch. Measured on the slowest rank.
  double seconds = 0;
  double seconds_per_epoch = 0;
  // The rate of all ranks in the median epoch, without padding.
  double samples_per_second = 0;
  // The mean over the samples of the last epoch, over all ranks. NaN if no epoch was left to train.
  double loss = std::numeric_limits<double>::quiet_NaN();
  // The course of the loss: a few points per epoch.
  std::vector<LossPoint> losses;
  // The peak memory up to the last step, in 10^6 bytes: summed over all ranks or devices, and of
  // the fullest one. On CPU it is a rank's private memory and its part of what ranks share; on a
  // GPU libtorch's allocations. nullopt if unknown (GPUs before libtorch 2.9).
  std::optional<double> peak_mb;
  std::optional<double> fullest_peak_mb;
  // The largest share of its time, from 0 to 1, that a rank waited for a core. nullopt if unknown.
  std::optional<double> core_wait;
  // Bytes that the busiest rank or device exchanges with the others: see ProcessGroup::bytes_sent
  // and DataParallel::bytes_moved.
  std::int64_t bytes_moved_per_step = 0;
  // The accuracy on the test set, from 0 to 1, if the recipe has one; for text, the share of next
  // bytes that are right.
  std::optional<double> accuracy;
  // For text, -log2 of the probability of each byte: the mean over the last epoch, as it trained,
  // and over the test text after it.
  std::optional<double> bits_per_character;
  std::optional<double> test_bits_per_character;
  // The line that `linear` has learned.
  std::optional<double> weight;
  std::optional<double> bias;
  // With microbatches: state_sha256() of the trained net and its optimizer; of a sharded one only
  // on rank 0.
  std::string sha256 = {};
  // Whether this process is rank 0 at the end; not a part of the JSON form.
  bool is_of_rank_0 = true;
  // Why metrics, events, a trace or a report are missing or incomplete; usually nothing.
  std::vector<std::string> not_written = {};
};

// One object, on one line.
std::string to_json(const TrainResult& result);
// Reads to_json's output. Error for any other text.
TrainResult train_result_from_json(const std::string& text);

// {"schema_version": 1, "error": {"kind": ..., "message": ...}} with kind "usage", "peer_lost",
// "timeout", "backend", "checkpoint", "not_finite", "out_of_sync" or "error", by the type of the
// exception.
std::string error_to_json(const std::exception& error);

}  // namespace lockstep
