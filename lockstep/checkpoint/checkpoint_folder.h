// SPDX-License-Identifier: BSD-3-Clause
// Public. Saves the complete state of training periodically, and resumes from the newest
// checkpoint:
//
//   lockstep::CheckpointFolder checkpoints("checkpoints", group);
//   const lockstep::CheckpointContents contents{.module = net.ptr(), .optimizer = &adam};
//   if (const auto position = checkpoints.load(contents)) sampler.resume(position->data);
//   ...
//   checkpoints.save(contents, {.step = step, .data = sampler.cursor_after(samples)});
//
// docs/checkpoints.md describes the folder, which Python can read too.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

struct CheckpointFolderOptions {
  // The number of newest checkpoints to keep, at least 1.
  int keep_last = 2;
  // The number of checkpoints to keep for their scores; they may be among the newest. With at least
  // 1, the link `best` in the folder points to the best.
  int keep_best = 0;
  // Whether the score of an earlier checkpoint with these notes counts: return false if it measures
  // something else than the scores of this run. Without a function, every score counts.
  std::function<bool(const std::map<std::string, std::string>& notes)> counts_score = {};
  // Rank 0 calls this with lines of text: what was loaded, is damaged, or could not be written.
  std::function<void(const std::string&)> log = {};
};

// Only rank 0 reads and writes the folder: it need not be on the other ranks' machines. All calls
// and the constructor are collective. Used by one thread at a time.
class CheckpointFolder {
 public:
  // Makes the folder if it is missing, and removes unfinished checkpoints of killed processes.
  // UsageError on every rank if the folder cannot be written, if another run writes there, or for
  // options out of range.
  CheckpointFolder(std::filesystem::path folder, GroupArgument group,
                   CheckpointFolderOptions options = {});
  // Waits until the last checkpoint is on the disk.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Whether save() is allowed: the folder had no checkpoint when this object was constructed, or
  // load() has loaded one since. Not collective.
  bool can_save() const;
  // Internal: what a Trainer in an elastic job uses. The checkpoints in the folder are of this run,
  // which goes on with other ranks: save() is allowed without load().
  void continue_run();

  // Restores the contents from the newest checkpoint whose files match the hashes in its manifest;
  // `log` says what is wrong with newer ones. Any number of ranks may have saved it. A rank without
  // a saved generator state keeps its own. Returns nullopt if the folder has no checkpoint.
  //
  // Calls `accept` with the position before anything changes. If `accept` throws, load() throws a
  // CheckpointError on every rank.
  //
  // UsageError on every rank, even if the folder has no checkpoint, for contents that save() would
  // refuse. Call load() before the first step: an optimizer or a tensor that cannot be saved is
  // then reported before any work is lost.
  //
  // CheckpointError on every rank if all checkpoints are damaged, or if a rank's contents do not
  // fit the saved ones. The error lists all differences, and no rank's contents have changed.
  // Effects of `accept`, such as a resumed sampler, remain.
  std::optional<CheckpointPosition> load(
      const CheckpointContents& contents,
      const std::function<void(const CheckpointPosition&)>& accept = {});

  // Gives the module and the tensors their values in the checkpoint with the highest score, of
  // those that are there and undamaged; of equal scores, the first. The checkpoint may have
  // further tensors. The optimizer and random numbers stay as they are: this is for a model that is
  // trained, and training that goes on needs load(). Waits for the last checkpoint, and may be
  // called at any time. Returns nullopt if no checkpoint has a score.
  //
  // CheckpointError on every rank as in load(), with nothing changed.
  std::optional<CheckpointPosition> load_best(std::shared_ptr<torch::nn::Module> module,
                                              std::vector<NamedTensor> tensors = {});

  // Blocks while the contents are copied, each rank copying a part, and until the previous
  // checkpoint is written. A thread then writes the files, and renames the complete checkpoint
  // atomically. If that fails, for example on a full disk, older checkpoints stay, `log` says why,
  // and training continues.
  //
  // UsageError unless can_save(), for contents that cannot be saved, and for notes or names
  // of a scheduler's numbers that are not UTF-8.
  void save(const CheckpointContents& contents, const CheckpointPosition& position);

  // Blocks until the last checkpoint is on the disk. BackendError on every rank if it could not be
  // written.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
