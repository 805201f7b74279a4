// SPDX-License-Identifier: BSD-3-Clause
// Makes another module like a given one.
#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

using ModuleFactory = std::function<std::shared_ptr<torch::nn::Module>()>;

// A module with parameters, buffers and submodules of the original's names and shapes, whose values
// are the caller's to set. It is made by `users` if that is given; else by the original's clone()
// (torch::nn::Cloneable); else by `by_default`, which may be empty. A clone or default must also
// have the same types of submodules, and print as the original does, since that shows the options
// of layers. PyTorch's random numbers are left as they were.
//
// UsageError if none of these gives such a module, with what each lacks.
std::shared_ptr<torch::nn::Module> make_replica(const torch::nn::Module& original,
                                                const ModuleFactory& users,
                                                const ModuleFactory& by_default);

}  // namespace lockstep
