// SPDX-License-Identifier: BSD-3-Clause
// Makes another module like a given one.
#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

using ModuleFactory = std::function<std::shared_ptr<torch::nn::Module>()>;

// Where another module like a given one may come from.
struct ReplicaSources {
  // The user's; what it makes is only compared by names and shapes.
  ModuleFactory make_replica = {};
  // The default constructor; empty if there is none.
  ModuleFactory by_default = {};
  // Whether constructors give members that are not registered the values that the original has.
  bool trust_constructors = false;
};

// A module with parameters, buffers and submodules of the original's names and shapes, whose values
// are the caller's to set. It is made by make_replica if that is given; else by the original's
// clone() (torch::nn::Cloneable); else, if constructors are trusted, by by_default. A clone or
// default must also have the same types of submodules, and print as the original does, since that
// shows the options of layers. A clone leaves what a submodule without clone() holds to
// constructors. PyTorch's random numbers are left as they were.
//
// UsageError if none of these gives such a module, with what each lacks.
std::shared_ptr<torch::nn::Module> make_replica(const torch::nn::Module& original,
                                                const ReplicaSources& sources);

}  // namespace lockstep
