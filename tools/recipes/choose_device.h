// SPDX-License-Identifier: BSD-3-Clause
// What --device means on this machine.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace lockstep {

// "cpu", "cuda:2", or "cuda", which is the GPU of this local rank; nothing where the text is
// nothing, which leaves the choice to init_process_group. UsageError for other texts, and for a GPU
// that is not there.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank);

// The same with the number of GPUs given.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank,
                                        int gpus);

// GPUs that libtorch can use; 0 if it was built without CUDA.
int usable_gpus();

}  // namespace lockstep
