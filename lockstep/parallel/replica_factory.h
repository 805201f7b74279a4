// SPDX-License-Identifier: BSD-3-Clause
// Public. Makes another module like a given one, to be a replica of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>

#include <torch/nn/module.h>

namespace lockstep {

using ModuleFactory = std::function<std::shared_ptr<torch::nn::Module>()>;

// The default constructor of M, which may stand in for `original` only if that is exactly an M;
// empty if it is not, or M has none.
template <class M>
ModuleFactory default_factory(const torch::nn::Module& original) {
  if constexpr (std::is_default_constructible_v<M>) {
    if (typeid(original) == typeid(M)) return [] { return std::make_shared<M>(); };
  }
  return {};
}

// The possible sources of another module like a given one.
struct ReplicaSources {
  // The user's function; its modules are checked only for their type, names and shapes.
  ModuleFactory make_replica = {};
  // The default constructor; empty if there is none.
  ModuleFactory by_default = {};
  // Whether constructors give unregistered members the original's values.
  bool trust_constructors = false;
  // Who needs the replica, for errors.
  std::string owner = "DataParallel";
};

// A module with the original's names and shapes of parameters, buffers and submodules; the caller
// sets the values. Made by make_replica if given; else by the original's clone()
// (torch::nn::Cloneable); else, if constructors are trusted, by by_default. A clone or default must
// also have the same types of submodules and print like the original, since printing shows the
// options of layers. For a submodule without clone(), a clone has what constructors make. PyTorch's
// random numbers stay unchanged.
//
// UsageError if no source gives such a module; it says what each lacks.
std::shared_ptr<torch::nn::Module> make_replica(const torch::nn::Module& original,
                                                const ReplicaSources& sources);

}  // namespace lockstep
