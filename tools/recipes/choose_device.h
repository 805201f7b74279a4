// SPDX-License-Identifier: BSD-3-Clause
// Interprets --device on this machine.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace lockstep {

// "cpu", "cuda:2", or "cuda", which is this local rank's GPU; nullopt without a text, which leaves
// the choice to init_process_group. UsageError for other texts, and for a missing GPU.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank);

// The same for a given number of GPUs.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank,
                                        int gpus);

// The number of GPUs that libtorch can use; 0 if it was built without CUDA.
int usable_gpus();

}  // namespace lockstep
