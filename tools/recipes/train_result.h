// SPDX-License-Identifier: BSD-3-Clause
// What a training yields, and its JSON form, which docs/cli.md documents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The mean loss over a stretch of an epoch, and where it ends: 1.5 is in the middle of the second.
struct LossPoint {
  double epoch = 0;
  double loss = 0;
};

struct TrainResult {
  std::string recipe;
  // "single", "dp" or "ddp".
  std::string mode;
  int ranks = 1;
  // Of the net in one rank; more than one for dp alone.
  int replicas = 1;
  // Of a rank.
  int threads = 1;
  std::string device;
  std::int64_t seed = 0;
  // Of a rank, or a replica.
  std::int64_t batch_size = 0;
  std::int64_t global_batch_size = 0;
  // What the training began with, before scaling.
  double learning_rate = 0;
  double learning_rate_scale = 1;
  std::int64_t epochs = 0;

  // Training steps alone, batches drawn from memory included, reading and evaluation not: the sum
  // over the epochs, and the median epoch. Of the slowest rank.
  double seconds = 0;
  double seconds_per_epoch = 0;
  // Of the median epoch, over all ranks, without padding.
  double samples_per_second = 0;
  // The mean over the samples of the last epoch, over all ranks.
  double loss = 0;
  // The way there: a few for each epoch.
  std::vector<LossPoint> losses;
  // The most memory in use at once until the last step, in 10^6 bytes: of all ranks or devices, and
  // of the fullest one. On CPU it is a rank's private memory and its part of what ranks share; on a
  // GPU what libtorch has allocated. Nothing if that is unknown (GPUs before libtorch 2.9).
  std::optional<double> peak_mb;
  std::optional<double> fullest_peak_mb;
  // What the busiest rank or device exchanges with the others, in bytes: see
  // ProcessGroup::bytes_sent and DataParallel::bytes_moved.
  std::int64_t bytes_moved_per_step = 0;
  // Of the test set, from 0 to 1, where the recipe has one; otherwise what linear has learned.
  std::optional<double> accuracy;
  std::optional<double> weight;
  std::optional<double> bias;
};

// One object, on one line.
std::string to_json(const TrainResult& result);
// Reads what to_json wrote. Error if the text is something else.
TrainResult train_result_from_json(const std::string& text);

// {"schema_version": 1, "error": {"kind": ..., "message": ...}} with kind "usage", "peer_lost",
// "timeout", "backend", "not_finite", "out_of_sync" or "error", by the type of the exception.
std::string error_to_json(const std::exception& error);

}  // namespace lockstep
