// SPDX-License-Identifier: BSD-3-Clause
// Saves the complete state of training, again and again, and goes on from the newest checkpoint:
//
//   lockstep::CheckpointFolder checkpoints("checkpoints", group);
//   const lockstep::CheckpointContents contents{.module = net.ptr(), .optimizer = &adam};
//   if (const auto position = checkpoints.load(contents)) sampler.resume(position->data);
//   ...
//   checkpoints.save(contents, {.step = step, .data = sampler.cursor_after(samples)});
//
// docs/checkpoints.md describes the folder, which Python can read too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

struct CheckpointFolderOptions {
  // The newest checkpoints that are kept, at least 1.
  int keep_last = 2;
  // And those with the highest scores, which may be among the newest.
  int keep_best = 0;
  // Gets lines on rank 0: what was loaded, what is damaged, what could not be written.
  std::function<void(const std::string&)> log = {};
};

// What a checkpoint consists of; the random numbers of torch's default generators are always part
// of it: those of the CPU and of the GPUs on which the parameters are. The objects must live during
// the call.
struct CheckpointContents {
  // Its state_dict: of a wrapper, that of the wrapped module. Parameters are the same on every
  // rank; buffers are taken from rank 0.
  std::shared_ptr<torch::nn::Module> module;
  // May be null. Of a type that optimizer_state_dict() takes; sharded ones need no consolidation.
  // load() and save() remove a parameter that a group lists again, as parameters() lists tied
  // weights; UsageError if one is in two groups.
  torch::optim::Optimizer* optimizer = nullptr;
  // May be null.
  GradScaler* scaler = nullptr;
  // May be null. The numbers of a learning-rate scheduler of any kind, as in the state_dict() of a
  // PyTorch scheduler: finite, and the same on every rank. load() replaces all of them, also the
  // names. Checkpoints of an older version have none, and load() then leaves the map as it is.
  std::map<std::string, double>* scheduler = nullptr;
  // Others that belong to the model, such as the mean and standard deviation of a standardization,
  // the same on every rank. load() copies into them.
  std::vector<NamedTensor> tensors = {};
};

// The same on every rank.
struct CheckpointPosition {
  // Of the optimizer: names the checkpoint.
  std::int64_t step = 0;
  DataCursor data = {};
  // Higher is better.
  std::optional<double> score = {};
  // The program's own.
  std::map<std::string, std::string> notes = {};
};

// Only rank 0 reads and writes the folder: it need not be on the other ranks' machines. All calls
// and the constructor are collective. For one thread at a time.
class CheckpointFolder {
 public:
  // Makes the folder if it is missing, and removes what a killed process left unfinished there.
  // UsageError on every rank if it cannot be written, if another run writes there, or for
  // options out of range.
  CheckpointFolder(std::filesystem::path folder, GroupArgument group,
                   CheckpointFolderOptions options = {});
  // Waits until the last checkpoint is on the disk.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Whether save() is allowed: the folder had no checkpoint when this object was constructed, or
  // load() has loaded one since. Not collective.
  bool is_new() const;

  // Restores the contents from the newest checkpoint whose files have the hashes of its manifest;
  // log says what is wrong with newer ones. Any number of ranks may have saved it. Ranks that did
  // not exist then keep their random numbers. nullopt if the folder has no checkpoint.
  //
  // Calls `accept` with the position before anything changes. If `accept` throws, load() throws a
  // CheckpointError on every rank.
  //
  // UsageError on every rank, also if the folder has no checkpoint, for contents that save() would
  // refuse: call it before the first step, and a run cannot lose its work to an optimizer of
  // another type, or to a tensor that files do not take.
  //
  // CheckpointError on every rank if all checkpoints are damaged, or if a rank's contents do not
  // fit the saved ones. The error lists all differences, and no rank's contents have changed.
  // Effects of `accept`, such as a resumed sampler, remain.
  std::optional<CheckpointPosition> load(
      const CheckpointContents& contents,
      const std::function<void(const CheckpointPosition&)>& accept = {});

  // Blocks while the contents are copied, each rank copying a part, and until the previous
  // checkpoint is written. A thread then writes the files, and renames the complete checkpoint
  // atomically. If that fails, for example on a full disk, older checkpoints stay, log says why,
  // and training goes on.
  //
  // UsageError if the folder is not new, for contents that cannot be saved, and for notes or names
  // of a scheduler's numbers that are not UTF-8.
  void save(const CheckpointContents& contents, const CheckpointPosition& position);

  // Returns when the last checkpoint is on the disk. BackendError on every rank if it could not be
  // written.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
