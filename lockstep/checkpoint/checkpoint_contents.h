// SPDX-License-Identifier: BSD-3-Clause
// Public. What a checkpoint consists of: the objects of a training run, and how far the run has
// come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// The objects that are saved and restored; they must live during the call. A checkpoint also has
// the state of torch's default generators, for the CPU and for the GPUs with the parameters.
struct CheckpointContents {
  // Its state_dict is saved; for a wrapper, the wrapped module's state_dict. Parameters are the
  // same on every rank; buffers are taken from rank 0.
  std::shared_ptr<torch::nn::Module> module;
  // May be null. Has any type that optimizer_state_dict() takes; a sharded one needs no
  // consolidate_state().
  // load() and save() remove a parameter that a group lists again, as parameters() lists tied
  // weights; UsageError if one is in two groups.
  torch::optim::Optimizer* optimizer = nullptr;
  // May be null.
  GradScaler* scaler = nullptr;
  // May be null. The numbers of a learning-rate scheduler of any kind, as in the state_dict() of a
  // PyTorch scheduler: finite, and the same on every rank. load() replaces the whole map. It leaves
  // the map unchanged if the checkpoint is of an older version, which has no such numbers.
  std::map<std::string, double>* scheduler = nullptr;
  // Further tensors that belong to the model, such as the mean and standard deviation of a
  // standardization, the same on every rank. load() copies into them.
  std::vector<NamedTensor> tensors = {};
};

// How far the run has come; the same on every rank.
struct CheckpointPosition {
  // The optimizer step; also the checkpoint's name.
  std::int64_t step = 0;
  DataCursor data = {};
  // The evaluation, for keep_best; higher is better.
  std::optional<double> score = {};
  // Texts of the program, by names of its choice.
  std::map<std::string, std::string> notes = {};
};

}  // namespace lockstep
