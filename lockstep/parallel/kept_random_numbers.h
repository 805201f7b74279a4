// SPDX-License-Identifier: BSD-3-Clause
// Keeps the program's random numbers as they are while something else draws some.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace lockstep {

// Keeps the states of the default generators of the CPU and, if it is another one, of a device, and
// restores them in its destructor.
class KeptRandomNumbers {
 public:
  explicit KeptRandomNumbers(at::Device device = at::kCPU) {
    keep(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu()) keep(at::globalContext().defaultGenerator(device));
  }
  KeptRandomNumbers(const KeptRandomNumbers&) = delete;
  KeptRandomNumbers& operator=(const KeptRandomNumbers&) = delete;
  ~KeptRandomNumbers() { rewind(); }

  // The next numbers are those from the time of construction.
  void rewind() const {
    for (auto [generator, state] : kept_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void keep(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    kept_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> kept_;
};

}  // namespace lockstep
