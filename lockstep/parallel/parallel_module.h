// SPDX-License-Identifier: BSD-3-Clause
// The common base of DataParallel and DistributedDataParallel: a module around another one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <torch/nn/module.h>

namespace lockstep {

// The wrapped module is registered as "module": parameters(), train(), to() and so on reach it.
class ParallelModule : public torch::nn::Module {
 public:
  ParallelModule(const ParallelModule&) = delete;
  ParallelModule& operator=(const ParallelModule&) = delete;

  // For functions that take any wrapped model, as ParallelModule&, DataParallelBase& or
  // DistributedDataParallelBase&. UsageError if the wrapped module's forward does not take one
  // tensor and return one.
  at::Tensor forward(const at::Tensor& input) { return forward_tensor(input); }
  at::Tensor operator()(const at::Tensor& input) { return forward_tensor(input); }

  // Saves and loads the wrapped module itself: names have no prefix, and torch::save and
  // torch::load of the wrapper and of the module use the same file.
  void save(torch::serialize::OutputArchive& archive) const override { inner_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { inner_->load(archive); }

 protected:
  // UsageError if the module is null.
  ParallelModule(std::string name, std::shared_ptr<torch::nn::Module> module);
  torch::nn::Module& inner() const { return *inner_; }
  [[noreturn]] void refuse_tensor() const;

 private:
  virtual at::Tensor forward_tensor(const at::Tensor& input) = 0;

  std::shared_ptr<torch::nn::Module> inner_;
};

}  // namespace lockstep
