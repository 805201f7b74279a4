// SPDX-License-Identifier: BSD-3-Clause
// Keeps the program's random numbers, and tensors that a forward may write, as they are while
// something else runs.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep {

// The states of the default generators of the CPU and of other devices, at the time of
// construction.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Device>& devices = {}) {
    keep(at::detail::getDefaultCPUGenerator());
    for (const at::Device& device : devices) {
      if (!device.is_cpu()) keep(at::globalContext().defaultGenerator(device));
    }
  }

  // The next numbers are those from the time of construction.
  void restore() const {
    for (auto [generator, state] : kept_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

  // For states of the same devices.
  bool operator==(const RandomState& other) const {
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (!kept_[i].second.equal(other.kept_[i].second)) return false;
    }
    return true;
  }

 private:
  void keep(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    kept_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> kept_;
};

// Restores the states of the default generators in its destructor.
class KeptRandomNumbers {
 public:
  explicit KeptRandomNumbers(const std::vector<at::Device>& devices = {}) : state_(devices) {}
  KeptRandomNumbers(const KeptRandomNumbers&) = delete;
  KeptRandomNumbers& operator=(const KeptRandomNumbers&) = delete;
  ~KeptRandomNumbers() { state_.restore(); }

  void rewind() const { state_.restore(); }

 private:
  RandomState state_;
};

// Restores the values of dense tensors in its destructor, without a trace in their version
// counters: earlier forwards may still need the tensors in backward.
class KeptTensors {
 public:
  explicit KeptTensors(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.layout() == at::kStrided) kept_.emplace_back(tensor, tensor.detach().clone());
    }
  }
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;
  ~KeptTensors() {
    const at::AutoDispatchBelowADInplaceOrView without_versions;
    for (auto& [tensor, before] : kept_) {
      if (!at::equal(tensor, before)) tensor.copy_(before);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace lockstep
